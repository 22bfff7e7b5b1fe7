#!/usr/bin/env bash
# Packages: minari 0.5.4, gymnasium 1.4.0.
# Common guess: `combine_datasets([good, better])` of data sets that `filter_episodes` or `split_dataset` has made holds their
#   episodes, as they are: images that were stored with jpeg_encoding=False stay so.
# Behavior: it copies the files behind them. All episodes that were filtered out come back, two halves of a split give each
#   episode twice (training data with those held out), and lossless images become JPEG. `iterate_episodes([0])`, too, counts
#   the file's episodes, not the selected ones, unlike `dataset[0]`. Write the selected episodes with
#   create_dataset_from_buffers(..., jpeg_encoding=False). (Source: `combine_datasets` and
#   `MinariStorage.update_from_storage`; pull request 350 of September 2026, still open, is to mend the first part)
# Output seen: "selected 1 and 1 of 4, combined 8; images equal: before True, after False; first episode selected:
#   dataset[0] True, iterate_episodes([0]) False"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet minari[hdf5]==0.5.4 pillow==11.3.0 gymnasium==1.4.0 numpy==2.4.6
seen=$(MINARI_DATASETS_PATH="$folder/data" "$folder/env/bin/python" -W ignore - <<'PY'
import minari
import numpy as np
from gymnasium.spaces import Box, Discrete
from minari.data_collector import EpisodeBuffer

IMAGES = Box(0, 255, (32, 32, 3), np.uint8)
images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)


def select(name):
    episodes = [
        EpisodeBuffer(
            observations=images,
            actions=np.zeros(1, int),
            rewards=np.array([reward]),
            terminations=np.array([True]),
            truncations=np.array([False]),
            infos={},
        )
        for reward in (0.0, 0.0, 0.0, 1.0)
    ]
    spaces = dict(observation_space=IMAGES, action_space=Discrete(2))
    dataset = minari.create_dataset_from_buffers(name, episodes, jpeg_encoding=False, **spaces)
    return dataset.filter_episodes(lambda episode: bool(episode.rewards.sum() > 0))


one, two = select("mine/one-v0"), select("mine/two-v0")
both = minari.combine_datasets([one, two], "mine/both-v0")
before, after = (np.array_equal(dataset[0].observations, images) for dataset in (one, both))
first, counted = one[0], next(one.iterate_episodes([0]))
print(f"selected {len(one)} and {len(two)} of 4, combined {len(both)}; images equal: before {before}, after {after}; ", end="")
print(f"first episode selected: dataset[0] {first.rewards.sum() > 0}, iterate_episodes([0]) {counted.rewards.sum() > 0}")
PY
)
echo "minari 0.5.4: $seen"
expected="selected 1 and 1 of 4, combined 8; images equal: before True, after False; "
expected+="first episode selected: dataset[0] True, iterate_episodes([0]) False"
[[ "$seen" == "$expected" ]] || exit 1

#!/usr/bin/env bash
# Packages: ale-py 0.12.1, gymnasium 1.4.0.
# Common guess: `metadata["autoreset_mode"]` of a vector environment says when this one resets, whatever else is made later.
# Behavior: ale-py's vector environment writes its mode into the dictionary of the class gymnasium.vector.VectorEnv, which all
#   classes without a dictionary of their own share. After `make_vec` has made a second one, such as one for evaluation in the
#   default mode, the first one still resets in the same step, but says that it does so in the next one, and a wrapper that is
#   made then believes it: RecordEpisodeStatistics loses the first step of all episodes but the first. A class of one's own that
#   does not say its mode seems to have one, so that `make_vec` and wrappers do not warn. `env.unwrapped.autoreset_mode` is
#   right; or wrap each environment before the next one is made. (Source: the constructor of ale_py.vector_env.AtariVectorEnv)
# Output seen: "one environment: SameStep, lengths 10 10 10; after a second one: NextStep, lengths 10 9 9; VectorEnv: NextStep"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet ale-py==0.12.1 gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import ale_py
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

gymnasium.register_envs(ale_py)


def lengths(with_second):
    """Return the mode that the first environment states, and the lengths of its episodes, which have 40 frames each."""
    options = dict(num_envs=1, max_num_frames_per_episode=40, noop_max=0, use_fire_reset=False)
    first = gymnasium.make_vec("ALE/Pong-v5", autoreset_mode=AutoresetMode.SAME_STEP, **options)
    if with_second:
        gymnasium.make_vec("ALE/Pong-v5", **options)
    recorded = RecordEpisodeStatistics(first)
    recorded.reset(seed=0)
    for _ in range(30):
        recorded.step(np.zeros(1, dtype=np.int64))
    return f"{first.metadata['autoreset_mode'].value}, lengths {' '.join(map(str, recorded.length_queue))}"


print(f"one environment: {lengths(False)}; after a second one: {lengths(True)}", end="; ")
print("VectorEnv:", VectorEnv.metadata["autoreset_mode"].value)
PY
)
echo "ale-py 0.12.1: $seen"
wanted="one environment: SameStep, lengths 10 10 10; after a second one: NextStep, lengths 10 9 9; VectorEnv: NextStep"
[[ "$seen" == "$wanted" ]] || exit 1

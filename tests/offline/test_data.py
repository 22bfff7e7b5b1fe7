"""All sources give the same transitions, and wrong data is refused with the array, the place and the source."""

import json
import pickle
import shutil
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_ppg import ArgumentError
from sb3_ppg.arrays import map_arrays
from sb3_ppg.offline import Dataset, load_dataset, save_as_minari
from sb3_ppg.offline.data import ARRAYS
from tests.helpers import BOX, VECTOR, image_space, random_envs

TWO = spaces.Discrete(2)


def arrays(n: int = 6, **others) -> dict:
    """Two episodes, of which the first is terminated and the second is truncated, in ``VECTOR`` with actions in ``BOX``."""
    rng = np.random.default_rng(0)
    observations = rng.uniform(-1, 1, (n, 3)).astype(np.float32)
    following = np.roll(observations, -1, axis=0)
    following[[n // 2 - 1, n - 1]] = 0.5
    ends = np.zeros((2, n), dtype=bool)
    ends[0, n // 2 - 1] = ends[1, n - 1] = True
    data = dict(
        observations=observations,
        actions=rng.uniform(-1, 2, (n, 2)).astype(np.float32),
        rewards=np.arange(n, dtype=np.float32),
        next_observations=following,
        terminations=ends[0],
        truncations=ends[1],
    )
    return data | others


def assert_same(one: Dataset, other: Dataset):
    for name in ARRAYS:
        compare = partial(np.testing.assert_allclose, rtol=0, atol=1e-6, err_msg=name)
        map_arrays(compare, getattr(one, name), getattr(other, name))


# ---- returns ----


def test_returns_of_worked_numbers():
    """Rewards 0, 1, 2 and an end; 3, 4, 5 and a time limit, after which the value is 10."""
    dataset = load_dataset(arrays())
    assert dataset.ends.tolist() == [2, 5] and dataset.episode_returns().tolist() == [3, 12]
    returns = dataset.returns(0.5, last_values=np.array([99.0, 10.0]))
    assert returns.tolist() == [0 + 0.5 * 2, 1 + 0.5 * 2, 2, 3 + 0.5 * 9, 4 + 0.5 * 10, 5 + 0.5 * 10]


def test_an_episode_that_breaks_off_is_truncated():
    data = arrays()
    data["truncations"][:] = False
    assert load_dataset(data).truncations.tolist() == [False] * 5 + [True]  # its last transition
    shuffled = {name: array[::-1] for name, array in data.items()}
    dataset = load_dataset(shuffled)
    assert (dataset.truncations | dataset.terminations).all() and dataset.terminations.sum() == 1


# ---- sources ----


def test_a_replay_buffer_that_sac_has_filled(tmp_path):
    """Two environments, a full ring, actions scaled to [-1, 1], time limits: as the environment gave and took them."""
    model = SAC("MlpPolicy", random_envs(VECTOR, BOX, episode_length=7), buffer_size=40, learning_starts=1000, seed=0)
    model.learn(56)
    buffer = model.replay_buffer
    dataset = load_dataset(buffer)
    assert buffer.full and len(dataset) == 40
    oldest = buffer.pos
    np.testing.assert_array_equal(dataset.observations[0], buffer.observations[oldest, 0])
    np.testing.assert_array_equal(dataset.observations[20], buffer.observations[oldest, 1])
    assert not dataset.terminations.any() and dataset.ends[:3].tolist() == [5, 12, 19]  # of steps 8 to 27, each seventh
    assert dataset.ends[-1] == 39 and 19 in dataset.ends  # both environments' last transitions
    scaled = model.policy.scale_action(dataset.actions[:20])
    np.testing.assert_allclose(scaled, np.roll(buffer.actions[:, 0], -oldest, axis=0), atol=1e-6)
    dataset.fitted_to(VECTOR, BOX)

    model.save_replay_buffer(tmp_path / "buffer.pkl")
    assert_same(load_dataset(tmp_path / "buffer.pkl"), dataset)
    whole = (tmp_path / "buffer.pkl").read_bytes()
    (tmp_path / "buffer.pkl").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArgumentError, match=r"buffer.pkl' cannot be read"):
        load_dataset(tmp_path / "buffer.pkl")
    (tmp_path / "other.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(ArgumentError, match=r"other.pkl holds a list, no ReplayBuffer"):
        load_dataset(str(tmp_path / "other.pkl"))
    with pytest.raises(ArgumentError, match=r"missing.pkl' cannot be read"):
        load_dataset(tmp_path / "missing.pkl")


def test_a_replay_buffer_with_actions_in_the_units_of_the_environment_names_the_remedy():
    """SB3's algorithms store them scaled to [-1, 1]; the same data is taken as arrays."""
    data, buffer = arrays(), ReplayBuffer(6, VECTOR, BOX)
    for now, action, reward, following, *ends in zip(*data.values(), strict=True):
        buffer.add(now, following, action, reward, np.array(any(ends)), [{}])
    with pytest.raises(ArgumentError, match=r"`actions` reach 1\.\d+, but .* scaled to \[-1, 1\].*a dictionary with obs"):
        load_dataset(buffer)
    load_dataset(data).fitted_to(VECTOR, BOX)


def filled(n_envs: int, size: int, n_adds: int, **kwargs) -> ReplayBuffer:
    """Observations, actions and rewards are the numbers of the steps; nothing ends."""
    space = spaces.Box(-100, 100, (1,))
    buffer = ReplayBuffer(size * n_envs, space, space, n_envs=n_envs, **kwargs)
    for step in range(n_adds):
        now = np.full((n_envs, 1), float(step))
        buffer.add(now, now + 1, now / 100, now[:, 0], np.zeros(n_envs), [{}] * n_envs)
    return buffer


@pytest.mark.parametrize(("n_adds", "steps"), [(3, [0, 1, 2]), (7, [4, 5, 6])])
def test_a_buffer_with_optimized_memory_keeps_its_newest_rows(n_adds, steps):
    """The newest next observation overwrites the oldest observation."""
    data = load_dataset(filled(1, 4, n_adds, optimize_memory_usage=True, handle_timeout_termination=False))
    for array, expected in ((data.observations, steps), (data.next_observations, np.add(steps, 1)), (data.actions, steps)):
        np.testing.assert_allclose(array[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_the_returns_of_one_environment_do_not_count_for_another():
    """Although the first observation of the second follows the last one of the first."""
    buffer = filled(2, 3, 3)
    buffer.observations[:], buffer.next_observations[:] = 1.0, 1.0
    data = load_dataset(buffer)
    assert data.truncations.tolist() == [False, False, True, False, False, True]
    assert data.returns(1.0, np.zeros(2)).tolist() == [3, 3, 2, 3, 3, 2]


def test_a_replay_buffer_of_dictionaries_and_discrete_observations_with_a_time_limit():
    space = spaces.Dict(a=VECTOR, b=spaces.Discrete(4))
    buffer = DictReplayBuffer(5, space, TWO)
    first, second = {"a": np.ones((1, 3)), "b": np.array([[3]])}, {"a": np.zeros((1, 3)), "b": np.array([[2]])}
    for is_limit in (False, True):
        infos = [{"TimeLimit.truncated": is_limit}]
        buffer.add(first, second, np.array([1]), np.array([7.0]), np.array([True]), infos)
    dataset = load_dataset(buffer).fitted_to(space, TWO)
    assert dataset.observations["b"].tolist() == [3, 3] and dataset.next_observations["b"].tolist() == [2, 2]
    assert dataset.actions.tolist() == [1, 1]
    assert dataset.terminations.tolist() == [True, False] and dataset.truncations.tolist() == [False, True]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Minari's local store with one data set, of ``arrays()``."""
    pytest.importorskip("h5py")
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    save_as_minari(Dataset(**arrays()), "test/small-v0", VECTOR, BOX)
    return tmp_path


def test_a_minari_data_set_by_name_folder_and_file_unless_damaged(store):
    folder = store / "test/small-v0/data"
    for source in ("test/small-v0", folder.parent, str(folder), folder / "main_data.hdf5"):
        assert_same(load_dataset(source), load_dataset(arrays()))
    copy = shutil.copytree(folder, store / "copy")
    (copy / "metadata.json").unlink()
    for source in ("test/missing-v0", copy / "main_data.hdf5"):
        with pytest.raises(ArgumentError, match=f"`dataset`='{source}' cannot work: Minari cannot read it"):
            load_dataset(source)
    metadata = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(metadata | {"total_episodes": 0}))
    with pytest.raises(ArgumentError, match="test/small-v0 is empty"):
        load_dataset("test/small-v0")
    file = folder / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ArgumentError, match="`dataset`='test/small-v0' cannot work: Minari cannot read it"):
        load_dataset("test/small-v0")


# ---- wrong data ----


def nan_at(name: str, place: int) -> dict:
    data = arrays()
    data[name] = data[name].astype(float)
    data[name][place] = np.nan
    return data


def of_vectors(vectors: np.ndarray) -> dict:
    return arrays(observations=vectors, next_observations=vectors)


def images(scale: float) -> dict:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 40, 36, 3), dtype=np.uint8)
    return arrays(observations=pixels * scale, next_observations=pixels, actions=np.zeros(6))


FITS = (VECTOR, BOX)
IMAGES = image_space(3, 40, 36)
HALF_OPEN, WIDE = spaces.Box(0, np.inf, (1,)), spaces.Box(0, 10**6, (1,), np.int64)
A_DICT = spaces.Dict(a=spaces.Box(-1, 1, (5,)))
WRONG = {
    "shape": (of_vectors(np.zeros((6, 4))), FITS, r"`observations` have shape \(4,\).*\(3,\)"),
    "actions' shape": (arrays(actions=np.zeros((6, 3))), FITS, r"`actions` have shape \(3,\), the environment's \(2,\)"),
    "outside": (arrays(actions=np.tile([0, 2.1], (6, 1))), FITS, r"`actions` lie outside Box.* at 0 \(6 of 6 tr.*2.1"),
    "NaN observation": (nan_at("observations", 3), FITS, r"`observations` lie outside Box.* at 3 \(1 of 6 transitions\)"),
    "NaN reward": (nan_at("rewards", 5), FITS, r"`rewards` are NaN or infinite at 5"),
    "NaN action": (nan_at("actions", 0), FITS, r"`actions` lie outside Box.* at 0"),
    "NaN end": (nan_at("terminations", 4), FITS, r"`terminations` are neither 0 nor 1 at 4 \(1 of 6 transitions\): nan"),
    "an end of 2": (arrays(truncations=np.full(6, 2)), FITS, r"`truncations` are neither 0 nor 1 at 0"),
    "texts": (of_vectors(np.full((6, 3), "x")), FITS, r"`observations` are <U1, no numbers"),
    "dictionary": (arrays(observations={"a": np.zeros(6)}, next_observations={"a": np.zeros(6)}), FITS, "are a dictionary"),
    "empty": ({name: array[:0] for name, array in arrays().items()}, FITS, "is empty"),
    "empty buffer": (ReplayBuffer(5, VECTOR, BOX), FITS, "the replay buffer is empty"),
    "lengths": (arrays(rewards=np.zeros(5)), FITS, r"different lengths: .*'rewards': 5"),
    "reward's shape": (arrays(rewards=np.zeros((6, 1))), FITS, r"`rewards` have shape \(6, 1\)"),
    "a name": ({**arrays(), "dones": np.zeros(6)}, FITS, r"has the keys \[.*'dones'\]; use \['observations', "),
    "a number": (3, FITS, r"`dataset`=int cannot work"),
    "Discrete": (arrays(actions=np.array([0, 1, 0, 1, 2, 0])), (VECTOR, TWO), r"lie outside Discrete\(2\) at 4"),
    "fraction": (arrays(actions=0.5 * np.arange(6)), (VECTOR, TWO), r"lie outside Discrete\(2\) at 1"),
    "half open": (arrays(actions=np.full((6, 1), -5.0)), (VECTOR, HALF_OPEN), r"`actions` lie outside Box.* at 0"),
    "fraction in a Box": (arrays(actions=np.full((6, 1), 2.5)), (VECTOR, WIDE), r"`actions` lie outside Box.* at 0"),
    "too large": (of_vectors(np.full((6, 3), 300)), (spaces.Box(0, 255, (3,), np.uint8), BOX), "`observations` lie outside"),
    "no keys": (arrays(), (A_DICT, BOX), r"have the keys \[\], the environment's \['a'\]"),
    "shape at a key": (
        arrays(observations={"a": np.zeros((6, 3))}, next_observations={"a": np.zeros((6, 3))}),
        (A_DICT, BOX),
        r"`observations\['a'\]` have shape \(3,\)",
    ),
    "scaled images": (images(1 / 255), (IMAGES, TWO), r"`observations` lie outside Box\(0, 255, \(3, 40, 36\), uint8\)"),
    "nested space": (arrays(), (VECTOR, spaces.Dict(a=TWO)), "recorded actions are arrays of numbers"),
    "nested actions": (arrays(actions={"a": np.zeros((6, 2))}), FITS, "recorded actions are arrays of numbers"),
}


@pytest.mark.parametrize(("source", "places", "message"), WRONG.values(), ids=WRONG)
def test_wrong_data_is_refused(source, places, message):
    with pytest.raises(ArgumentError, match=message):
        load_dataset(source).fitted_to(*places)


def test_images_are_uint8_and_become_channel_first():
    data = images(1)
    fitted = load_dataset(data).fitted_to(IMAGES, TWO)
    assert fitted.observations.dtype == np.uint8
    np.testing.assert_array_equal(fitted.observations[2], data["observations"][2].transpose(2, 0, 1))


def test_rounding_of_actions_at_their_bounds_is_no_error():
    actions = np.tile(np.float64([2 + 1e-6, -1 - 1e-6]), (6, 1))
    fitted = load_dataset(arrays(actions=actions)).fitted_to(VECTOR, BOX)
    assert fitted.actions.dtype == np.float32 and (fitted.actions == [2, -1]).all()

"""All sources give the same transitions, wrong data is refused, and an agent's data is as the environment gave it."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, Player
from sb3_ppg.arrays import map_arrays
from sb3_ppg.offline import Dataset, load_dataset, record, save_as_minari
from sb3_ppg.offline.data import COLUMNS
from sb3_ppg.zoo.environments import CutEpisodes
from tests.helpers import BOX, DICT, SMALL, VECTOR, RandomEnv, Reusing, image_space, masked_envs, random_envs
from tests.offline.test_bcq import THREE
from tests.test_checking import without_any_last

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
    for name in COLUMNS:
        compare = partial(np.testing.assert_allclose, rtol=0, atol=1e-6, err_msg=name)
        map_arrays(compare, getattr(one, name), getattr(other, name))


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
    assert dataset.ends[-1] == 39  # as 19, an environment's last transition
    scaled = model.policy.scale_action(dataset.actions[:20])
    np.testing.assert_allclose(scaled, np.roll(buffer.actions[:, 0], -oldest, axis=0), atol=1e-6)
    dataset.fitted_to(VECTOR, BOX)

    model.save_replay_buffer(tmp_path / "buffer.pkl")
    assert_same(load_dataset(tmp_path / "buffer.pkl"), dataset)


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


def test_a_minari_data_set_by_name_folder_and_file(store):
    folder = store / "test/small-v0/data"
    for source in ("test/small-v0", folder.parent, str(folder), folder / "main_data.hdf5"):
        assert_same(load_dataset(source), load_dataset(arrays()))


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
    "outside": (arrays(actions=np.tile([0, 2.1], (6, 1))), FITS, r"`actions` lie outside Box.* at 0 \(6 of 6 tr.*2.1"),
    "NaN observation": (nan_at("observations", 3), FITS, r"`observations` lie outside Box.* at 3 \(1 of 6 transitions\)"),
    "NaN reward": (nan_at("rewards", 5), FITS, r"`rewards` are NaN or infinite at 5"),
    "NaN end": (nan_at("terminations", 4), FITS, r"`terminations` are neither 0 nor 1 at 4 \(1 of 6 transitions\): nan"),
    "dictionary": (arrays(observations={"a": np.zeros(6)}, next_observations={"a": np.zeros(6)}), FITS, "have several parts"),
    "tuple": (arrays(observations=(np.zeros(6),), next_observations=(np.zeros(6),)), FITS, "have several parts"),
    "tuple of actions": (arrays(actions=(np.zeros(6), np.zeros(6))), FITS, "recorded actions are arrays of numbers"),
    "list of dictionaries": (
        arrays(observations=[{"a": 0}] * 6, next_observations=[{"a": 0}] * 6),
        (A_DICT, BOX),
        "`observations` are no numbers; of a Dict space, use a dictionary of arrays",
    ),
    "unscaled buffer": (filled(1, 102, 102), FITS, r"the replay buffer has actions outside \[-1, 1\]"),  # the last one is 1.01
    "empty": ({name: array[:0] for name, array in arrays().items()}, FITS, "is empty"),
    "empty buffer": (ReplayBuffer(5, VECTOR, BOX), FITS, "the replay buffer is empty"),
    "lengths": (arrays(rewards=np.zeros(5)), FITS, r"different lengths: .*'rewards': 5"),
    "reward's shape": (arrays(rewards=np.zeros((6, 1))), FITS, r"`rewards` have shape \(6, 1\)"),
    "D4RL's names": (
        {name.replace("terminations", "terminals"): array for name, array in arrays().items()},
        FITS,
        "has the arrays .*terminals.*use observations, .*D4RL's terminals and timeouts are our terminations and truncations",
    ),
    "a name too many": (arrays(infos=np.zeros(6)), FITS, "has the arrays .*infos, which cannot work"),
    "a number": (3, FITS, r"`dataset`=int cannot work"),
    "Discrete": (arrays(actions=np.array([0, 1, 0, 1, 2, 0])), (VECTOR, TWO), r"lie outside Discrete\(2\) at 4"),
    "half open": (arrays(actions=np.full((6, 1), -5.0)), (VECTOR, HALF_OPEN), r"`actions` lie outside Box.* at 0"),
    "fraction in a Box": (arrays(actions=np.full((6, 1), 2.5)), (VECTOR, WIDE), r"`actions` lie outside Box.* at 0"),
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


def test_observations_may_be_rounded_once():
    exact = np.random.default_rng(0).normal(size=(7, 3))
    for first, second in ((np.float32, np.float64), (np.float64, np.float32)):
        given = arrays(observations=exact[:6].astype(first), next_observations=exact[1:].astype(second))
        ends = load_dataset(given | dict(terminations=np.zeros(6), truncations=np.zeros(6))).ends
        assert ends.tolist() == [5]


def test_other_files_than_minaris_are_refused(tmp_path):
    (tmp_path / "hopper.hdf5").write_bytes(b"")
    for name in ("hopper.hdf5", "main_data.hdf5"):
        with pytest.raises(ArgumentError, match="is no file of a Minari data set"):
            load_dataset(str(tmp_path / name))


def test_images_are_uint8_and_become_channel_first():
    data = images(1)
    fitted = load_dataset(data).fitted_to(IMAGES, TWO)
    assert fitted.observations.dtype == np.uint8
    np.testing.assert_array_equal(fitted.observations[2], data["observations"][2].transpose(2, 0, 1))


def test_images_whose_shape_fits_stay_as_they_are():
    cubes = np.random.default_rng(0).integers(0, 255, (6, 3, 3, 3), dtype=np.uint8)
    data, cube = arrays(observations={"a": cubes}, next_observations={"a": cubes}, actions=np.zeros(6)), image_space(3, 3, 3)
    np.testing.assert_array_equal(load_dataset(data).fitted_to(spaces.Dict(a=cube), TWO).observations["a"], cubes)


def test_rounding_of_actions_at_their_bounds_is_no_error():
    actions = np.tile(np.float64([2 + 1e-6, -1 - 1e-6]), (6, 1))
    fitted = load_dataset(arrays(actions=actions)).fitted_to(VECTOR, BOX)
    assert fitted.actions.dtype == np.float32 and (fitted.actions == [2, -1]).all()


def test_a_recording_is_the_environments_before_normalization():
    env = VecNormalize(make_vec_env("CartPole-v1", 3, seed=0))
    agent = PPG("MlpPolicy", env, **SMALL).learn(200)
    before, count = env.obs_rms.mean.copy(), env.obs_rms.count
    data = record(agent, env, 301, seed=3)
    assert len(data) == 303 and (data.rewards == 1).all()  # equally many of each environment
    assert env.obs_rms.count == count and (env.obs_rms.mean == before).all()
    inside = np.setdiff1d(np.arange(302), data.ends)
    np.testing.assert_array_equal(data.next_observations[inside], data.observations[inside + 1])
    terminal = data.next_observations[data.terminations]
    assert (data.terminations.sum() > 3) and ((abs(terminal[:, 0]) > 2.4) | (abs(terminal[:, 2]) > 0.2)).all()
    assert set() < set(data.ends[data.truncations[data.ends]]) <= {100, 201, 302}  # where the recording ends


def test_time_limits_are_truncations_and_environments_do_not_run_into_each_other():
    agent = PPG("MlpPolicy", random_envs(VECTOR, BOX), **SMALL)
    data = record(agent, random_envs(VECTOR, BOX, n_envs=1, episode_length=10), 35)
    assert data.ends.tolist() == [9, 19, 29, 34] and not data.terminations.any()
    assert record(agent, random_envs(VECTOR, BOX), n_steps=6).truncations.tolist() == [False, False, True] * 2


def test_environments_that_reuse_their_arrays_are_recorded_as_others():
    agent = PPG("MultiInputPolicy", random_envs(DICT, BOX), **SMALL)
    envs = (random_envs(DICT, BOX), Reusing(random_envs(DICT, BOX)))
    assert_same(*(record(agent, env, 50, deterministic=True, seed=1) for env in envs))


def test_noise_and_random_episodes_are_as_asked():
    """The agent always takes action 2 of 2, 3 and 4, or the middle of the box."""

    class Still:
        def predict(self, observations, state, starts, deterministic):
            action = np.full(2, 2) if is_discrete else np.tile((BOX.low + BOX.high) / 2, (2, 1))
            return action, state

    is_discrete = True
    env = random_envs(VECTOR, THREE, episode_length=10)
    assert (record(Still(), env, 200).actions == 2).all()
    assert np.mean(record(Still(), env, 2000, noise=0.3, seed=0).actions == 2) == pytest.approx(0.7 + 0.1, abs=0.03)
    episodes = record(Still(), env, 2000, random_episodes=0.25, seed=0).actions.reshape(-1, 10)
    assert np.mean((episodes == 2).all(axis=1)) == pytest.approx(0.75, abs=0.05)

    is_discrete, env = False, random_envs(VECTOR, BOX, episode_length=10)
    actions = record(Still(), env, 2000, noise=0.2, seed=0).actions
    np.testing.assert_allclose(actions.std(axis=0), 0.2 * 1.5, rtol=0.05)
    assert record(Still(), env, 20, noise=5, seed=0).actions.max() == 2
    with pytest.raises(ArgumentError, match="`random_episodes`=2 cannot work"):
        record(Still(), env, 10, random_episodes=2)


def test_a_normalizer_is_the_outermost_wrapper_unless_it_changes_nothing():
    """RL Zoo evaluates so agents that were trained on images with normalized rewards."""
    env = VecNormalize(random_envs(image_space(36, 36, 1), THREE), norm_obs=False)
    agent = PPG("CnnPolicy", env, **SMALL)
    assert agent.get_env() is not env  # which SB3 has transposed
    with pytest.raises(ArgumentError, match="outermost"):
        record(agent, agent.get_env(), 10)
    env.training = env.norm_reward = False
    data = record(agent, agent.get_env(), 10)
    np.testing.assert_array_equal(data.rewards, data.next_observations[:, 0, 0, 0])


@pytest.mark.parametrize(
    ("policy", "space", "actions"),
    [("MultiInputPolicy", DICT, BOX), ("CnnPolicy", image_space(40, 36, 3), THREE)],
    ids=["Dict", "images"],
)
def test_a_recording_survives_minari(policy, space, actions, store):
    env = random_envs(space, actions)
    agent = PPG(policy, env, **SMALL)
    data = record(agent, agent.get_env(), 50, seed=0)
    places = agent.observation_space, agent.action_space
    save_as_minari(data, "test/recorded-v0", *places)
    loaded = load_dataset("test/recorded-v0").fitted_to(*places)
    assert_same(loaded, data.fitted_to(*places))


def test_the_environment_that_is_recovered_has_the_spaces_options_and_wrappers_of_the_recorded_one(store):
    minari = pytest.importorskip("minari")
    rescaled = dict(wrapper_class=RescaleAction, wrapper_kwargs=dict(min_action=-0.5, max_action=0.5))
    plain = make_vec_env("Pendulum-v1", 2, env_kwargs=dict(g=5.0))
    wrapped = make_vec_env("Pendulum-v1", 2, **rescaled)
    cut = make_vec_env("Pendulum-v1", 2, wrapper_class=lambda env: CutEpisodes(RescaleAction(env, -0.5, 0.5)))
    for name, env in (("plain", plain), ("wrapped", wrapped), ("cut", cut), ("stacked", VecFrameStack(plain, 2))):
        data = record(PPG("MlpPolicy", env, **SMALL), env, 20, seed=0)
        save_as_minari(data, f"test/{name}-v0", env.observation_space, env.action_space, env.get_attr("spec")[0])
        dataset = minari.load_dataset(f"test/{name}-v0")
        if name == "stacked":
            assert dataset.spec.env_spec is None
            continue
        recovered = dataset.recover_environment()
        assert (recovered.observation_space, recovered.action_space) == (env.observation_space, env.action_space)
        assert recovered.unwrapped.g == (5 if name == "plain" else 10)
    save_as_minari(data, "test/bare-v0", env.observation_space, env.action_space, "Pendulum-v1")
    assert minari.load_dataset("test/bare-v0").spec.env_spec is None


def test_a_name_that_cannot_be_saved_under_is_refused_and_leaves_nothing(store):
    """An environment that a function makes is saved without its description, in which Minari stores names of classes."""
    data = load_dataset(arrays())
    gym.register("MadeByAFunction-v0", entry_point=lambda: RandomEnv(VECTOR, BOX))
    try:
        save_as_minari(data, "test/there-v0", VECTOR, BOX, env_id="MadeByAFunction-v0")
    finally:
        del gym.registry["MadeByAFunction-v0"]
    for name, why in (("test/no_version", "use a name"), ("not a name-v0", "use a name"), ("test/there-v0", "/.* exists")):
        with pytest.raises(ArgumentError, match=f"cannot be saved as '{name}': {why}"):
            save_as_minari(data, name, VECTOR, BOX)
    assert {*pytest.importorskip("minari").list_local_datasets()} == {"test/small-v0", "test/there-v0"}
    assert len(load_dataset("test/there-v0")) == 6


def test_an_end_without_a_last_observation_is_recorded_if_nothing_needs_it():
    env = without_any_last()
    data = record(PPG("MlpPolicy", env, **SMALL), env, 60, seed=0)
    assert data.terminations.sum() > 2


def test_agents_that_need_masks_and_nested_actions_are_refused():
    with pytest.raises(ArgumentError, match="`agent` cannot be recorded: MaskablePPG needs action masks"):
        record(MaskablePPG("MlpPolicy", masked_envs(), **SMALL), masked_envs(), 10)
    with pytest.raises(ArgumentError, match="needs action masks"):
        record(Player(MaskablePPG("MlpPolicy", masked_envs(), **SMALL), epsilon=0.1), masked_envs(), 10)
    env = random_envs(VECTOR, spaces.Dict(a=THREE))
    with pytest.raises(ArgumentError, match="recorded actions are arrays of numbers, these are Dict"):
        record(PPG("MlpPolicy", env, **SMALL), env, 10)

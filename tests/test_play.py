"""Play with epsilon and temperature: between the most likely actions and samples."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import set_random_seed

from sb3_ppg import PPG, ArgumentError, MaskablePPG, Player, RecurrentPPG
from sb3_ppg.actions import Actions
from tests.helpers import BOX, MASKED_ACTIONS, SMALL, THREE_ACTIONS, VECTOR, RandomEnv, masked_envs, random_envs

N_STEPS = 25
PROBABILITIES = np.array([0.5, 0.3, 0.2])  # of the actions that the masks allow


class Choice(RandomEnv):
    """The reward is 1 for the first of four actions; the mask excludes the last."""

    def __init__(self):
        super().__init__(VECTOR, spaces.Discrete(4), N_STEPS)

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(action == 0), *rest

    def action_masks(self) -> np.ndarray:
        return np.array([True, True, True, False])


ALGORITHMS = {each.__name__: each for each in (PPG, RecurrentPPG, MaskablePPG, PPO, RecurrentPPO, MaskablePPO)}


def chooser(name: str, **kwargs):
    """Make a model that takes the actions with ``PROBABILITIES`` in every state, and what its ``predict`` needs."""
    policy, masked = "MlpLstmPolicy" if "Recurrent" in name else "MlpPolicy", "Maskable" in name
    model = ALGORITHMS[name](policy, make_vec_env(Choice, 2, seed=0), device="cpu", **kwargs)
    with th.no_grad():
        model.policy.action_net.weight.zero_()
        # Without masks the last action has no probability; with masks it would be the most likely one
        model.policy.action_net.bias.copy_(th.as_tensor([*np.log(PROBABILITIES), 5.0 if masked else -50.0]))
    n = 20_000
    return model, np.zeros((n, 3), np.float32), dict(action_masks=np.tile([1, 1, 1, 0], (n, 1))) if masked else {}


def shares(actions: np.ndarray) -> np.ndarray:
    return np.bincount(actions, minlength=4)[:3] / len(actions)


@pytest.mark.parametrize("name", ["PPG", "RecurrentPPG", "MaskablePPG"])
def test_epsilon_is_the_probability_of_a_sample_and_samples_have_a_temperature(name):
    """
    With ε = 0.4: 0.6 + 0.4 * 0.5 = 0.8, 0.4 * 0.3 = 0.12 and 0.4 * 0.2 = 0.08. With T = 1/2 probabilities are squared: 0.25,
    0.09 and 0.04, over 0.38. The model keeps its own.
    """
    model, observations, context = chooser(name, seed=0)
    squared = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    epsilon = dict(deterministic=True, epsilon=0.4)
    for options, expected in (
        (epsilon, [0.8, 0.12, 0.08]),
        (dict(deterministic=True, epsilon=1.0), PROBABILITIES),
        (dict(temperature=0.5), squared),
        (epsilon | dict(temperature=0.5), 0.6 * np.eye(3)[0] + 0.4 * squared),
        ({}, PROBABILITIES),
    ):
        actions, _ = model.predict(observations, **options, **context)
        np.testing.assert_allclose(shares(actions), expected, atol=0.01)
    assert not model.predict(observations, deterministic=True, epsilon=0.0, **context)[0].any()


def test_an_environment_gets_a_whole_sample_or_the_whole_mode():
    model = PPG("MlpPolicy", random_envs(VECTOR, BOX), **SMALL)
    observations = np.random.default_rng(0).random((10_000, 3), np.float32)
    modes, _ = model.predict(observations, deterministic=True)
    actions, _ = model.predict(observations, deterministic=True, epsilon=0.3)
    is_mode = actions == modes
    clipped = np.isin(actions, [-1.0, 2.0])  # where two samples may be equal
    is_whole = ~clipped.any(axis=1)
    assert (is_mode[is_whole].all(axis=1) | ~is_mode[is_whole].any(axis=1)).all()
    assert is_mode.all(axis=1).mean() == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("actions", [THREE_ACTIONS, spaces.MultiBinary(3), spaces.Box(-1, 1, (2, 2))], ids=str)
def test_actions_have_the_form_of_those_without_epsilon(actions):
    """For one observation and for several; the same seed gives the same actions."""
    model = PPG("MlpPolicy", random_envs(VECTOR, actions), **SMALL)
    for observation in (np.zeros(3, np.float32), np.zeros((1, 3), np.float32), np.zeros((5, 3), np.float32)):
        plain, _ = model.predict(observation, deterministic=True)
        found = []
        for _ in range(2):
            set_random_seed(7)
            found += [model.predict(observation, deterministic=True, epsilon=0.5)[0] for _ in range(10)]
        assert all(type(each) is type(plain) and each.shape == plain.shape and each.dtype == plain.dtype for each in found)
        np.testing.assert_array_equal(found[:10], found[10:])
        assert any((each != found[0]).any() for each in found)


def test_memory_goes_on_as_without_epsilon():
    model, *_ = chooser("RecurrentPPG")
    observations = np.ones((6, 3), np.float32)
    states, starts, plain = None, np.ones(6, bool), None
    for _ in range(3):
        _, states = model.predict(observations, states, starts, deterministic=True, epsilon=0.5, temperature=2.0)
        _, plain = model.predict(observations, plain, starts, deterministic=True)
        starts = np.array([True, False, False, False, False, False])
    np.testing.assert_array_equal(states, plain)


SPACES = {"MultiDiscrete": spaces.MultiDiscrete([3, 4]), "MultiBinary": spaces.MultiBinary(4), "Gaussian": BOX, "gSDE": BOX}


@pytest.mark.parametrize("kind", [*SPACES, *(f"masks, {name}" for name in MASKED_ACTIONS)])
def test_log_odds_are_divided_by_the_temperature(kind):
    """log π_T(a|s) - log π_T(b|s) = (log π(a|s) - log π(b|s)) / T for any two actions; π stays as it was."""
    if kind in SPACES:
        model = PPG("MlpPolicy", random_envs(VECTOR, SPACES[kind]), use_sde=kind == "gSDE", **SMALL)
    else:
        model = MaskablePPG("MlpPolicy", masked_envs(VECTOR, kind.removeprefix("masks, ")), **SMALL)
    with th.no_grad():
        model.policy.action_net.weight.mul_(100)  # SB3 begins with nearly equal probabilities
        distribution = model.policy.get_distribution(th.rand(64, 3))
        actions = [distribution.sample(), distribution.sample().flip(0)]
        before = [distribution.log_prob(action) for action in actions]
        for temperature in (0.5, 3.0):
            tempered = model.policy.actions.tempered(distribution, temperature)
            first, second = (tempered.log_prob(action) for action in actions)
            th.testing.assert_close(first - second, (before[0] - before[1]) / temperature, rtol=1e-4, atol=1e-4)
            assert all(th.equal(distribution.log_prob(action), was) for action, was in zip(actions, before, strict=True))
            assert th.equal(tempered.mode(), distribution.mode())


@pytest.mark.parametrize("is_squashed", [False, True])
@pytest.mark.parametrize("cls, policy", [(PPG, "MlpPolicy"), (RecurrentPPG, "MlpLstmPolicy")])
def test_with_gsde_each_sample_has_noise_of_its_own_and_a_rollout_keeps_its_noise(cls, policy, is_squashed):
    """Samples have the mean and the standard deviation of π(a|s), also where there are as many as in a rollout's step."""
    kwargs = dict(log_std_init=-3.0, squash_output=is_squashed)
    model = cls(policy, random_envs(VECTOR, BOX), use_sde=True, **SMALL, policy_kwargs=kwargs).learn(16)
    observations, starts, before = np.ones((20_000, 3), np.float32), np.ones(20_000), model.policy.action_dist.exploration_mat
    distribution = model.policy.evaluate(th.ones(1, 3), reads=("distribution",)).distribution.distribution
    mean, std = (getattr(distribution, name)[0].detach().numpy() for name in ("mean", "stddev"))
    for temperature in (1.0, 0.25):
        actions, _ = model.predict(observations, episode_start=starts, temperature=temperature)
        actions = model.policy.actions.from_environments(th.as_tensor(actions)).numpy()
        actions = np.arctanh(actions) if is_squashed else actions
        np.testing.assert_allclose(actions.mean(axis=0), mean, atol=0.05 * std.min())
        np.testing.assert_allclose(actions.std(axis=0), temperature**0.5 * std, rtol=0.03)
    two = [model.predict(observations[:2], episode_start=starts[:2])[0] for _ in range(2)]
    assert len(np.unique(np.concatenate(two), axis=0)) == 4
    assert model.policy.action_dist.exploration_mat is before


def test_what_cannot_work_is_refused():
    model, observations, _ = chooser("PPG")
    for kwargs, message in (
        (dict(epsilon=1.5, deterministic=True), "`epsilon`=1.5 cannot work: use a number from 0 to 1"),
        (dict(epsilon=float("nan"), deterministic=True), "`epsilon`=nan"),
        (dict(temperature=0.0), "`temperature`=0.0 cannot work: use a finite number above 0"),
        (dict(epsilon=0.1), "`epsilon`=0.1 cannot work: all actions are samples already; use deterministic=True"),
    ):
        with pytest.raises(ArgumentError, match=message):
            model.predict(observations, **kwargs)
    with pytest.raises(ArgumentError, match=r"`temperature`=2\.0 cannot work: PPO is no algorithm of sb3_ppg; leave it 1"):
        Player(chooser("PPO")[0], temperature=2.0)
    with pytest.raises(ArgumentError, match=r"`temperature`=2\.0 cannot work: CategoricalDistribution has none"):
        Actions.tempered(model.policy.actions, model.policy.action_dist, 2.0)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_callback_evaluates_with_epsilon_and_saves_the_model(name, tmp_path):
    """
    The page derives it from SB3's callback. The most likely action returns 25; with ε = 0.4 the expected return is
    0.8 * 25 = 20 (see above).
    """

    class EpsilonEvalCallback(MaskableEvalCallback if "Maskable" in name else EvalCallback):
        def _init_callback(self):
            super()._init_callback()
            self.model = Player(self.model, epsilon=0.4)

    model, *_ = chooser(name, learning_rate=0.0, n_steps=16, batch_size=32, seed=0)
    options = dict(n_eval_episodes=60, eval_freq=16, best_model_save_path=str(tmp_path), verbose=0)
    callback = EpsilonEvalCallback(make_vec_env(Choice, 20, seed=0), **options)
    model.learn(32, callback=callback)
    assert callback.last_mean_reward == pytest.approx(20, abs=1)
    assert type(model).load(tmp_path / "best_model.zip", device="cpu").num_timesteps == 32

"""A run that is stopped or killed goes on as if nothing had happened."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, DrawnWeights, MaskablePPG, PhasicCheckpointCallback, RecurrentPPG, latest_checkpoint
from sb3_ppg.family import FAMILY, with_preset
from tests.helpers import VectorRewardEnv, image_space, masked_envs, normalized_rewards, random_envs, run_in_a_new_process
from tests.saving.small_models import calls_at, everything, resumed, small

pytestmark = pytest.mark.slow


discrete = partial(random_envs, episode_length=5)
N_STEPS, N_ENVS, N_ITERATIONS = 8, 2, 6
STOPS = (1, 3, 5)  # in iterations
ROLLOUT = N_STEPS * N_ENVS
BOX = spaces.Box(-1, 1, (2,))
DICT = spaces.Dict(a=image_space(1, 36, 36), b=BOX)
SMALL_CNN = dict(features_extractor_kwargs=dict(cnn_output_dim=4))


def of_the_family(name: str) -> dict[str, Any]:
    """Return a relative's preset and the arguments that it leaves open."""
    return {"env": discrete(), **with_preset(name, {"aux_batch_size": 8}), "n_epochs": 2, "max_grad_norm": 0.5}


SETTINGS = {
    "normalised observations and rewards": lambda: dict(
        env=VecNormalize(make_vec_env("Pendulum-v1", N_ENVS, seed=0)), prior="self", prior_coef=LinearSchedule(0.2, 0.0, 1)
    ),
    "normalised dictionaries, two optimizers": lambda: dict(
        policy="MultiInputPolicy",
        env=VecNormalize(discrete(DICT), norm_obs_keys=["b"]),
        n_value_epochs=2,
        policy_kwargs=SMALL_CNN,
        n_value_warmup=2,
    ),
    "gSDE": lambda: dict(env=discrete(action_space=BOX), use_sde=True, sde_sample_freq=3),
    "LSTMs, images, recomputed states": lambda: dict(
        algorithm=RecurrentPPG,
        policy="MultiInputLstmPolicy",
        env=discrete(DICT),
        recompute_states=True,
        policy_kwargs=dict(lstm_hidden_size=4, **SMALL_CNN),
    ),
    "masks, NumPy's numbers, two schedules": lambda: dict(
        algorithm=MaskablePPG, env=masked_envs(), gamma=np.float64(0.99), clip_range=LinearSchedule(0.3, 0.1, 1)
    ),
    "vector rewards, normalised, other weights in each episode": lambda: dict(
        policy="MultiInputPolicy",
        env=make_vec_env(lambda: DrawnWeights(VectorRewardEnv()), N_ENVS, seed=0),
        reward_weights="observation",
        gamma=[0.9, 0.99],
        objective="decoupled",
        replay_kwargs=dict(policy_rollouts=2),
        **normalized_rewards(of_dictionaries=True),
    ),
    "replayed rollouts, LSTMs, two kinds of epochs": lambda: dict(
        algorithm=RecurrentPPG,
        policy="MlpLstmPolicy",
        env=VecNormalize(discrete()),
        objective="ewma",
        n_value_epochs=1,
        prior="self",
        replay_kwargs=dict(policy_rollouts=2, value_rollouts=3, policy_uses=3),
        policy_kwargs=dict(lstm_hidden_size=4),
    ),
    **{name: partial(of_the_family, name) for name, member in FAMILY.items() if member.preset},
}


def make(setting: str) -> PPG:
    phases = dict(n_epochs=2, n_policy_iterations=3, n_aux_epochs=2, n_steps=N_STEPS, batch_size=8, aux_batch_size=8)
    arguments = dict(policy="MlpPolicy", learning_rate=LinearSchedule(1e-3, 0, 1), seed=0, device="cpu")
    arguments |= phases | SETTINGS[setting]()
    return arguments.pop("algorithm", PPG)(**arguments)


def reset_environments(model: PPG) -> None:
    model.env.seed(99)
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.n_envs, dtype=bool)


stop_it = Mock(side_effect=KeyboardInterrupt)


def go_on(folder: Path, setting: str, n_threads: int) -> dict[str, th.Tensor]:
    """Go on from each stop to the next one, and at last to the end, in another process; each time from the checkpoint."""
    th.set_num_threads(n_threads)  # sums are rounded otherwise with more of them
    for next_stop in (*STOPS[1:], N_ITERATIONS):
        fresh = make(setting)
        model = resumed(folder, fresh.env, type(fresh))
        model.env.seed(99)
        callbacks = [PhasicCheckpointCallback(1, folder), calls_at("_on_rollout_start", next_stop * ROLLOUT, stop_it)]
        with suppress(KeyboardInterrupt):
            model.learn(N_ITERATIONS * ROLLOUT - model.num_timesteps, callback=callbacks, reset_num_timesteps=False)
    return everything(model)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_run_that_was_stopped_ends_where_it_would_have_ended(setting, tmp_path):
    """Stopped at each position of a phase (of 3), in two phases, continued in a new process: parameter for parameter."""
    model = make(setting)
    start = everything(model)
    resets = [calls_at("_on_rollout_start", stop * ROLLOUT, reset_environments) for stop in STOPS]
    model.learn(N_ITERATIONS * ROLLOUT, callback=resets)
    with pytest.raises(KeyboardInterrupt):
        callbacks = [PhasicCheckpointCallback(1, tmp_path), calls_at("_on_rollout_start", STOPS[0] * ROLLOUT, stop_it)]
        make(setting).learn(N_ITERATIONS * ROLLOUT, callback=callbacks)
    expected, end = everything(model), run_in_a_new_process(go_on, tmp_path, setting, th.get_num_threads())
    assert end.keys() == expected.keys()
    for name, value in expected.items():
        assert th.equal(end[name], value), name
    assert any(not th.equal(value, end[name]) for name, value in start.items() if name.startswith("policy "))


# ---- killed ----

N_KILLS = 14


def train_on(folder: Path) -> None:
    """Train forever from the latest checkpoint, and save another one after each iteration."""
    model = resumed(folder) if any(folder.glob("*.zip")) else small()
    model.learn(10**6, callback=PhasicCheckpointCallback(1, folder, keep=2), reset_num_timesteps=False)


def kill_often(folder: Path) -> tuple[int, int]:
    """
    Fork runs from a process that has imported everything. Kill every second one while it writes, and the others a random
    while after their first checkpoint. The files decide, not the clock, because the machine may be busy.
    """
    th.set_num_threads(1)
    small().learn(8 * 3, callback=PhasicCheckpointCallback(1, folder / "warm-up"))  # modules that are imported late
    last, halves = 0, 0
    for number, delay in enumerate(np.random.default_rng(0).uniform(0.0, 0.2, size=N_KILLS)):
        checkpoints = set(folder.glob("*.zip"))
        pid = os.fork()
        if pid == 0:
            try:
                train_on(folder)
            finally:
                os._exit(1)  # training for ever cannot end, but with an error
        while set(folder.glob("*.zip")) <= checkpoints:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "A run did not find a complete checkpoint"
        time.sleep(delay)
        while number % 2 and not any(folder.glob(".*.tmp")):
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "A run ended"
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        halves += any(folder.glob(".*.tmp"))
        if any(folder.glob("*.zip")):
            steps = int(latest_checkpoint(folder).name.split("_")[2])
            assert steps >= last
            last = steps
    return last, halves


def test_a_run_that_is_killed_at_many_moments_goes_on_each_time(tmp_path):
    steps, halves = run_in_a_new_process(kill_often, tmp_path)
    assert steps >= N_KILLS * 8  # it got on
    assert halves >= 3  # some were killed while they saved

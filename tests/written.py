"""
A sample of each kind of file that this package writes, kept for ever: later versions read them. Before a release::

    python -m tests.written    # tests/data/written_before/VERSION
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import sb3_ppg
from sb3_ppg import PPG, MaskablePPG, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer, hub
from sb3_ppg.family import with_preset
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION, write_checksums
from sb3_ppg.zoo.sharing import ZOO, describe_environment
from tests.distributed.several import in_processes

FOLDER = Path(__file__).parent / "data" / "written_before"
# A phase of three rollouts, and two of the next
SMALL = dict(n_steps=4, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, seed=0, device="cpu")
N_TIMESTEPS, N_ENVS = 40, 2
NETWORKS = dict(net_arch=[4])


def cartpole() -> VecEnv:
    return make_vec_env("CartPole-v1", N_ENVS, seed=0)


class Sample(NamedTuple):
    algorithm: type[PPG]
    policy: str
    make_env: Callable[[], VecEnv]
    arguments: Mapping[str, Any] = {}


SAMPLES = {
    "ppg": Sample(
        PPG,
        "MlpPolicy",
        lambda: VecNormalize(cartpole()),
        dict(
            rollout_buffer_class=NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer()),
            policy_kwargs=NETWORKS,
        ),
    ),
    "recurrent": Sample(
        RecurrentPPG,
        "MlpLstmPolicy",
        cartpole,
        dict(policy_kwargs=dict(lstm_hidden_size=4, net_arch=[], architecture="detached")),
    ),
    "maskable": Sample(
        MaskablePPG,
        "MlpPolicy",
        lambda: make_vec_env(lambda: InvalidActionEnvDiscrete(dim=4, n_invalid_actions=2), N_ENVS),
        dict(policy_kwargs=NETWORKS),
    ),
    "replay": Sample(
        PPG,
        "MlpPolicy",
        cartpole,
        dict(objective="ewma", replay_kwargs=dict(policy_rollouts=2), kl_coef=1.0, clip_range=None, policy_kwargs=NETWORKS),
    ),
    "idaac": Sample(PPG, "MlpPolicy", cartpole, with_preset("idaac", dict(n_value_epochs=2, policy_kwargs=NETWORKS))),
    "gsde": Sample(
        PPG,
        "MlpPolicy",
        lambda: make_vec_env("Pendulum-v1", N_ENVS, seed=0),
        dict(use_sde=True, n_value_epochs=1, policy_kwargs=NETWORKS),  # two optimizers
    ),
    "ddcpg": Sample(
        PPG,
        "MlpPolicy",
        cartpole,
        dict(
            objective="ddcpg",
            objective_kwargs=dict(hidden_size=4),
            policy_kwargs=dict(architecture="shared", **NETWORKS),
        ),
    ),
}


def make(name: str) -> PPG:
    cls, policy, make_env, arguments = SAMPLES[name]
    return cls(policy, make_env(), **{**SMALL, **arguments})


def weights(model: PPG) -> np.ndarray:
    """Of the policy and of what the objective owns."""
    modules = (model.policy, model.objective)
    return np.concatenate([weight.detach().numpy().ravel() for module in modules for weight in module.parameters()])


def write(model: PPG, folder: Path) -> None:
    """As a zip file with the rest of the training, and as a shared repository."""
    folder.mkdir(parents=True)
    model.save(folder / "model.zip")
    model.save_aux_buffer(folder / "aux.npz")
    hub.save_pretrained(model, folder)
    np.save(folder / "parameters.npy", weights(model))


def write_in_several(folder: Path) -> None:
    """In each process of a group."""
    model = make("ppg").learn(2 * N_TIMESTEPS)
    model.save(folder / "model.zip")
    model.save_aux_buffer(folder / "aux.npz")
    np.save(folder / f"observations_{sb3_ppg.distributed.collectives.rank()}.npy", np.stack(model.aux_buffer.observations))


def main() -> None:
    """Write them all."""
    folder = FOLDER / sb3_ppg.__version__
    for name in SAMPLES:
        write(make(name).learn(N_TIMESTEPS), folder / name)
    config = {"normalize": "dict(norm_obs=True)", "env_wrapper": ["rl_zoo3.wrappers.HistoryWrapper"]}
    describe_environment("CartPole-v1", config, {"max_episode_steps": 100}, folder / "ppg" / ZOO)
    write_checksums(folder / "ppg", [DESCRIPTION, ARRAYS, ZOO])
    several = folder / "two_processes"
    several.mkdir()
    with TemporaryDirectory() as results:
        in_processes(write_in_several, Path(results), several)


if __name__ == "__main__":
    main()

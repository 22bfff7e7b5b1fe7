"""Code of a user, for `make type`, which checks that the annotations allow it. Nothing here is called."""

from typing import Any

import gymnasium
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.ppo import MlpPolicy as PlainPolicy

import sb3_ppg
from sb3_ppg import PPG, MaskablePPG, PhasicCallback, RecurrentPPG, latest_checkpoint, zoo
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.policies.lstm import RecurrentPhasicActorCriticPolicy


class Mixin(PhasicActorCriticPolicy):
    """A policy of one's own, and one with LSTMs, as on docs/guides/own_networks.md."""


class WithMemory(Mixin, RecurrentPhasicActorCriticPolicy):
    """The mixin with LSTMs."""


class Counts(PhasicCallback):
    """Reads what the auxiliary phase has."""

    def on_aux_phase_end(self) -> None:  # type: ignore[explicit-override]
        print(self.model.aux_buffer.n_samples)


def trains(env: gymnasium.Env[Any, Any]) -> None:
    """Train, resume, copy and play, with all kinds of environments and of policy classes."""
    zoo.register()
    print(sb3_ppg.RecurentPPG)  # type: ignore[attr-defined]  # there is no such name, nor the next one
    print(zoo.regster)  # type: ignore[attr-defined]
    vectors = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    model = PPG(PlainPolicy, env).learn(10_000, Counts(), log_interval=None)
    MaskablePPG(MaskableActorCriticPolicy, env).learn(10_000, log_interval=None)
    RecurrentPPG(WithMemory, vectors, reward_weights=[0.7, 0.3], gamma=[0.99, 0.95])
    model.set_env(vectors)
    model.set_env("CartPole-v1")
    loaded = PPG.load("model", env="CartPole-v1", n_steps=64)
    loaded.set_parameters(model.get_parameters())
    if (checkpoint := latest_checkpoint("checkpoints")) is not None:
        loaded.set_parameters(checkpoint)
    action, _state = loaded.predict(env.reset()[0])
    print(action.items(), PPG.load("model", evn=env, device=3))  # type: ignore[arg-type]  # `device`; `evn` may be an attribute

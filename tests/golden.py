"""Trainings of the authors' codes, done again by ours from recorded rollouts, orders and draws: see data/README.md."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

from sb3_ppg import PPG, ImpalaCNN, NormalizedRewardRolloutBuffer, losses
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.objectives import RolloutEnd
from sb3_ppg.optim import epoch as optimization
from sb3_ppg.optim.epoch import Epoch, optimize_epoch

DATA = Path(__file__).parent / "data"
# Their heads of the policy, and networks of objectives
HEADS = {"pi_head": "action_net", "aux_vf_head": "aux_value_net", "pi_vhead": "value_net", "vf_vhead": "value_net"}
NETWORKS = {"adv_head": "advantage_head", "dyna": "discriminator", "order_clf": "classifier"}


class ImageEnv(gym.Env):
    """Spaces only: the rollouts come from the file."""

    observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(5)


class DoubleImpalaCNN(ImpalaCNN):
    """SB3 casts observations to float32 before it divides by 255; this divides in float64."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations.double() / 255)


class DoubleRolloutBuffer(RolloutBuffer):
    """SB3's arrays are float32."""

    def reset(self) -> None:
        super().reset()
        for name in ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages"):
            setattr(self, name, getattr(self, name).astype(np.float64))


class DoubleNormalizedRewardRolloutBuffer(DoubleRolloutBuffer, NormalizedRewardRolloutBuffer):
    """And rewards are normalised."""


def channels_first(images: np.ndarray) -> np.ndarray:
    """(..., H, W, C) to (..., C, H, W)."""
    return np.moveaxis(images, -1, -3).copy()


class Numbers(dict[str, np.ndarray]):
    """Of a file; it knows which of them nobody has used."""

    def __init__(self, file: str):
        with np.load(DATA / f"{file}.npz") as archive:
            super().__init__(archive)
        self.unused = {key for key in self if not key.startswith("settings/")}

    def __getitem__(self, key: str) -> np.ndarray:
        self.unused.discard(key)
        return super().__getitem__(key)


class GoldenTraining:
    """
    A model with the recorded weights, in float64, that is given recorded rollouts, orders of minibatches and noisy targets.

    :param file: of tests/data, without its ending
    :param monkeypatch: which replaces the draws
    :param architecture: of the networks
    :param adam_eps: of all optimizers
    :param arguments: of ``PPG``
    """

    def __init__(self, file: str, monkeypatch: Any, architecture: str, adam_eps: float, **arguments: Any):
        self.golden = Numbers(file)
        setting = self.setting
        self.n_envs, self.n_steps = int(setting("n_envs")), int(setting("n_steps"))
        self.model = PPG(
            "CnnPolicy",
            VecTransposeImage(DummyVecEnv([ImageEnv] * self.n_envs)),
            device="cpu",
            normalize_value_targets=False,
            policy_kwargs=dict(
                architecture=architecture,
                detach_value_in_aux_phase=architecture == "detached",
                features_extractor_class=DoubleImpalaCNN,
                features_extractor_kwargs=dict(
                    channels=tuple(setting("channels")), features_dim=int(setting("outsize")), normalized_image=True
                ),
                normalize_images=False,
                optimizer_kwargs=dict(eps=adam_eps),
            ),
            **PAPERS_VALUES | dict(n_steps=self.n_steps) | arguments,
        )
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        self.policy = self.model.policy.double()
        self.model.objective.double()
        self.load_weights("weights_init")
        self.epochs: list[Epoch] = []
        self.gradient_norms: list[dict[str, float]] = []
        take_step = optimization._take_step

        def recorded_step(optimizer: th.optim.Optimizer, *args: Any) -> None:
            self._record_gradient_norms(optimizer)  # before they are clipped
            take_step(optimizer, *args)

        monkeypatch.setattr(optimization, "_take_step", recorded_step)
        self._orders: list[np.ndarray] = []
        monkeypatch.setattr(np.random, "permutation", lambda n: self._orders.pop(0))
        monkeypatch.setattr(
            "sb3_ppg.ppg.optimize_epoch",
            lambda *args, **kwargs: self.epochs.append(optimize_epoch(*args, **kwargs)) or self.epochs[-1],
        )

    def setting(self, name: str) -> Any:
        return self.golden[f"settings/{name}"]

    def named_parameters(self) -> dict[str, th.nn.Parameter]:
        """Of the policy and of the objective's own networks."""
        of_objective = {name: p for name, p in self.model.objective.named_parameters() if not name.startswith("proximal.")}
        return {**dict(self.policy.named_parameters()), **of_objective}

    def _record_gradient_norms(self, optimizer: th.optim.Optimizer) -> None:
        names = {id(parameter): name for name, parameter in self.named_parameters().items()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.gradient_norms.append({names[id(p)]: p.grad.norm().item() for p in parameters if p.grad is not None})

    # ---- weights ----

    def our_name(self, theirs: str) -> str:
        """pi_enc.cnn.dense.weight -> features_extractor.dense.weight, pi_head.bias -> action_net.bias, ..."""
        encoder, _, rest = theirs.partition(".cnn.")
        if rest:
            return {"pi_enc": "features_extractor", "vf_enc": "vf_features_extractor"}[encoder] + "." + rest
        head, _, rest = theirs.partition(".")
        return f"{HEADS[head]}.{rest}" if head in HEADS else f"{NETWORKS[head]}.{rest}"

    def weights(self, moment: str) -> dict[str, np.ndarray]:
        prefix = f"{moment}/"
        return {self.our_name(key.removeprefix(prefix)): self.golden[key] for key in self.golden if key.startswith(prefix)}

    @th.no_grad()
    def load_weights(self, moment: str) -> None:
        parameters, weights = self.named_parameters(), self.weights(moment)
        not_theirs = {name for name in parameters.keys() - weights.keys() if not name.startswith("aux_value_net.")}
        assert not not_theirs, not_theirs
        for name, value in weights.items():
            parameters[name].copy_(th.as_tensor(value))

    def check_weights(self, moment: str, module: th.nn.Module | None = None) -> None:
        parameters = self.named_parameters() if module is None else dict(module.named_parameters())
        weights = self.weights(moment)
        assert weights, moment
        for name, value in weights.items():
            ours = parameters[name].detach().numpy()
            np.testing.assert_allclose(ours, value, rtol=0, atol=1e-12, err_msg=f"{moment} {name}")

    # ---- numbers ----

    def check(self, ours: Any, key: str, scale: float = 1.0) -> None:
        """To 1e-10 of the largest entry."""
        theirs = self.golden[key]
        tolerance = 1e-10 * max(1e-3, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(np.asarray(ours) * scale, theirs, rtol=0, atol=tolerance, err_msg=key)

    def check_losses(self, epochs: list[Epoch], prefix: str, names: dict[str, tuple[str, float]]) -> None:
        """Of each step, by their names: ours, and the factor that ours lacks."""
        for theirs, (ours, scale) in names.items():
            self.check(np.concatenate([epoch.losses[ours] for epoch in epochs]), f"{prefix}/{theirs}", scale)

    def check_gradient_norms(self, norms: list[dict[str, float]], prefix: str) -> None:
        """Of each step, of each parameter that has a gradient."""
        keys = [key for key in self.golden if key.startswith(f"{prefix}/grad_norm/")]
        assert keys, prefix
        assert {self.our_name(key.removeprefix(f"{prefix}/grad_norm/")) for key in keys} == norms[0].keys()
        for key in keys:
            name = self.our_name(key.removeprefix(f"{prefix}/grad_norm/"))
            ours = np.array([step[name] for step in norms])
            self.check(ours if self.golden[key].ndim else ours[0], key)

    def check_that_all_are_used(self, but: set[str]) -> None:
        """
        :param but: parts of the names of numbers that are neither given to the model nor compared with its own
        """
        forgotten = sorted(key for key in self.golden.unused if but.isdisjoint(key.split("/")))
        assert not forgotten, forgotten

    # ---- rollouts ----

    @th.no_grad()
    def values(self, rollout: int) -> np.ndarray:
        """V(s), (env, step), of the present network."""
        images = th.as_tensor(channels_first(self.golden[f"roll{rollout}/obs"].reshape(-1, 16, 16, 3)))
        return self.policy.predict_values(images).numpy().reshape(self.n_envs, self.n_steps)

    @th.no_grad()
    def outputs(self, rollout: int) -> dict[str, np.ndarray]:
        """Log-probabilities, (env, step, action), and both values, (env, step), of the present network."""
        images = th.as_tensor(channels_first(self.golden[f"roll{rollout}/obs"].reshape(-1, 16, 16, 3)))
        evaluation = self.policy.evaluate_auxiliary(images)
        logits = losses.distribution_parameters(evaluation.distribution).numpy()
        sizes = (self.n_envs, self.n_steps)
        return {
            "logits": logits.reshape(*sizes, -1),
            "value": evaluation.values.numpy().reshape(sizes),
            "aux_value": evaluation.aux_values.numpy().reshape(sizes),
        }

    @th.no_grad()
    def fill_rollout_buffer(self, rollout: int, values: np.ndarray, log_probs: np.ndarray, rewards: str) -> None:
        """With recorded steps, and V of its end by the present network."""
        names = ("obs", "action", rewards, "episode_start", "final_obs", "final_episode_start")
        obs, actions, received, starts, final_obs, dones = (self.golden[f"roll{rollout}/{name}"] for name in names)
        buffer = self.model.rollout_buffer
        buffer.reset()
        for t in range(self.n_steps):
            step = (channels_first(obs[:, t]), actions[:, t], received[:, t], starts[:, t])
            buffer.add(*step, th.as_tensor(values[:, t]), th.as_tensor(log_probs[:, t]))
        last_values = self.policy.predict_values(th.as_tensor(channels_first(final_obs)))
        self.check(last_values.flatten(), f"roll{rollout}/final_value")
        buffer.compute_returns_and_advantage(last_values, dones)
        self.model.rollout_end = RolloutEnd(channels_first(final_obs), last_values.flatten().numpy(), dones)

    def impose_order(self, key: str, n_epochs: int) -> None:
        """Of (env, step) for each sample: the next epochs deal their minibatches so."""
        order = self.golden[key].reshape(n_epochs, -1, 2)
        self._orders += [epoch[:, 0] * self.n_steps + epoch[:, 1] for epoch in order]

    def impose_order_of_sequences(self, key: str, n_epochs: int, first_rollout: int = 0) -> None:
        """Of (env, rollout) for each sequence."""
        order = self.golden[key].reshape(n_epochs, -1, 2)
        self._orders += [(epoch[:, 1] - first_rollout) * self.n_envs + epoch[:, 0] for epoch in order]

"""PPG against the numbers of one training cycle of the authors' code, see data/README.md."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

from sb3_ppg import PPG, ImpalaCNN, NormalizedRewardRolloutBuffer, RewardNormalizer, losses
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.optim.epoch import optimize_epoch
from tests.golden import DATA, DoubleImpalaCNN, DoubleNormalizedRewardRolloutBuffer, ImageEnv

N_ENVS, N_STEPS, N_ROLLOUTS = 4, 8, 2
SETTINGS = {
    "dual": dict(policy_kwargs=dict(architecture="dual")),
    "detach": dict(policy_kwargs=dict(architecture="detached", detach_value_in_aux_phase=True)),
    "shared": dict(policy_kwargs=dict(architecture="shared")),
    "dual_kl": dict(policy_kwargs=dict(architecture="dual"), clip_range=None, kl_coef=1.0),
}


class Cycle:
    """The authors' cycle, done by PPG in ``dtype``. ``check`` compares a number with theirs."""

    def __init__(self, name: str, dtype: th.dtype):
        self.golden = np.load(DATA / f"openai_{name}.npz")
        self.double = dtype == th.float64
        settings = dict(SETTINGS[name])
        extractor = dict(
            features_extractor_class=DoubleImpalaCNN if self.double else ImpalaCNN,
            features_extractor_kwargs=dict(channels=(4, 6), features_dim=16, normalized_image=self.double),
            normalize_images=not self.double,
            optimizer_kwargs=dict(eps=1e-8),
        )
        settings["policy_kwargs"] = {**settings["policy_kwargs"], **extractor}
        self.model = PPG(
            "CnnPolicy",
            VecTransposeImage(DummyVecEnv([ImageEnv] * N_ENVS)),
            batch_size=N_ENVS * N_STEPS,
            n_aux_epochs=1,
            aux_batch_size=2 * N_STEPS,
            normalize_value_targets=False,
            rollout_buffer_class=DoubleNormalizedRewardRolloutBuffer if self.double else NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer()),
            device="cpu",
            **PAPERS_VALUES | dict(n_steps=N_STEPS, n_policy_iterations=N_ROLLOUTS) | settings,
        )
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        self.policy = self.model.policy.to(dtype)
        self.load_weights("weights_init")
        self.gradient_norms: list[dict[str, float]] = []
        for optimizer in (self.policy.optimizer, self.model.aux_optimizer):
            optimizer.register_step_pre_hook(self._record_gradient_norms)

    def _record_gradient_norms(self, *_) -> None:
        self.gradient_norms.append(
            {name: p.grad.norm().item() for name, p in self.policy.named_parameters() if p.grad is not None}
        )

    def our_name(self, theirs: str) -> str:
        """pi_enc.cnn.dense.weight -> pi_features_extractor.dense.weight, pi_head.bias -> action_net.bias, ..."""
        encoder, _, rest = theirs.partition(".cnn.")
        if rest:
            dual = self.policy.architecture == "dual"
            return {"pi_enc": "features_extractor", "vf_enc": "vf_features_extractor" if dual else "?"}[encoder] + "." + rest
        head, _, rest = theirs.partition(".")
        ours = {"pi_head": "action_net", "aux_vf_head": "aux_value_net", "pi_vhead": "value_net", "vf_vhead": "value_net"}
        return f"{ours[head]}.{rest}"

    def weights(self, moment: str) -> dict[str, np.ndarray]:
        return {
            self.our_name(key.removeprefix(f"{moment}/")): self.golden[key]
            for key in self.golden.files
            if key.startswith(f"{moment}/")
        }

    def load_weights(self, moment: str) -> None:
        parameters = dict(self.policy.named_parameters())
        weights = self.weights(moment)
        assert weights.keys() == parameters.keys()
        with th.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(th.as_tensor(value))

    def check(self, ours, key: str, scale: float = 1.0) -> None:
        # Measured: 6e-14 in float64; in float32 3e-8 absolute or 2e-6 relative, whichever is larger
        tolerance = dict(rtol=1e-12, atol=1e-13) if self.double else dict(rtol=2e-5, atol=5e-7)
        np.testing.assert_allclose(np.asarray(ours) * scale, self.golden[key], err_msg=key, **tolerance)

    def check_weights(self, moment: str) -> None:
        # Measured: 2e-15 and 2e-7. A step of Adam is up to the learning rate of 5e-4
        tolerance = 1e-13 if self.double else 2e-6
        parameters = dict(self.policy.named_parameters())
        for name, value in self.weights(moment).items():
            np.testing.assert_allclose(
                parameters[name].detach().numpy(), value, rtol=0, atol=tolerance, err_msg=f"{moment} {name}"
            )

    def check_gradient_norms(self, step: int, prefix: str) -> None:
        theirs = {self.our_name(key.removeprefix(prefix)): key for key in self.golden.files if key.startswith(prefix)}
        assert theirs, prefix
        assert self.gradient_norms[step].keys() == theirs.keys()
        for name, key in theirs.items():
            self.check(self.gradient_norms[step][name], key)

    def observations(self, rollout: int) -> th.Tensor:
        """(env * step, C, H, W)"""
        images = self.golden[f"roll{rollout}/obs"].reshape(-1, 16, 16, 3)
        return th.as_tensor(images.transpose(0, 3, 1, 2).copy())

    def policy_outputs(self, rollout: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log-probabilities (env, step, action), true values (env, step), auxiliary values (env, step)."""
        with th.no_grad():
            distribution, aux_values, values, _ = self.policy.evaluate_auxiliary(self.observations(rollout))
            logits = losses.distribution_parameters(distribution).numpy()
        return logits.reshape(N_ENVS, N_STEPS, -1), values.reshape(N_ENVS, -1).numpy(), aux_values.reshape(N_ENVS, -1).numpy()

    def fill_rollout_buffer(self, rollout: int, values: np.ndarray) -> None:
        golden = {key.split("/")[1]: self.golden[key] for key in self.golden.files if key.startswith(f"roll{rollout}/")}
        buffer = self.model.rollout_buffer
        buffer.reset()
        observations = golden["obs"].transpose(1, 0, 4, 2, 3)  # (step, env, C, H, W)
        for t in range(N_STEPS):
            buffer.add(
                observations[t],
                golden["action"][:, t],
                golden["reward_raw"][:, t],
                golden["episode_start"][:, t],
                th.as_tensor(values[:, t]),
                th.as_tensor(golden["logp_old"][:, t]),
            )
        with th.no_grad():
            last_values = self.policy.predict_values(th.as_tensor(golden["final_obs"].transpose(0, 3, 1, 2).copy()))
        buffer.compute_returns_and_advantage(last_values, golden["final_episode_start"])


@pytest.mark.parametrize("dtype", [th.float64, th.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", SETTINGS)
def test_golden_numbers(name, dtype, monkeypatch):
    cycle = Cycle(name, dtype)
    model, logged = cycle.model, cycle.model.logger.name_to_value

    for rollout in range(N_ROLLOUTS):
        key = f"roll{rollout}"
        logits, values, aux_values = cycle.policy_outputs(rollout)
        cycle.check(logits, f"{key}/logits")
        cycle.check(values, f"{key}/value")
        cycle.check(aux_values, f"{key}/aux_value")

        cycle.fill_rollout_buffer(rollout, values)
        cycle.check(model.rollout_buffer.rewards.T, f"{key}/reward_normalised")
        cycle.check(model.rollout_buffer.returns.T, f"{key}/value_target")
        old_log_prob = th.as_tensor(cycle.golden[f"{key}/logp_old"].reshape(-1))
        log_prob = cycle.policy.get_distribution(cycle.observations(rollout)).log_prob(
            th.as_tensor(cycle.golden[f"{key}/action"].reshape(-1))
        )

        model.policy_phase()

        cycle.check(model.rollout_buffer.advantages.reshape(N_ENVS, N_STEPS), f"{key}/advantage_normalised")
        phase = f"{key}/policy_phase"
        cycle.check(logged["train/policy_gradient_loss"], f"{phase}/pg")
        cycle.check(-logged["train/entropy_loss"], f"{phase}/entropy")
        cycle.check(logged["train/entropy_loss"], f"{phase}/negent", scale=model.ent_coef)
        cycle.check(logged["train/value_loss"], f"{phase}/vf", scale=model.vf_coef)
        cycle.check(logged["train/loss"] - model.vf_coef * logged["train/value_loss"], f"{phase}/pi")
        cycle.check(logged.get("train/kl_penalty", 0.0), f"{phase}/pi_kl")
        # The authors' approximate KL is the KL penalty's expression, not SB3's
        cycle.check(losses.kl_penalty(log_prob, old_log_prob.to(dtype)).item(), f"{phase}/approxkl")
        clip_range = 0.0 if model.clip_range is None else 0.2
        cycle.check(losses.clip_fraction(log_prob - old_log_prob.to(dtype), clip_range), f"{phase}/clipfrac")
        cycle.check_gradient_norms(rollout, f"{phase}/grad_norm/")
        model.aux_buffer.add(model.rollout_buffer)

    cycle.check_weights("weights_after_policy_phase")

    assert len(model.aux_buffer) == N_ROLLOUTS
    model.aux_buffer.record(model.recorded, n_sequences=3)
    old_parameters = model.aux_buffer.recorded
    targets = np.stack([cycle.golden[f"roll{r}/logits_cloning_target"] for r in range(N_ROLLOUTS)])
    for rollout in range(N_ROLLOUTS):
        ours = old_parameters[rollout * N_ENVS : (rollout + 1) * N_ENVS]
        cycle.check(ours.numpy(), f"roll{rollout}/logits_before_aux")

    # Their noisy cloning targets and their order of sequences, as (env, rollout)
    def record_golden_targets(*_) -> None:
        model.aux_buffer.recorded = th.as_tensor(targets.reshape(N_ROLLOUTS * N_ENVS, N_STEPS, -1)).to(dtype)

    order = [rollout * N_ENVS + env for env, rollout in cycle.golden["aux/minibatch_order"].reshape(-1, 2)]
    monkeypatch.setattr(model.aux_buffer, "record", record_golden_targets)
    monkeypatch.setattr(np.random, "permutation", lambda n: np.array(order))
    histories = []
    monkeypatch.setattr("sb3_ppg.ppg.optimize_epoch", lambda *args: histories.append(optimize_epoch(*args)) or histories[-1])

    model.auxiliary_phase()

    (epoch,) = histories
    for step in range(len(cycle.golden["aux/minibatch_order"])):
        cycle.check(epoch.losses["kl"][step], f"aux/step{step}/pol_distance")
        cycle.check(epoch.losses["aux_value_loss"][step], f"aux/step{step}/vf_aux")
        cycle.check(epoch.losses["value_loss"][step], f"aux/step{step}/vf_true")
        cycle.check_gradient_norms(N_ROLLOUTS + step, f"aux/step{step}/grad_norm/")
    cycle.check_weights("weights_after_aux_epoch")

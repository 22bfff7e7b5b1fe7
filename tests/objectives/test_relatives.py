"""DCPG, DDCPG, DAAC, IDAAC and DNA against the numbers of their authors' codes."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th

from tests.golden import DoubleRolloutBuffer, GoldenTraining, arguments, settings

# What they only report; logits of which the files have the probabilities too; their network, with ReLUs that work in place
NOT_COMPARED = {"kl_new_old", "order_accuracy_theirs", "logits_old", "raw_logits_target", "inplace_relu"}
# Their names of losses, ours, and the factor that ours lacks
OF_POLICY = {"action_loss": ("policy_gradient_loss", 1), "entropy": ("entropy_loss", -1)}


class RelativesTraining(GoldenTraining):
    """A run with what the files have in common."""

    def __init__(self, file: str, monkeypatch, setting: dict[str, Any], **arguments: Any):
        self.n_rollouts = setting["n_rollouts"]
        super().__init__(
            file,
            monkeypatch,
            rollout_buffer_class=DoubleRolloutBuffer,
            gamma=setting["gamma"],
            gae_lambda=setting["gae_lambda"],
            max_grad_norm=setting["max_grad_norm"],
            **arguments,
        )

    def start(self, rollout: int, values: str, held_values: str | None = None) -> None:
        """Everything up to the update; ``values`` are those of which advantages are made."""
        key, buffer = f"roll{rollout}", self.model.rollout_buffer
        self.check_outputs(rollout)
        self.fill_rollout_buffer(rollout, self.golden[f"{key}/{values}"], self.golden[f"{key}/logp_old"], "reward")
        self.check(buffer.advantages.T, f"{key}/advantage_raw")
        if held_values is not None:
            buffer.values = self.golden[f"{key}/{held_values}"].T.copy()

    def outputs_of(self, network: th.nn.Module) -> list[th.Tensor]:
        """Return a list, to which the outputs of a network are added."""
        outputs: list[th.Tensor] = []
        network.register_forward_hook(lambda *args: outputs.append(args[-1].detach()))
        return outputs


def of_ppo(setting: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of PPO from the names that DCPG and DAAC have for them."""
    names = dict(adam_eps="eps", learning_rate="lr", n_epochs="ppo_epoch", clip_range="clip_param", ent_coef="entropy_coef")
    return arguments(setting, **names) | dict(batch_size=32 // setting["num_mini_batch"])


@pytest.mark.parametrize("file", ["dcpg", "ddcpg"])
def test_delayed_critic(file, monkeypatch):
    setting = settings(file)
    dynamics = dict(dynamics_coef=setting["dyna_loss_coef"], hidden_size=setting["dyna_hidden"]) if file == "ddcpg" else {}
    training = RelativesTraining(
        file,
        monkeypatch,
        setting,
        architecture="shared",
        **of_ppo(setting),
        n_policy_iterations=setting["aux_freq"],
        n_aux_epochs=setting["aux_epoch"],
        aux_batch_size=setting["n_envs"] // setting["aux_num_mini_batch"] * setting["n_steps"],
        beta_clone=setting["policy_dist_coef"],
        objective=file,
        objective_kwargs=dict(value_distance_coef=setting["value_dist_coef"], **dynamics),
    )
    model, buffer = training.model, training.model.aux_buffer
    logits = training.outputs_of(model.objective.discriminator) if file == "ddcpg" else []
    n_phases = 0
    for rollout in range(training.n_rollouts):
        key, aux = f"roll{rollout}", f"roll{rollout}/aux_phase"
        is_last = f"{aux}/loss" in training.golden
        remembered = range(max(0, rollout + 1 - setting["buffer_size"]), rollout + 1)
        keys = (f"{aux}/logits_before/roll{{}}", f"{aux}/logits_cloning_target/roll{{}}", f"{aux}/minibatch_order")
        training.impose_auxiliary_phase(
            remembered, *keys, partial(training.check_weights, f"{key}/weights_after_policy_phase")
        )
        if file == "ddcpg" and is_last:
            impose_transitions(training, aux, monkeypatch)
        training.start(rollout, "value", held_values="value_held_to")
        training.update(rollout, "policy_phase")
        training.check_steps("joint", f"{key}/policy_phase", {**OF_POLICY, "value_dist": ("value_distance", 1)})
        if is_last:
            n_phases += 1
            names = {"value_loss": ("value_loss", 1), "kl": ("kl", 1)}
            if file == "ddcpg":
                names |= {"dyna_loss": ("dynamics_loss", 1)}
                kinds = ("true", "false_action", "false_next")
                names |= {f"dyna_loss_{kind}": (f"dynamics_{kind}", 1) for kind in kinds}
                for place, kind in enumerate(kinds):
                    by_sequence = th.stack(logits[place :: len(kinds)]).unflatten(1, (-1, training.n_steps))
                    training.check(by_sequence.squeeze(-1), f"{aux}/dyna_logits_{kind}")
            training.check_steps("auxiliary", aux, names)
            training.check_weights(f"{key}/weights_after_aux_phase")
        else:
            training.check_weights(f"{key}/weights_after_policy_phase")
    assert n_phases == 1 and len(buffer) == 1
    training.check_that_all_are_used(NOT_COMPARED)


def impose_transitions(training: GoldenTraining, aux: str, monkeypatch) -> None:
    """Their false actions and false next frames, minibatch by minibatch."""
    n_steps, objective = training.n_steps, training.model.objective
    actions = iter(training.golden[f"{aux}/false_action"])
    following = iter(training.golden[f"{aux}/false_next"])

    def false_next(n_samples: int) -> th.Tensor:
        sequence, step = np.moveaxis(next(following).reshape(-1, 2), 1, 0)
        assert len(step) == n_samples
        return th.as_tensor(sequence * n_steps + step)

    monkeypatch.setattr(objective, "draw_false_actions", lambda _: th.as_tensor(next(actions).reshape(-1)))
    monkeypatch.setattr(objective, "draw_false_next", false_next)


@pytest.mark.parametrize("file", ["daac", "idaac", "idaac_misaligned"])
def test_advantage_head(file, monkeypatch):
    setting = settings(file)
    order = dict(order_coef=setting["order_loss_coef"], hidden_size=setting["clf_hidden_size"]) if file != "daac" else {}
    training = RelativesTraining(
        file,
        monkeypatch,
        setting,
        architecture="dual",
        **of_ppo(setting),
        n_value_epochs=setting["value_epoch"],
        n_aux_epochs=0,
        objective="idaac" if order else "daac",
        objective_kwargs=dict(advantage_coef=setting["adv_loss_coef"], value_frequency=setting["value_freq"], **order),
    )
    model = training.model
    answers = training.outputs_of(model.objective.classifier) if order else []
    for rollout in range(training.n_rollouts):
        key = f"roll{rollout}"
        training.start(rollout, "value_recorded")
        if order:
            impose_pairs(training, rollout, monkeypatch)
        training.update(rollout, "policy_phase", "value_phase")
        names = {**OF_POLICY, "adv_loss": ("advantage_loss", 1)}
        phase = f"{key}/policy_phase"
        if order:
            names |= {"order_loss": ("order_loss", 1)}
            training.check_steps("adversary", f"{phase}/clf", {})
            training.check([step.losses["loss"] for step in training.steps_of("adversary")], f"{phase}/clf_loss")
            for place, moment in enumerate(("before", "after")):
                probabilities = th.stack(answers[place::2]).softmax(dim=-1)[..., 0]
                training.check(probabilities, f"{key}/policy_phase/clf_probability_{moment}")
            answers.clear()
        training.check_steps("policy", phase, names)
        training.check_weights(f"{key}/weights_after_policy_phase")
        if rollout % setting["value_freq"] == 0:
            training.check_steps("value", f"{key}/value_phase", {"value_loss": ("value_loss", model.vf_coef)})
            training.check_weights(f"{key}/weights_after_value_phase")
    not_stored = {"level", "episode_step"} if file == "idaac_misaligned" else set()
    training.check_that_all_are_used(NOT_COMPARED | not_stored)


def impose_pairs(training: GoldenTraining, rollout: int, monkeypatch) -> None:
    """Their levels, steps in episodes and pairs of frames."""
    objective, key = training.model.objective, f"roll{rollout}"
    stored = "stored_" if f"{key}/stored_level" in training.golden else ""
    objective.levels = list(training.golden[f"{key}/{stored}level"].T)
    objective.episode_steps = list(training.golden[f"{key}/{stored}episode_step"].T)
    env, frame = np.moveaxis(training.golden[f"{key}/pair_frame"].reshape(-1, 2), 1, 0)
    n_samples = training.n_envs * training.n_steps
    pairs = np.where(frame < training.n_steps, env * training.n_steps + frame, n_samples + env)

    def draw_golden_pairs(levels: np.ndarray) -> np.ndarray:
        assert (levels[pairs] == levels[:n_samples]).all()  # each is of one level
        return np.concatenate([pairs, np.arange(n_samples, len(levels))])

    monkeypatch.setattr(objective, "draw_pairs", draw_golden_pairs)
    extras, check = partial(type(objective).extras, objective), training.check

    def checked_extras(*args) -> dict[str, np.ndarray]:
        found = extras(*args)
        check(found["other_is_earlier"], f"{key}/pair_other_is_earlier")
        return {**found, "other_is_earlier": found["other_is_earlier"].astype(np.float64)}

    monkeypatch.setattr(objective, "extras", checked_extras)


OF_DNA = dict(adam_eps="adam_epsilon", learning_rate="policy_lr", value_learning_rate="value_lr", n_epochs="policy_epochs")
OF_DNA |= dict(batch_size="policy_mini_batch_size", n_value_epochs="value_epochs", clip_range="ppo_epsilon", vf_coef="vf_coef")
OF_DNA |= dict(ent_coef="entropy_bonus", aux_learning_rate="distil_lr", aux_batch_size="distil_mini_batch_size")
OF_DNA |= dict(n_policy_iterations="distil_period", n_aux_epochs="distil_epochs", beta_clone="distil_beta")


@pytest.mark.parametrize("file", ["dna", "dna_kl"])
def test_distillation(file, monkeypatch):
    setting = settings(file)
    constraint = {"mse_logit": "logits", "kl_policy": "reverse_kl"}[setting["distil_loss"]]
    training = RelativesTraining(
        file,
        monkeypatch,
        setting,
        architecture="dual",
        **arguments(setting, **OF_DNA),
        objective="dna",
        objective_kwargs=dict(
            constraint=constraint,
            **arguments(setting, td_lambda="td_lambda", value_batch_size="value_mini_batch_size", delay="distil_delay"),
        ),
    )
    model, buffer, golden = training.model, training.model.aux_buffer, training.golden
    record = buffer.record
    for rollout in range(training.n_rollouts):
        key, distil = f"roll{rollout}", f"roll{rollout}/distil_phase"
        has_distillation = f"{distil}/loss" in golden

        def check_undistilled_weights(key=key) -> None:
            for phase in ("policy", "value"):
                training.check_weights(f"{key}/weights_after_{phase}_phase")

        def record_golden_targets(*args, distil=distil, check=check_undistilled_weights) -> None:
            check()
            record(*args)
            recorded = buffer.recorded.reshape(training.n_envs, training.n_steps, -1).clone()
            training.check(recorded[..., 0], f"{distil}/value_target")
            before = golden[f"{distil}/raw_logits_before"]
            if constraint == "reverse_kl":
                before = th.as_tensor(before).log_softmax(-1).numpy()
            np.testing.assert_allclose(recorded[..., 1:6], before, rtol=0, atol=1e-10)
            target = f"{distil}/{'raw_logits_target' if constraint == 'logits' else 'logits_target'}"
            recorded[..., 1:6] = th.as_tensor(golden[target])
            buffer.recorded = recorded.reshape(-1, 1, recorded.shape[-1])
            training.impose_order(distil)

        monkeypatch.setattr(buffer, "record", record_golden_targets)
        training.start(rollout, "value")
        model.num_timesteps += training.n_envs * training.n_steps
        training.update(rollout, "policy_phase", "value_phase")
        names = {"pg": ("policy_gradient_loss", 1), "entropy": ("entropy_loss", -1)}
        training.check_steps("policy", f"{key}/policy_phase", names)
        log_ratios = th.stack([step.log_ratio for step in training.steps_of("policy")])
        training.check(-log_ratios.mean(dim=1), f"{key}/policy_phase/kl_approx")
        is_clipped = (log_ratios.exp() - 1).abs() > setting["ppo_epsilon"]
        training.check(is_clipped.double().mean(dim=1), f"{key}/policy_phase/clipfrac")
        training.check_steps("value", f"{key}/value_phase", {"value_loss": ("value_loss", model.vf_coef)})
        assert has_distillation == (rollout > 0)
        if has_distillation:
            distance = "logits_distance" if constraint == "logits" else "kl"
            names = {"distil_value_loss": ("aux_value_loss", 1), "distil_policy_loss": (distance, 1)}
            training.check_steps("auxiliary", distil, names)
            training.check_weights(f"{key}/weights_after_distil_phase")
        else:
            check_undistilled_weights()
    training.check_that_all_are_used(NOT_COMPARED)

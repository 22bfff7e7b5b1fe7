"""
Movement of the policy by the rounding noise of the first auxiliary steps, for each precision and eps of Adam.

Right before the auxiliary phase pi_old = pi, so the KL term's gradient is zero except for rounding. Here it is the only loss
(no value losses), so any movement of the policy is noise.
"""

from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.logger import Logger

from benchmarks.harness import Experiment
from benchmarks.tables import formatted, machines, page
from sb3_ppg import PPG
from sb3_ppg.family import PAPERS_VALUES

LEARNING_RATE = PAPERS_VALUES["learning_rate"]
PRECISIONS = {
    "float64": (th.float64, False),
    "float32": (th.float32, False),
    "bfloat16 autocast": (th.float32, True),
}


def wanted() -> list[dict[str, Any]]:
    return [dict(precision=precision, eps=eps, steps=n) for precision in PRECISIONS for eps in (1e-8, 1e-5) for n in (1, 5)]


def measure(steps: dict[str, Any], folder: Path) -> tuple[dict[str, float], None]:
    """
    Take auxiliary steps on the KL term alone with a policy that has trained for 16 iterations.

    :return: KL(pi_old, pi) in nats, evaluated in float64; the largest movement of a weight of the policy head, in multiples
        of the learning rate
    """
    dtype, autocast = PRECISIONS[steps["precision"]]
    model = PPG("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **PAPERS_VALUES)
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.learn(256 * 16)
    observations = th.as_tensor(model.rollout_buffer.observations)
    policy = model.policy.to(dtype)
    head = policy.action_net.weight
    assert isinstance(head, th.Tensor)
    optimizer = th.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=steps["eps"])

    def distribution(dtype: th.dtype, autocast: bool) -> Distribution:
        with th.autocast("cpu", dtype=th.bfloat16, enabled=autocast):
            return policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(observations.to(dtype)))

    with th.no_grad():
        old_parameters = policy.actions.parameters(distribution(dtype, autocast)).clone()
        start = head.clone()
        policy.double()
        old_exact = policy.actions.parameters(distribution(th.float64, False)).clone()
        policy.to(dtype)
    for _ in range(steps["steps"]):
        optimizer.zero_grad()
        policy.actions.kl_divergence(distribution(dtype, autocast), old_parameters).mean().backward()
        optimizer.step()
    movement = (head - start).abs().max().item() / LEARNING_RATE
    policy.double()
    with th.no_grad():
        kl = policy.actions.kl_divergence(distribution(th.float64, False), old_exact).mean().item()
    return dict(kl=float(f"{kl:.3g}"), movement=float(f"{movement:.3g}")), None


def report(experiment: Experiment) -> str:
    rows = experiment.rows()
    columns = {
        "precision": "{precision}",
        "Adam's eps": "{eps:g}",
        "steps": "{steps}",
        "KL(pi_old, pi), nats": "{kl:.1e}",
        "largest movement of a head weight, in learning rates": "{movement:.1e}",
    }
    return page(
        "Rounding noise of the first auxiliary steps",
        "`python -m benchmarks.first_aux_step`: CartPole-v1, MlpPolicy, 256 samples, KL term alone, learning rate 5e-4. "
        f"{machines(rows)}",
        formatted(rows, columns),
    )


FIRST_AUX_STEP = Experiment("first_aux_step", wanted, measure, report)

if __name__ == "__main__":
    FIRST_AUX_STEP.main()

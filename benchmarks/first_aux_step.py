"""
How far the rounding noise of the first auxiliary steps moves the policy, for each precision and eps of Adam.

Right before the auxiliary phase pi_old = pi, so the KL term's gradient is zero but for rounding. Here it is the only loss
(no value losses), so whatever moves the policy is noise. Writes results/first_aux_step.md.

    python -m benchmarks.first_aux_step
"""

import argparse
from pathlib import Path

import torch as th
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.logger import Logger

from benchmarks.machine import processor
from sb3_ppg import PPG, losses
from sb3_ppg.family import PAPERS_VALUES

RESULT = Path(__file__).parent / "results" / "first_aux_step.md"
LEARNING_RATE = PAPERS_VALUES["learning_rate"]


PRECISIONS = {
    "float64": (th.float64, False),
    "float32": (th.float32, False),
    "bfloat16 autocast": (th.float32, True),
}


def kl_after_steps(precision: str, eps: float, n_steps: int) -> tuple[float, float]:
    """
    What auxiliary steps on the KL term alone do to a policy that has trained for 16 iterations.

    :param precision: one of ``PRECISIONS``
    :param eps: Adam's
    :param n_steps: how many optimizer steps
    :return: KL(pi_old, pi) in nats, evaluated in float64; the largest movement of a weight of the policy head, in multiples
        of the learning rate
    """
    dtype, autocast = PRECISIONS[precision]
    model = PPG("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **PAPERS_VALUES)
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.learn(256 * 16)
    observations = th.as_tensor(model.rollout_buffer.observations)
    policy = model.policy.to(dtype)
    head = policy.action_net.weight
    assert isinstance(head, th.Tensor)
    optimizer = th.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=eps)

    def distribution(dtype: th.dtype, autocast: bool) -> Distribution:
        with th.autocast("cpu", dtype=th.bfloat16, enabled=autocast):
            return policy._get_action_dist_from_latent(policy.mlp_extractor.forward_actor(observations.to(dtype)))

    with th.no_grad():
        old_parameters = losses.distribution_parameters(distribution(dtype, autocast)).clone()
        start = head.clone()
        policy.double()
        old_exact = losses.distribution_parameters(distribution(th.float64, False)).clone()
        policy.to(dtype)
    for _ in range(n_steps):
        optimizer.zero_grad()
        losses.kl_divergence(distribution(dtype, autocast), old_parameters).mean().backward()
        optimizer.step()
    movement = (head - start).abs().max().item() / LEARNING_RATE
    policy.double()
    with th.no_grad():
        kl = losses.kl_divergence(distribution(th.float64, False), old_exact).mean().item()
    return kl, movement


def main() -> None:
    """Measure and write the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    th.set_num_threads(1)
    lines = [
        "# Rounding noise of the first auxiliary steps",
        "",
        "`python -m benchmarks.first_aux_step`: CartPole-v1, MlpPolicy, 256 samples, KL term alone, learning rate 5e-4. "
        f"{processor()}.",
        "",
        "| precision | Adam's eps | steps | KL(pi_old, pi), nats | largest movement of a head weight, in learning rates |",
        "|---|---|---|---|---|",
    ]
    for precision in PRECISIONS:
        for eps in (1e-8, 1e-5):
            for n_steps in (1, 5):
                kl, movement = kl_after_steps(precision, eps, n_steps)
                lines.append(f"| {precision} | {eps:g} | {n_steps} | {kl:.1e} | {movement:.1e} |")
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

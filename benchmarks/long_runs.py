"""
Rule 4 of ``benchmarks.candidates``: the candidates that satisfy 1 to 3, one after the other, beside the defaults in runs of
500,000 steps. Then, as the KL divergence is high in them, whether a learning rate that falls to zero is better.

    python -m benchmarks.long_runs run --jobs 2    # can be killed and started again
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stable_baselines3.common.utils import LinearSchedule

from benchmarks.candidates import ARMS, LIMITED, MARGIN, MEASURES, SEEDS, difference, interval, scores, train_with
from benchmarks.evaluations import in_own_process
from benchmarks.harness import Experiment, Outcome, Report, machines
from sb3_ppg.comparison.report import page, table

N_TIMESTEPS = 500_000
ENV_IDS = ["LunarLander-v3", "Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"]
DEFAULTS, FIRST, SECOND = "PPG", "PPG, aux_learning_rate 1e-3", "PPG, learning_rate 5e-4"
FALLING = "PPG, learning_rate from 3e-4 to 0"
CONTESTANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    **{name: ARMS[name] for name in (DEFAULTS, FIRST, SECOND)},
    FALLING: ("PPG", dict(learning_rate=LinearSchedule(3e-4, 0.0, 1.0)), ""),
    LIMITED: ARMS[LIMITED],
}


def wanted() -> Iterator[dict[str, Any]]:
    """Yield the runs of the candidates, one after the other, then the others, seed by seed."""
    for arms in ([DEFAULTS, FIRST], [SECOND], [FALLING], [LIMITED]):
        for seed in SEEDS:
            yield from (dict(arm=arm, env_id=env_id, seed=seed) for env_id in ENV_IDS for arm in arms)


def train(run: dict[str, Any], folder: Path) -> Outcome:
    return in_own_process(train_with, *CONTESTANTS[run["arm"]], run["env_id"], run["seed"], N_TIMESTEPS)


def report(experiment: Experiment) -> Report:
    """Return the differences to the defaults, and the KL divergence per policy update."""
    rows, lines = experiment.rows(), []
    for arm in CONTESTANTS:
        of_arm = rows[rows["arm"] == arm]
        if len(of_arm) < len(SEEDS) * len(ENV_IDS):
            break
        own = of_arm.groupby("env_id").mean(numeric_only=True).loc[ENV_IDS]
        cells = [""] * 3
        if arm != DEFAULTS:
            found = [interval(*(scores(rows, name, measure, ENV_IDS) for name in (arm, DEFAULTS))) for measure in MEASURES]
            cells = [*map(difference, found), str(all(low > MARGIN for _, low, _ in found))]
        lines.append([arm, *(f"{value:.0f}" for value in own["last_three"]), *cells])
        lines[-1] += [", ".join(f"{value:.2f}" for value in own[name]) for name in ("approx_kl", "clip_fraction")]
    head = ["", *ENV_IDS, "difference of the curve", "of the last three points", "satisfies 4", "KL"]
    text = page(
        "Long runs of the candidates",
        f"`python -m benchmarks.long_runs`. {machines(rows)} Commit {', '.join(rows['commit'].unique())}. {N_TIMESTEPS:,} "
        "steps, five seeds; the measure is that of `benchmarks.candidates`: returns are means of the last three points. "
        "KL and clipped: per policy update, mean of the runs, by environment.",
        table([*head, "clipped"], lines),
    )
    return {"long_runs.md": text}


LONG_RUNS = Experiment("long_runs", wanted, train, report)

if __name__ == "__main__":
    LONG_RUNS.main()

"""
Rule 4 of ``benchmarks.candidates``: the candidate that satisfies 1 to 3, and the defaults, in runs of 500,000 steps.

    python -m benchmarks.long_runs run --jobs 2    # can be killed and started again
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.candidates import MARGIN, MEASURES, SEEDS, difference, interval, scores, train
from benchmarks.harness import Experiment, Report, machines
from sb3_ppg.comparison.report import page, table

N_TIMESTEPS = 500_000
ENV_IDS = ["LunarLander-v3", "Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"]
DEFAULTS = "PPG"
CONTESTANTS = [DEFAULTS, "PPG, aux_learning_rate 1e-3"]


def wanted() -> Iterator[dict[str, Any]]:
    """Yield the runs, seed by seed."""
    for seed in SEEDS:
        yield from (dict(arm=arm, env_id=env_id, seed=seed) for env_id in ENV_IDS for arm in CONTESTANTS)


def report(experiment: Experiment) -> Report:
    """Return the differences to the defaults, and the KL divergence per policy update."""
    rows, lines = experiment.rows(), []
    for arm in CONTESTANTS:
        own = rows[rows["arm"] == arm].groupby("env_id").mean(numeric_only=True).loc[ENV_IDS]
        found = [interval(*(scores(rows, name, measure, ENV_IDS) for name in (arm, DEFAULTS))) for measure in MEASURES]
        cells = ["" if arm == DEFAULTS else difference(each) for each in found]
        passes = "" if arm == DEFAULTS else all(low > MARGIN for _, low, _ in found)
        lines.append([arm, *(f"{value:.0f}" for value in own["last_three"]), *cells, passes])
        lines[-1] += [f"{own['approx_kl'].max():.3f}", f"{own['clip_fraction'].max():.3f}"]
    head = ["", *ENV_IDS, "difference of the curve", "of the last three points", "satisfies 4", "highest KL"]
    text = page(
        "Long runs of the candidates",
        f"`python -m benchmarks.long_runs`. {machines(rows)} Commit {', '.join(rows['commit'].unique())}. {N_TIMESTEPS:,} "
        "steps, five seeds; the measure is that of `benchmarks.candidates`: returns are means of the last three points. "
        "KL and clipped: per policy update, mean of the runs, of the environment in which they are highest.",
        table([*head, "highest clipped"], lines),
    )
    return {"long_runs.md": text}


LONG_RUNS = Experiment("long_runs", wanted, partial(train, n_timesteps=N_TIMESTEPS), report)

if __name__ == "__main__":
    LONG_RUNS.main()

"""The benchmarks: pages are those of the committed rows."""

import pandas as pd
import pytest
import torch as th

from benchmarks.compiled import COMPILED
from benchmarks.defaults import EXPERIMENT
from benchmarks.finetuning import milestones
from benchmarks.gpu import difference
from benchmarks.harness import RESULTS
from benchmarks.learning import LEARNING
from benchmarks.seconds import SECONDS
from benchmarks.starts import STARTS
from benchmarks.suites.experiment import SUITES

EXPERIMENTS = [COMPILED, EXPERIMENT, LEARNING, SECONDS, STARTS, SUITES]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_the_page_is_that_of_the_committed_rows(experiment):
    """Rows are found by a hash of all their settings."""
    name = f"{experiment.name}.md"
    assert experiment.report(experiment)[name] == (RESULTS / name).read_text()


def test_milestones_of_fine_tuning():
    curve = pd.DataFrame({"steps": [10, 20, 30, 40], "return": [4.0, 6.0, 1.0, 9.0]})
    assert milestones(curve, 10.0, 50) == dict(half=20, all=50, dip=5)


def test_the_checks_for_gpus_find_losses_that_differ_by_more_than_rounding():
    cpu = th.device("cpu")
    assert difference(cpu, "MlpPolicy", {}) == 0 and difference(cpu, "MlpPolicy", dict(learning_rate=2e-4)) > 0.01

"""The benchmarks: pages are those of the committed rows, and a run of the suites leaves a row and a curve."""

import pandas as pd
import pytest

from benchmarks.compiled import COMPILED
from benchmarks.defaults import EXPERIMENT
from benchmarks.finetuning import milestones
from benchmarks.harness import RESULTS
from benchmarks.learning import LEARNING
from benchmarks.seconds import SECONDS
from benchmarks.starts import STARTS
from benchmarks.suites.contestants import CONTESTANTS, TASKS, Contestant, Training
from benchmarks.suites.experiment import SUITES, train

pytestmark = pytest.mark.slow

EXPERIMENTS = [COMPILED, EXPERIMENT, LEARNING, SECONDS, STARTS, SUITES]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_the_page_is_that_of_the_committed_rows(experiment):
    """Rows are found by a hash of all their settings."""
    name = f"{experiment.name}.md"
    assert experiment.report(experiment)[name] == (RESULTS / name).read_text()


def test_milestones_of_fine_tuning():
    curve = pd.DataFrame({"steps": [10, 20, 30, 40], "return": [4.0, 6.0, 1.0, 9.0]})
    assert milestones(curve, 10.0, 50) == dict(half=20, all=50, dip=5)


def test_a_run_leaves_a_row_and_a_curve(tmp_path, monkeypatch):
    tiny = dict(n_envs=2, n_steps=16, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, aux_batch_size=None)
    monkeypatch.setitem(CONTESTANTS, "tiny", Contestant("ppg_minibatch", tiny))
    asterix = next(task for task in TASKS if task.env_id == "MinAtar/Asterix-v1")
    row, points = train(Training(asterix, "tiny", 3, 640), tmp_path)
    assert row["train_return"] >= 0 and row["test_return"] is None and points["steps"].iloc[-1] == 640

"""The benchmarks: pages are those of the committed rows."""

import pytest
import torch as th

from benchmarks import diagnosis
from benchmarks.gpu import difference
from benchmarks.harness import RESULTS
from benchmarks.matches import MATCHED
from benchmarks.starts import STARTS

EXPERIMENTS = [MATCHED, STARTS, diagnosis.DIAGNOSIS]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_the_page_is_that_of_the_committed_rows(experiment):
    """Rows are found by a hash of all their settings."""
    pages = {name: text for name, text in experiment.report(experiment).items() if name.endswith(".md")}
    assert pages and pages == {name: (RESULTS / name).read_text() for name in pages}


def test_the_first_sign_is_the_right_one_and_the_page_has_the_healthy_ranges():
    rows, page = diagnosis.DIAGNOSIS.rows(), (RESULTS.parents[1] / "docs" / "guides" / "tuning.md").read_text()
    assert [[*diagnosis.named(row), "none"][0] for _, row in rows.iterrows()] == rows["right"].tolist()
    values = [name for name in rows if f"| `{name}` | " in page]
    assert len(values) > 5
    assert not [name for name in values if f"| `{name}` | {diagnosis.healthy(rows, name)} |" not in page]


def test_the_checks_for_gpus_find_losses_that_differ_by_more_than_rounding():
    cpu = th.device("cpu")
    assert difference(cpu, "MlpPolicy", {}) == 0 and difference(cpu, "MlpPolicy", dict(learning_rate=2e-4)) > 0.01

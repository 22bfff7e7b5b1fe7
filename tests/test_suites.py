"""The benchmarks: pages are those of the committed rows, identity of a run, what the suites' report says."""

from dataclasses import replace

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
from benchmarks.suites import contestants
from benchmarks.suites.contestants import CONTESTANTS, TASKS, Contestant, Training
from benchmarks.suites.experiment import SPEED, SUITES, comparisons, train

pytestmark = pytest.mark.slow

ASTERIX = next(task for task in TASKS if task.env_id == "MinAtar/Asterix-v1")
TINY = dict(n_envs=2, n_steps=16, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, aux_batch_size=None)


@pytest.mark.parametrize(
    "experiment", [COMPILED, EXPERIMENT, LEARNING, SECONDS, STARTS, SUITES], ids=lambda experiment: experiment.name
)
def test_the_page_is_that_of_the_committed_rows(experiment):
    name = f"{experiment.name}.md"
    assert experiment.report(experiment)[name] == (RESULTS / name).read_text()


def test_milestones_of_fine_tuning():
    curve = pd.DataFrame({"steps": [10, 20, 30, 40], "return": [4.0, 6.0, 1.0, 9.0]})
    assert milestones(curve, 10.0, 50) == dict(half=20, all=50, dip=5)


def test_the_checks_for_gpus_find_losses_that_differ_by_more_than_rounding():
    cpu = th.device("cpu")
    assert difference(cpu, "MlpPolicy", {}) == 0 and difference(cpu, "MlpPolicy", dict(learning_rate=2e-4)) > 0.01


# ---- the suites ----


def test_a_run_is_known_by_all_its_settings(monkeypatch):
    one = Training(ASTERIX, "PPG", 0, 1000)
    assert one.hash() == Training(ASTERIX, "PPG", 1, 1000).hash()
    others = [
        one._replace(n_timesteps=2000),
        one._replace(contestant="PPO"),
        one._replace(contestant="PPG, beta_clone 3"),
        one._replace(contestant="PPG, dual"),
        one._replace(contestant="PPG, advantages per minibatch"),
        one._replace(task=ASTERIX._replace(env_id="MinAtar/Breakout-v1")),
        one._replace(task=ASTERIX._replace(env_kwargs=dict(sticky_action_prob=0.0))),
    ]
    assert len({training.hash() for training in [one, *others]}) == len(others) + 1
    same = dict(n_policy_iterations=16, beta_clone=1.0, policy_kwargs=dict(architecture="detached"))
    monkeypatch.setitem(contestants.CONTESTANTS, "PPG, the same settings", Contestant("ppg", same))
    assert one._replace(contestant="PPG, the same settings").hash() == one.hash()


def test_a_run_leaves_a_row_and_a_curve(tmp_path, monkeypatch):
    monkeypatch.setitem(CONTESTANTS, "tiny", Contestant("ppg_minibatch", TINY))
    row, points = train(Training(ASTERIX, "tiny", 3, 640), tmp_path)
    assert row["train_return"] >= 0 and row["test_return"] is None and points["steps"].iloc[-1] == 640


def test_scores_in_the_time_of_the_baseline(tmp_path):
    """PPO's 1,000 steps take 4 ms; PPG's take 6 ms, and after 4 ms it is a third of the way from 0, after 3 ms, to its end."""
    experiment = replace(SUITES, results=tmp_path)
    for name, value in (("PPO", 5.0), ("PPG", 9.0)):
        row = dict(train_return=value, test_return=None, seconds=10, steps_per_second=7, test_episodes=None, machine="one")
        points = pd.DataFrame({"seconds": [5.0, 10.0], "return": [0.0, value], "steps": [500, 1000]})
        experiment.runs.add(Training(ASTERIX, name, 0, 1000), row, points)
    turns = dict(contestant=["PPO", "PPG"], seconds=[4.0, 6.0], machine="a machine", task=ASTERIX.env_id)
    pd.DataFrame(turns).to_csv(tmp_path / SPEED)
    (comparison,) = comparisons(experiment)
    expected = {"PPO": pytest.approx(ASTERIX.scores(5.0)), "PPG": pytest.approx(ASTERIX.scores(3.0))}
    assert comparison.in_time_of_baseline() == expected
    assert "PPG takes 1.50 times PPO's time, in turns on a machine. " in comparison.times()
    assert "PPG's score by the curves is 0.26, PPO's 0.47; the former is higher with probability 0.00." in comparison.times()

"""The benchmarks' harness: identity of a run, the queue, scores, what the suites' report says."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import psutil
import pytest
from benchmarks.suites.training import Episodes, curve, train
from matplotlib.figure import Figure

from benchmarks import scores
from benchmarks.compiled import COMPILED
from benchmarks.harness import RESULTS, Experiment, locked
from benchmarks.learning import LEARNING
from benchmarks.scores import interquartile_means
from benchmarks.starts import STARTS
from benchmarks.suites import contestants
from benchmarks.suites.contestants import CONTESTANTS, TASKS, Contestant, Training
from benchmarks.suites.experiment import SPEED, SUITES, comparisons
from sb3_ppg import PPG
from tests.helpers import ROOT, wait_for

pytestmark = pytest.mark.slow

ASTERIX = next(task for task in TASKS if task.env_id == "MinAtar/Asterix-v1")
TINY = dict(n_envs=2, n_steps=16, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, aux_batch_size=None)


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch):
    monkeypatch.setattr(scores, "BOOTSTRAPS", 50)


# ---- the harness ----


def toss(training, folder):
    (folder / "log.txt").write_text("tossed")
    return {"heads": training["seed"] % 2}, pd.DataFrame({"steps": [1, 2], "return": [0.5, training["seed"]]})


def page(experiment):
    return {"tosses.md": f"{len(experiment.rows())} tosses", "tosses.png": Figure()}


def tosses():
    return [dict(coin=coin, seed=seed) for coin in ("a penny", "a pound") for seed in range(3)]


@pytest.fixture
def experiment(tmp_path):
    return Experiment("tosses", tosses, toss, page, results=tmp_path / "results", folder=tmp_path / "work")


def test_runs_are_carried_out_once_and_leave_rows_and_curves(experiment):
    first, second, *others = tosses()
    for training in (first, second, first):
        experiment.run_one(training)
    assert experiment.missing(tosses()) == others
    rows = experiment.rows()
    assert list(rows["heads"]) == [0, 1]
    assert list(experiment.curves()["return"]) == [0.5, 0.0, 0.5, 1.0]
    assert experiment.write() == "2 tosses" and (experiment.results / "tosses.png").exists()
    assert len(replace(experiment, wanted=lambda: [second]).rows()) == 1  # the others are not wanted any more


def test_a_run_of_another_process_is_left_to_it(experiment):
    training = tosses()[0]
    experiment.run_one(training)
    (lock,) = (experiment.folder / "tosses").glob("*.lock")
    (experiment.results / "tosses.csv").unlink()
    with locked(lock):
        experiment.run_one(training)
    assert experiment.missing([training]) == [training]


def test_a_kill_between_curve_and_row_leaves_no_curve_twice(experiment):
    first, second = tosses()[:2]
    for training in (first, second):
        experiment.run_one(training)
    rows = experiment.results / "tosses.csv"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-1]))
    assert second in experiment.missing([first, second])
    experiment.add(second, ({"heads": 1}, pd.DataFrame({"steps": [1, 2], "return": [7.0, 8.0]})))
    assert list(experiment.curves()["return"]) == [0.5, 0.0, 7.0, 8.0] and len(experiment.rows()) == 2


def test_a_queue_that_is_killed_leaves_no_run_behind(tmp_path):
    """Even SIGKILL, after which the queue can tell its workers nothing, ends them."""
    program = tmp_path / "trains.py"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "from benchmarks.harness import pool\n"
        "def work(file):\n"
        "    pathlib.Path(file).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    with pool(1) as processes:\n"
        "        processes.submit(work, sys.argv[1]).result()\n"
    )
    file = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(program), str(file)], env=environment) as queue:
        wait_for(lambda: file.exists() and file.read_text() != "")
        worker = psutil.Process(int(file.read_text()))
        queue.kill()
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("experiment", [COMPILED, LEARNING, STARTS], ids=lambda experiment: experiment.name)
def test_the_page_is_that_of_the_committed_rows(experiment):
    name = f"{experiment.name}.md"
    assert experiment.report(experiment)[name] == (RESULTS / name).read_text()


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


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(CONTESTANTS, "tiny", Contestant("ppg_minibatch", TINY))
    one = Training(ASTERIX, "tiny", 3, 640)
    updates = []

    def update(model):
        updates.append(model.num_timesteps)
        if len(updates) == 8:
            raise KeyboardInterrupt

    original = PPG.train
    monkeypatch.setattr(PPG, "train", lambda model: (original(model), update(model)))
    with pytest.raises(KeyboardInterrupt):
        train(one, tmp_path)
    row, points = train(one, tmp_path)
    assert updates[7:10] == [256, 224, 256] and updates[-1] == 640  # from the end of the latest whole phase
    episodes = Episodes(tmp_path / "episodes.csv").read(640)
    assert episodes["steps"].is_monotonic_increasing and episodes["seconds"].is_monotonic_increasing
    assert row["train_return"] == pytest.approx(episodes["return"].mean(), abs=1e-3)
    assert points["steps"].iloc[-1] == 640


def test_the_curve_is_the_mean_of_the_latest_episodes():
    episodes = pd.DataFrame({"steps": np.arange(1, 201), "seconds": np.arange(1, 201) / 10, "return": np.arange(200.0)})
    points = curve(episodes, 400)
    assert list(points["steps"]) == [8 * (1 + i) for i in range(50)]
    assert points["return"].iloc[0] == 3.5 and points["return"].iloc[-1] == 149.5 and points["seconds"].iloc[0] == 0.8
    assert curve(episodes.tail(1), 400)["steps"].iloc[0] == 200


def test_the_interquartile_mean_is_that_of_the_middle_half():
    values = {"one": np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 70.0]])}
    estimate = interquartile_means(values)["one"]
    assert estimate.value == 3.5 and estimate.low < 3.5 < estimate.high
    assert estimate == interquartile_means(values)["one"]


def test_scores_in_the_time_of_the_baseline(tmp_path):
    """PPO's 1,000 steps take 4 ms; PPG's take 6 ms, and after 4 ms it is a third of the way from 0, after 3 ms, to its end."""
    experiment = replace(SUITES, results=tmp_path)
    for name, value in (("PPO", 5.0), ("PPG", 9.0)):
        row = dict(train_return=value, test_return=None, seconds=10, steps_per_second=7, test_episodes=None, machine="one")
        points = pd.DataFrame({"seconds": [5.0, 10.0], "return": [0.0, value], "steps": [500, 1000]})
        experiment.add(Training(ASTERIX, name, 0, 1000), (row, points))
    turns = dict(contestant=["PPO", "PPG"], seconds=[4.0, 6.0], machine="a machine", task=ASTERIX.env_id)
    pd.DataFrame(turns).to_csv(tmp_path / SPEED)
    (comparison,) = comparisons(experiment)
    expected = {"PPO": pytest.approx(ASTERIX.scores(5.0)), "PPG": pytest.approx(ASTERIX.scores(3.0))}
    assert comparison.in_time_of_baseline() == expected
    assert "PPG takes 1.50 times PPO's time, in turns on a machine. " in comparison.times()
    assert "PPG's score by the curves is 0.26, PPO's 0.47; the former is higher with probability 0.00." in comparison.times()

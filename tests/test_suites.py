"""The benchmarks' harness: identity of a run, the queue, scores, what the suites' report says."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import psutil
import pytest
from matplotlib.figure import Figure

from benchmarks import scores
from benchmarks.harness import Experiment, locked
from benchmarks.scores import interquartile_means
from benchmarks.suites import contestants
from benchmarks.suites.contestants import CONTESTANTS, TASKS, Contestant, Training, contestants_on
from benchmarks.suites.experiment import SPEED, SUITES, comparisons, late_returns, wanted
from benchmarks.suites.training import Episodes, curve, train
from sb3_ppg import PPG
from tests.helpers import ROOT, wait_for

pytestmark = pytest.mark.slow

ASTERIX = next(task for task in TASKS if task.env_id == "MinAtar/Asterix-v1")
TINY = dict(n_envs=2, n_steps=16, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, aux_batch_size=None)


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch):
    monkeypatch.setattr(scores, "BOOTSTRAPS", 50)


def suites(folder):
    return replace(SUITES, results=folder)


def add(experiment, training, value, points=None, **row):
    """Write a row as a run would, with this return."""
    row = dict(train_return=value, test_return=None, seconds=10, steps_per_second=7, test_episodes=None) | row
    if points is None:
        points = {"seconds": [5.0, 10.0], "return": [0.0, value], "steps": [500, 1000]}
    experiment.add(training, (row | dict(machine="a machine"), pd.DataFrame(points)))


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


def test_every_contestant_has_settings_for_its_tasks():
    for task in TASKS:
        for name in contestants_on(task):
            one = Training(task, name, 0, task.n_timesteps)
            assert one.settings()["n_timesteps"] == task.n_timesteps and len(one.hash()) == 8
    assert Training(ASTERIX, "PPG, dual", 0, 1).settings()["policy_kwargs"].endswith("**{'architecture': 'dual'}}")


def test_leading_contestants_and_first_seeds_come_first():
    everything = [training for training in wanted() if training.task.suite == "minatar"]
    assert [one.contestant for one in everything[:6]] == ["PPO"] * 3 + ["PPG"] * 3
    assert [one.seed for one in everything[:30]] == [seed for seed in range(5) for _ in range(6)]
    assert everything[30].contestant not in ("PPO", "PPG") and everything[30].seed == 0


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


def test_the_report_compares_what_has_the_present_settings(tmp_path, monkeypatch):
    experiment = suites(tmp_path)
    add(experiment, Training(ASTERIX, "PPG, dual", 0, 1000), 99.0)
    assert "| PPG, dual | 99.0 |" in experiment.write() and not list(tmp_path.glob("*.png"))  # neither PPO's nor PPG's
    for seed in range(3):
        for name, value in (("PPO", 2.0), ("PPG", 4.0)):
            add(experiment, Training(ASTERIX, name, seed, 1000), value + seed / 10)
    monkeypatch.setitem(CONTESTANTS, "PPG, dual", Contestant("ppg", dict(n_epochs=5)))
    text = experiment.write()
    score = ASTERIX.scores(4.1)
    assert f"| PPG | 4.0, 4.1, 4.2 | {score:.2f} (" in text and "| 1.00 (1.00 to 1.00) | 100 |" in text
    assert "99.0" not in text and (tmp_path / "suites_minatar_1k_tasks.png").exists()


def both(folder, ppo, ppg):
    """Write a run of each leading contestant with these returns."""
    for name, value in (("PPO", ppo), ("PPG", ppg)):
        add(suites(folder), Training(ASTERIX, name, 0, 1000), value)
    return suites(folder)


def test_times_of_several_machines_are_compared_as_measured_in_turns(tmp_path):
    """A run of PPG takes 10 s here, and one of PPO 10 s on another machine; in turns PPG takes twice as long."""
    experiment = both(tmp_path, 3.0, 3.0)
    (of_trainings,) = comparisons(experiment)
    assert list(of_trainings.seconds("PPG", ASTERIX)) == [5.0, 10.0] and of_trainings.times() == ""
    turns = dict(contestant=["PPO", "PPG"] * 3, seconds=[3.0, 6.0, 4.0, 8.0, 90.0, 180.0], machine="a machine")
    pd.DataFrame(turns).assign(task=ASTERIX.env_id).to_csv(tmp_path / SPEED)
    (in_turns,) = comparisons(experiment)
    np.testing.assert_allclose(in_turns.seconds("PPG", ASTERIX), [500 * 8e-6, 1000 * 8e-6])
    assert "PPG takes 2.00 times PPO's time, in turns on a machine. When PPO's trainings end, " in experiment.write()


def test_scores_in_the_time_of_the_baseline(tmp_path):
    """PPO's 1,000 steps take 4 ms; PPG's take 6 ms, and after 4 ms it is a third of the way from 0, after 3 ms, to its end."""
    experiment = both(tmp_path, 5.0, 9.0)
    turns = dict(contestant=["PPO", "PPG"], seconds=[4.0, 6.0], machine="a machine", task=ASTERIX.env_id)
    pd.DataFrame(turns).to_csv(tmp_path / SPEED)
    (comparison,) = comparisons(experiment)
    expected = {"PPO": pytest.approx(ASTERIX.scores(5.0)), "PPG": pytest.approx(ASTERIX.scores(3.0))}
    assert comparison.in_time_of_baseline() == expected
    assert "PPG's score by the curves is 0.26, PPO's 0.47; the former is higher with probability 0.00." in comparison.times()


def test_the_report_says_over_how_many_episodes_agents_were_tested(tmp_path):
    task = next(task for task in TASKS if task.is_tested)
    for seed, n_episodes in enumerate((200, 2000)):
        add(suites(tmp_path), Training(task, "PPO", seed, 1000), 3.0, test_return=4.0, test_episodes=n_episodes)
    text = suites(tmp_path).write()
    assert "a machine. On all levels: means of 200 or 2,000 episodes." in text and "| PPO | 4.0, 4.0 |" in text


def test_an_ablation_is_measured_where_the_longer_run_of_what_is_changed_passes(tmp_path):
    """The result is the last fifth of the first million of its two million steps; equal settings share a name."""
    experiment = suites(tmp_path)
    changed = "PPG, learning rate 0.0005"
    longer = {"PPG": 2_000_000, changed: 2_000_000}
    points = {"seconds": 1.0, "return": [1, 2, 4, 100], "steps": [800_000, 900_000, 1_000_000, 1_100_000]}
    for name, n_timesteps in (longer | {"PPG, detached": 1_000_000, "PPG, dual": 1_000_000, "PPO": 500_000}).items():
        add(experiment, Training(ASTERIX, name, len(name), n_timesteps), 9.0, points)
    # The same seed for a million steps, of which more points are known
    points = {"seconds": 1.0, "return": [2, 3, 7, 4], "steps": [850_000, 900_000, 950_000, 1_000_000]}
    add(experiment, Training(ASTERIX, changed, len(changed), 1_000_000), 9.0, points)
    returns = late_returns(comparisons(experiment))
    expected = {(name, len(name)): 3.0 for name in (*longer, "PPG, dual")} | {(changed, len("PPG, detached")): 3.0}
    expected[changed, len(changed)] = 4.0
    assert {(row.contestant, row.seed): row[4] for row in returns.itertuples()} == expected

"""The harness of the results: what identifies a training, what the queue does, what the report says."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import psutil
import pytest
from matplotlib.figure import Figure
from stable_baselines3 import PPO

from benchmarks import defaults, dips, family, hard
from benchmarks.suites import contestants, queue, training
from benchmarks.suites import report as suites_report
from benchmarks.suites.contestants import CONTESTANTS, TASKS, Contestant, Training, contestants_on
from benchmarks.suites.queue import Results, locked, run_one, trainings
from benchmarks.suites.report import comparisons, draw_scores, interquartile_means, late_returns, plot_ablation, report
from benchmarks.suites.speed import whole_phases
from benchmarks.suites.training import Outcome, curve, train
from sb3_ppg import PPG
from tests.helpers import ROOT, wait_for

pytestmark = pytest.mark.slow

ASTERIX = next(task for task in TASKS if task.env_id == "MinAtar/Asterix-v1")
TINY = dict(n_envs=2, n_steps=16, batch_size=32, n_epochs=1)


def outcome_of(one: Training, value: float) -> Outcome:
    keys = dict(settings=one.hash(), seed=one.seed)
    row = dict(suite=one.task.suite, task=one.task.env_id, contestant=one.contestant, steps=one.n_timesteps, **keys)
    row |= dict(train_return=value, test_return=None, seconds=10, steps_per_second=7, machine="a machine", test_episodes=None)
    return Outcome(row, pd.DataFrame({"seconds": [5.0, 10.0], "return": [0.0, value], "steps": [500, 1000]}).assign(**keys))


def test_a_training_is_known_by_all_its_settings(monkeypatch):
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
    monkeypatch.setitem(contestants.CONTESTANTS, "PPG, said again", Contestant("ppg", same))
    assert one._replace(contestant="PPG, said again").hash() == one.hash()


def test_every_contestant_has_settings_for_its_tasks():
    for task in TASKS:
        for name in contestants_on(task):
            one = Training(task, name, 0, task.n_timesteps)
            assert one.settings()["n_timesteps"] == task.n_timesteps and len(one.hash()) == 8
    assert Training(ASTERIX, "PPG, dual", 0, 1).settings()["policy_kwargs"].endswith("**{'architecture': 'dual'}}")


def test_presets_and_first_seeds_come_first_and_what_is_there_is_skipped(tmp_path, monkeypatch):
    everything = trainings(suites=["minatar"])
    assert [one.contestant for one in everything[:6]] == ["PPO"] * 3 + ["PPG"] * 3
    assert [one.seed for one in everything[:30]] == [seed for seed in range(5) for _ in range(6)]
    assert everything[30].contestant not in ("PPO", "PPG") and everything[30].seed == 0
    assert [one.contestant for one in trainings(contestants=["PPG", "PPO"], tasks=["Hopper-v5"], seeds=[7])] == ["PPG", "PPO"]

    results, ran = Results(tmp_path / "results"), []
    monkeypatch.setattr(queue, "train", lambda one, folder: (ran.append(one), outcome_of(one, 1.0))[1])
    first, second = everything[:2]
    for one in (first, second, first):
        run_one(one, results, tmp_path / "work")
    with locked(_folder(tmp_path / "work", everything[2]) / "lock"):  # another process runs it
        assert run_one(everything[2], results, tmp_path / "work") is None
    assert ran == [first, second] and results.has(first) and not results.has(everything[2])
    assert len(results.rows()) == 2 and len(results.curves()) == 4
    assert not results.has(first._replace(n_timesteps=5)) and not results.has(first._replace(seed=9))


def _folder(work, one):
    folder = work / f"{one.hash()}_{one.seed}"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("algorithm", ["ppg_minibatch", "ppo"])
def test_a_training_that_was_stopped_goes_on(algorithm, tmp_path, monkeypatch):
    own = {} if algorithm == "ppo" else dict(n_policy_iterations=2, n_aux_epochs=1, aux_batch_size=None)
    monkeypatch.setitem(CONTESTANTS, "tiny", Contestant(algorithm, {**TINY, **own}))
    one = Training(ASTERIX, "tiny", 3, 640)
    updates = []

    def update(model):
        updates.append(model.num_timesteps)
        if len(updates) == 8:
            raise KeyboardInterrupt

    cls = PPO if algorithm == "ppo" else PPG
    original = cls.train
    monkeypatch.setattr(cls, "train", lambda model: (original(model), update(model)))
    with pytest.raises(KeyboardInterrupt):
        train(one, tmp_path)
    row, points = train(one, tmp_path)
    expected = 32 if algorithm == "ppo" else 224  # after the latest whole phase
    assert updates[7:10] == [256, expected, expected + 32] and updates[-1] == 640
    episodes = training.Episodes(tmp_path / "episodes.csv").read(640)
    assert episodes["steps"].is_monotonic_increasing and episodes["seconds"].is_monotonic_increasing
    assert row["train_return"] == pytest.approx(episodes["return"].mean(), abs=1e-3) and row["settings"] == one.hash()
    assert points["steps"].iloc[-1] == 640


def test_the_curve_is_the_mean_of_the_latest_episodes():
    episodes = pd.DataFrame({"steps": np.arange(1, 201), "seconds": np.arange(1, 201) / 10, "return": np.arange(200.0)})
    points = curve(episodes, 400)
    assert list(points["steps"]) == [8 * (1 + i) for i in range(50)]
    assert points["return"].iloc[0] == 3.5 and points["return"].iloc[-1] == 149.5 and points["seconds"].iloc[0] == 0.8
    assert curve(episodes.tail(1), 400)["steps"].iloc[0] == 200


def test_the_interquartile_mean_is_that_of_the_middle_half():
    scores = {"one": np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 70.0]])}
    estimate = interquartile_means(scores)["one"]
    assert estimate.value == 3.5 and estimate.low < 3.5 < estimate.high
    assert estimate == interquartile_means(scores)["one"]


def test_the_report_compares_what_has_the_present_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(suites_report, "BOOTSTRAPS", 50)
    results = Results(tmp_path)
    for seed in range(3):
        for name, value in (("PPO", 2.0), ("PPG", 4.0)):
            for one in trainings(tasks=[ASTERIX.env_id], contestants=[name], seeds=[seed], n_timesteps=1000):
                results.add(one, outcome_of(one, value + seed / 10))
    outdated = Training(ASTERIX, "PPG, dual", 0, 1000)
    results.add(outdated, outcome_of(outdated, 99.0))
    monkeypatch.setitem(CONTESTANTS, "PPG, dual", Contestant("ppg", dict(n_epochs=5)))
    text = report(results)
    score = (4.1 - ASTERIX.low) / (ASTERIX.high - ASTERIX.low)
    assert f"| PPG | 4.0, 4.1, 4.2 | {score:.2f} (" in text and "| 1.00 (1.00 to 1.00) | 100 |" in text
    assert "99.0" not in text and (tmp_path / "suites_minatar_1k.png").exists()


def test_times_of_several_machines_are_compared_as_measured_in_turns(tmp_path):
    """A training of PPG takes 10 s here, and one of PPO 10 s on another machine; in turns PPG takes twice as long."""
    results = Results(tmp_path)
    for name in ("PPO", "PPG"):
        one = Training(ASTERIX, name, 0, 1000)
        results.add(one, outcome_of(one, 3.0))
    (of_trainings,) = comparisons(results)
    assert list(of_trainings.seconds("PPG", ASTERIX)) == [5.0, 10.0] and of_trainings.times() == ""
    turns = dict(contestant=["PPO", "PPG"] * 3, seconds=[3.0, 6.0, 4.0, 8.0, 90.0, 180.0], machine="a machine")
    for env_id in ("Hopper-v5", ASTERIX.env_id, "Hopper-v5"):
        results.add_speed(pd.DataFrame(turns).assign(task=env_id))
    assert len(results.speed()) == 12
    (in_turns,) = comparisons(results)
    np.testing.assert_allclose(in_turns.seconds("PPG", ASTERIX), [500 * 8e-6, 1000 * 8e-6])
    assert "PPG takes 2.00 times PPO's time, in turns on a machine. When PPO's trainings end, " in report(results)


def test_scores_in_the_time_of_the_baseline(tmp_path):
    """PPO's 1,000 steps take 4 ms; PPG's take 6 ms, and after 4 ms it is a third of the way from 0, after 3 ms, to its end."""
    results = Results(tmp_path)
    for name, value in (("PPO", 5.0), ("PPG", 9.0)):
        one = Training(ASTERIX, name, 0, 1000)
        results.add(one, outcome_of(one, value))
    turns = dict(contestant=["PPO", "PPG"], seconds=[4.0, 6.0], machine="a machine")
    results.add_speed(pd.DataFrame(turns).assign(task=ASTERIX.env_id))
    (comparison,) = comparisons(results)
    expected = {name: [[(value - ASTERIX.low) / (ASTERIX.high - ASTERIX.low)]] for name, value in (("PPO", 5.0), ("PPG", 3.0))}
    scores = comparison.in_time_of_baseline()
    assert scores.keys() == expected.keys()
    for name, score in expected.items():
        np.testing.assert_allclose(scores[name], score)
    assert "PPG's score by the curves is 0.26, PPO's 0.47; the former is higher with probability 0.00." in comparison.times()


@pytest.mark.parametrize(("algorithm", "n_steps"), [("ppg", 64), ("ppo", 32)])
def test_what_a_step_costs_is_measured_over_whole_phases(algorithm, n_steps, monkeypatch):
    own = {} if algorithm == "ppo" else dict(n_policy_iterations=2, n_aux_epochs=1, aux_batch_size=None)
    monkeypatch.setitem(CONTESTANTS, "tiny", Contestant(algorithm, {**TINY, **own}))
    learned = []
    monkeypatch.setattr(PPG if algorithm == "ppg" else PPO, "learn", lambda model, n, **kwargs: learned.append(n))
    clock = iter([1.0, 4.2])
    monkeypatch.setattr("benchmarks.suites.speed.time.process_time", lambda: next(clock))
    assert whole_phases(ASTERIX, "tiny")() == {"seconds": pytest.approx(3.2e6 / n_steps)} and learned == [n_steps]


def test_a_kill_between_curve_and_row_leaves_no_curve_twice(tmp_path):
    results = Results(tmp_path)
    for name in ("PPO", "PPG"):
        one = Training(ASTERIX, name, 0, 1000)
        results.add(one, outcome_of(one, 3.0))
    rows = tmp_path / "suites.csv"
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-1]))
    assert not results.has(one)
    results.add(one, outcome_of(one, 5.0))
    assert "| PPG | 5.0 |" in report(results) and (tmp_path / "suites_minatar_1k.png").exists()
    assert len(results.curves()) == 2 * len(outcome_of(one, 5.0).curve)


def test_the_queue_may_be_tried_in_another_folder(tmp_path):
    """Nothing of what is committed changes."""
    command = [sys.executable, "-m", "benchmarks.suites", "report", "--results", str(tmp_path)]
    assert subprocess.check_output(command, text=True, cwd=ROOT).startswith("# PPG beside PPO")
    assert [file.name for file in tmp_path.iterdir()] == ["suites.md"]


def test_the_report_says_over_how_many_episodes_agents_were_tested(tmp_path):
    task = next(task for task in TASKS if task.is_tested)
    results = Results(tmp_path)
    for seed, n_episodes in enumerate((200, 2000)):
        one = Training(task, "PPO", seed, 1000)
        outcome = outcome_of(one, 3.0)
        results.add(one, outcome._replace(row=outcome.row | dict(test_return=4.0, test_episodes=n_episodes)))
    text = report(results)
    assert "a machine. On all levels: means of 200 or 2,000 episodes." in text and "| PPO | 4.0, 4.0 |" in text


@pytest.mark.parametrize("name", ["PPG, dual", "PPO"])
def test_where_the_presets_were_not_both_trained_there_is_no_picture(name, tmp_path):
    results = Results(tmp_path)
    one = Training(ASTERIX, name, 0, 1000)
    results.add(one, outcome_of(one, 3.0))
    assert f"| {name} | 3.0 |" in report(results)
    assert (tmp_path / "suites.md").exists() and not list(tmp_path.glob("*.png"))


def test_scores_of_few_seeds_are_drawn_without_an_interval():
    axes = Figure().subplots()
    draw_scores(axes, {"few": np.array([[0.5], [0.7]]), "enough": np.array([[0.1], [0.2], [0.4]])})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["enough", "few"]
    interval, mean, no_interval, mean_of_few = (line.get_xdata() for line in axes.lines)
    assert interval[0] <= mean[0] <= interval[1] and np.isnan(no_interval).all() and mean_of_few[0] == pytest.approx(0.6)


def test_an_ablation_is_measured_where_the_longer_training_of_what_is_changed_passes(tmp_path):
    """Of its two million steps the last fifth of the first million; what has the same settings has its name."""
    results = Results(tmp_path)
    changed = "PPG, learning rate 0.0005"
    longer = {"PPG": 2_000_000, changed: 2_000_000}
    for name, n_timesteps in (longer | {"PPG, detached": 1_000_000, "PPG, dual": 1_000_000, "PPO": 500_000}).items():
        one = Training(ASTERIX, name, len(name), n_timesteps)
        points = pd.DataFrame({"seconds": 1.0, "return": [1, 2, 4, 100], "steps": [800_000, 900_000, 1_000_000, 1_100_000]})
        results.add(one, outcome_of(one, 9.0)._replace(curve=points.assign(settings=one.hash(), seed=one.seed)))
    # The same seed for a million steps, of which more points are known
    one = Training(ASTERIX, changed, len(changed), 1_000_000)
    points = pd.DataFrame({"seconds": 1.0, "return": [2, 3, 7, 4], "steps": [850_000, 900_000, 950_000, 1_000_000]})
    results.add(one, outcome_of(one, 9.0)._replace(curve=points.assign(settings=one.hash(), seed=one.seed)))
    returns = late_returns(comparisons(results))
    expected = {(name, len(name)): 3.0 for name in (*longer, "PPG, dual")} | {(changed, len("PPG, detached")): 3.0}
    expected[changed, len(changed)] = 4.0
    assert {(row.contestant, row.seed): row[4] for row in returns.itertuples()} == expected
    plot_ablation(returns, tmp_path / "ablation.png")
    assert (tmp_path / "ablation.png").stat().st_size > 5_000


def test_the_familys_tables_are_made_of_the_same_rows(tmp_path, monkeypatch):
    """Three seeds of two members on one task; what nobody has run yet is empty."""
    results = Results(tmp_path)
    task = family.BY_NAME["LunarLander-v3"]  # 0 at -180, 1 at 200
    for name, value in (("PPG", 10.0), ("PPO", -85.0), ("PPG, decoupled", 105.0)):
        for seed in range(3):
            one = Training(task, name, seed, 500_000)
            results.add(one, outcome_of(one, value))
    assert all(name in CONTESTANTS for comparison in family.COMPARISONS for name in comparison.contestants)
    assert all(env_id in family.BY_NAME for comparison in family.COMPARISONS for env_id in comparison.tasks)
    small = family.Comparison("Two", "", ["PPG", "PPO"], {"LunarLander-v3": 500_000, "Hopper-v5": 1}, closest=("PPG",))
    assert [one.seed for one in small.trainings() if one.contestant == "PPG"] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert {one.seed for one in small.trainings() if one.contestant == "PPO"} == {0, 1, 2}
    np.testing.assert_allclose(family.scores_of(family.table_of(results, small))["PPO"], np.full((3, 1), 0.25))
    monkeypatch.setattr(family, "COMPARISONS", [small, family.COMPARISONS[1]])
    monkeypatch.setattr(family, "SPEED", tmp_path / "speed.csv")
    pd.DataFrame(dict(contestant=["ppg", "ppg_ewma"] * 3, seconds=[2.0, 3.0] * 3)).to_csv(family.SPEED, index=False)
    text = family.markdown(results)
    assert "| PPO | -85.0, -85.0, -85.0 | 0.25 (0.25 to 0.25) | 0.00 (0.00 to 0.00) |" in text and "Hopper" not in text
    assert family.time_ratios() == {"PPG": "1.00", "ppg_ewma": "1.50"}
    family.plot(results, tmp_path / "family.png")
    assert (tmp_path / "family.png").stat().st_size > 10_000


def test_a_task_whose_seeds_are_still_to_come_is_not_scored():
    table = {name: {"done": np.ones(3 + (name == "PPG")), "begun": np.ones(1), "none": np.ones(0)} for name in ("PPG", "PPO")}
    assert family.scored_tasks(table) == ["done"]
    assert family.scored_tasks({"PPG": {"none": np.ones(0)}}) == []


def test_the_authors_figures_are_set_beside_the_same_average(tmp_path):
    """Returns that rise by one per million steps, for 6M steps and for 8.4M."""
    authors = pd.read_csv(hard.AUTHORS)
    steps = np.arange(1, 129) * 65_536
    full = pd.DataFrame({"steps": steps, "return": steps / 1e6, "seconds": steps / 1000, "precision": "bf16", "machine": "a"})
    assert hard.around(full, 8) == pytest.approx(8.0, abs=0.04) and np.isnan(hard.around(full[steps < 6e6], 8))
    rows = pd.concat([full.assign(game="starpilot", seed=0), full[steps < 6e6].assign(game="starpilot", seed=1)])
    text = hard.markdown(rows, authors)
    assert "| starpilot | 5M | 4.52 ± 0.35 | 3.85 ± 0.24 | 4.98, 4.98 | 1,000 |" in text
    assert "| starpilot | 8M | 7.88 ± 0.42 | 5.83 ± 0.36 | 8.00 | 1,000 |" in text
    hard.plot(rows, authors, tmp_path / "hard.png")
    assert (tmp_path / "hard.png").stat().st_size > 10_000


def test_falls_in_auxiliary_phases_and_between_them():
    """One seed falls by 100 in its second phase, rises by 50 in its third, and has fallen by 60 before the third."""
    rows = pd.DataFrame(
        dict(steps=[1, 2, 3, 4], before=[100.0, 500.0, 400.0, 440.0], after=[300.0, 400.0, 450.0, 430.0], final_kl=0.01)
    ).assign(setting="defaults", seed=0, machine="a machine")
    rows.loc[2, "before"] = 340.0
    text = dips.markdown(pd.concat(rows.assign(setting=setting) for setting in dips.SETTINGS))
    assert "| defaults | 2 | -55.0 | 100 | 60 | 0.0100 | 430 |" in text


def test_the_search_of_defaults_prunes_what_is_poor_and_goes_on(tmp_path, monkeypatch):
    """Scores that rise with the number of epochs."""
    monkeypatch.setattr(defaults, "RESULTS", tmp_path)
    monkeypatch.setattr(defaults, "ROWS", tmp_path / "defaults.csv")
    monkeypatch.setattr(defaults, "LOCKS", tmp_path / "locks")
    n_run = []

    def run(training):
        n_run.append(training)
        task = next(task for task in defaults.SEARCHED if task.env_id == training.env_id)
        return task.low + (task.high - task.low) * json.loads(training.arguments)["n_epochs"] / 20

    monkeypatch.setattr(defaults.Training, "run", run)
    defaults.search(6)
    assert len(defaults.tried()) == 6 and len(set(n_run)) == len(n_run)
    defaults.search(12)
    trials = defaults.tried()
    assert len(trials) == 12 and len(set(n_run)) == len(n_run) == len(defaults.rows())
    for arguments, own in trials.items():
        np.testing.assert_allclose(own, json.loads(arguments)["n_epochs"] / 20, atol=1e-2)
    best = trials[defaults.candidates()[0]].mean()
    assert best == max(own.mean() for own in trials.values())
    assert all(own.mean() < best - 0.1 for own in trials.values() if len(own) < len(defaults.SEARCHED))
    assert defaults.is_poor(np.array([0.4]), [np.array([score]) for score in (0.3, 0.5, 0.5, 0.6)])
    assert not defaults.is_poor(np.array([0.4]), [np.array([score]) for score in (0.3, 0.3, 0.5, 0.5)])
    with defaults.is_free("a trial"), pytest.raises(BlockingIOError), defaults.is_free("a trial"):
        pass


def test_the_table_of_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(suites_report, "BOOTSTRAPS", 50)
    monkeypatch.setattr(defaults, "ROWS", tmp_path / "defaults.csv")
    rows = [
        (algorithm, arguments, task.env_id, seed, task.low + score * (task.high - task.low))
        for algorithm, arguments, score in (("PPO", "{}", 0.25), ("PPG", defaults.defaults(), 0.5))
        for task in (*defaults.SEARCHED, *defaults.UNSEEN)
        for seed in defaults.FINAL_SEEDS
    ]
    table = pd.DataFrame(rows, columns=[*defaults.Training._fields, "return"]).assign(machine="a machine", seconds=1)
    table.to_csv(defaults.ROWS, index=False)
    text = defaults.markdown()
    assert "| the three others | 0.25 (0.25 to 0.25) | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.00) |" in text
    assert "| CartPole-v1 [500] | 50,000 | 141.5 (141.5, 141.5) | 261.0 (261.0, 261.0) |" in text
    defaults.plot(tmp_path / "defaults.png")
    assert (tmp_path / "defaults.png").stat().st_size > 10_000


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_queue_that_is_killed_leaves_no_training_behind(tmp_path):
    """Not even by SIGKILL, which lets the queue say nothing to its workers."""
    program = tmp_path / "trains.py"
    program.write_text(
        "import multiprocessing, os, pathlib, sys, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from benchmarks.machine import end_with_parent\n"
        "def work(file):\n"
        "    pathlib.Path(file).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    with ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with_parent) as pool:\n"
        "        pool.submit(work, sys.argv[1]).result()\n"
    )
    file = tmp_path / "pid"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(program), str(file)], env=environment) as queue_process:
        wait_for(lambda: file.exists() and file.read_text() != "")
        worker = int(file.read_text())
        assert is_alive(worker)
        queue_process.kill()
    wait_for(lambda: not is_alive(worker))

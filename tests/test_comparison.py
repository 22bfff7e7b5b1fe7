"""``compare`` and ``sb3-ppg compare``, from arguments to the picture; verdict and page; runs in processes of their own."""

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd
import psutil
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import UnregisteredEnv
from gymnasium.wrappers import TimeLimit
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, compare
from sb3_ppg.comparison import scores
from sb3_ppg.comparison.report import Comparison
from sb3_ppg.comparison.runs import Runs
from sb3_ppg.comparison.scores import Estimate, improvements, interquartile_means, is_told_apart, seeds_needed
from sb3_ppg.comparison.training import Episodes, FromClass, Made, curve, described, evaluate, train
from sb3_ppg.comparison.workers import Worker, take_turns, tell
from tests.helpers import ROOT, run, wait_for

SMALL = dict(n_steps=32, batch_size=32, device="cpu")
PHASES = dict(SMALL, n_policy_iterations=2, aux_batch_size=32)


@pytest.mark.slow
def test_the_command_from_two_tiny_runs_to_the_picture(tmp_path):
    """An interrupted comparison goes on: only what has no row is carried out, and the speed is known."""
    entries = "CartPole-v1: {policy: MlpPolicy, n_timesteps: 1000, n_steps: 32, batch_size: 32}"
    (tmp_path / "mine.yml").write_text(entries)
    command = ["compare", "--env", "CartPole-v1", "--algos", "ppo", "-conf", "ppo:mine.yml", "ppg:mine.yml", "-n", "300"]
    command += ["--set", "ppg:n_aux_epochs=2", "n_policy_iterations=2", "--seeds", "1", "--eval-episodes", "2", "-f", "here"]
    output = run(*command, cwd=tmp_path)
    folder = tmp_path / "here"
    assert "2 trainings, 2 to carry out" in output and "nothing is claimed" in output
    assert (folder / "compare.png").stat().st_size > 10_000
    rows, curves = pd.read_csv(folder / "compare.csv"), pd.read_csv(folder / "compare_curves.csv")
    names = ["ppo", "ppg n_aux_epochs=2 n_policy_iterations=2"]
    assert set(rows["contestant"]) == set(curves["contestant"]) == set(names) and (rows["steps"] == 320).all()
    assert curves["steps"].max() == 300 and rows["mean"].between(5, 500).all()
    page = (folder / "compare.md").read_text()
    assert "# ppo or ppg n_aux_epochs=2 n_policy_iterations=2 in CartPole-v1?" in page and "n_policy_iterations: 2" in page
    rows.tail(1).to_csv(folder / "compare.csv", index=False)
    again = run(*command, cwd=tmp_path)
    assert "2 trainings, 1 to carry out" in again and "Measuring" not in again
    assert len(pd.read_csv(folder / "compare.csv")) == 2


@pytest.mark.slow
def test_a_function_that_makes_environments_with_their_wrappers(tmp_path):
    """Seconds are the limit, of which the faster algorithm makes more steps."""

    def make():
        return VecNormalize(make_vec_env("CartPole-v1", 2), norm_obs=False)

    contestants = {"PPG": (PPG, dict(PHASES, compile_updates=False)), "PPO": (PPO, SMALL)}
    found = compare(make, contestants, seconds=0.5, n_seeds=1, n_eval_episodes=1, folder=tmp_path)
    steps, speed = found.rows.set_index("contestant")["steps"], found.speed
    for name in contestants:
        fitting = int((0.5 - speed.loc[name, "compiling"]) / speed.loc[name, "seconds"] * 1e6)
        assert steps[name] == math.ceil(fitting / 64) * 64  # whole rollouts
    assert found.end("seconds") < 0.51 and "policy_kwargs" not in found.settings["PPO"]


@pytest.mark.slow
def test_an_environment_that_the_program_has_registered(tmp_path, monkeypatch):
    """The processes that train do not know its ID."""
    monkeypatch.setitem(gymnasium.registry, "Mine-v0", EnvSpec("Mine-v0", EndsAfterNoise, max_episode_steps=9))
    found = compare("Mine-v0", {"PPO": (PPO, SMALL), "PPG": (PPG, PHASES)}, 60, n_seeds=1, n_eval_episodes=1, folder=tmp_path)
    assert found.title == "Mine-v0" and (found.rows["mean"] == 9).all() and found.settings["PPO"]["env"] == "Mine-v0"
    with pytest.raises(UnregisteredEnv):
        compare("Nine-v0", {"PPG": PPG, "PPO": PPO}, 60, folder=tmp_path)


def test_arguments_that_cannot_work(tmp_path):
    given = dict(env="CartPole-v1", contestants={"PPG": PPG, "PPO": PPO}, n_timesteps=100, folder=tmp_path)
    for arguments, message in (
        (dict(env=3), "`env`=3 cannot work"),
        (dict(contestants={"PPG": PPG}), "two contestants"),
        (dict(n_timesteps=None), "a length"),
        (dict(seconds=3.0), "a length"),
    ):
        with pytest.raises(ArgumentError, match=message):
            compare(**given | arguments)


def test_a_row_has_the_return_of_its_evaluation(tmp_path):
    row, points = train(FromClass(PPO, CartPoleEnv, SMALL, 2), 3, 640, tmp_path, n_episodes=3)
    assert row["steps"] == 640 and 5 < row["mean"] < 500 and row["std"] >= 0
    assert points["steps"].iloc[-1] == 640 and points["return"].notna().all()
    with pytest.raises(ArgumentError, match="no episode has ended within 150 steps"):  # in the rollout that takes 256
        make = FromClass(PPO, partial(gymnasium.make, "Pendulum-v1"), dict(SMALL, n_steps=256), 1)
        train(make, 0, 150, tmp_path, n_episodes=3)


class EndsAfterNoise(gymnasium.Env):
    """Ends when an action is far from zero, which without exploration it never is, as in games with moves that do nothing."""

    observation_space, action_space = spaces.Box(0, 0, (1,)), spaces.Box(-2, 2, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, bool(abs(action[0]) > 1), False, {}


def test_an_evaluation_that_would_not_end_has_no_return(tmp_path):
    row, points = train(FromClass(PPO, EndsAfterNoise, SMALL, 1), 0, 320, tmp_path, n_episodes=2)
    assert np.isnan(row["mean"]) and np.isnan(row["std"]) and points["return"].notna().all()


def test_an_evaluation_in_unequal_environments_has_a_return(tmp_path):
    """An environment that has played its share is stepped on, and its length counted."""
    model = FromClass(PPO, CartPoleEnv, SMALL, 1)(0, tmp_path).model
    env = DummyVecEnv([partial(TimeLimit, CartPoleEnv(), n) for n in (1, 8)])
    assert evaluate(Made(model, lambda: env), 20, 8)[0] == 4.5


def test_seeds_are_runs_and_masks_are_used(tmp_path):
    made = [FromClass(PPG, CartPoleEnv, PHASES, 1)(seed, tmp_path).model.policy.state_dict() for seed in (0, 0, 1)]
    first, same, other = (weights["action_net.weight"].numpy() for weights in made)
    assert np.array_equal(first, same) and not np.array_equal(first, other)

    class Masked(InvalidActionEnvDiscrete):
        def __init__(self):
            super().__init__(dim=20, n_invalid_actions=19)  # so that only masks find the action

    model = FromClass(MaskablePPG, Masked, PHASES, 1)(0, tmp_path)
    model.model.learn(64)
    assert evaluate(model, 2)[0] == Masked().ep_length


def test_settings_are_the_same_in_every_process():
    made = described({"kwargs": {"cls": PPO, "net": [64, 64]}, "rate": lambda x: x, "n": 3, "object": object()})
    assert made["kwargs"] == {"cls": "stable_baselines3.ppo.ppo.PPO", "net": "[64, 64]"} and made["n"] == 3
    assert "0x" not in str(made)


def test_the_curve_is_the_mean_of_the_latest_episodes():
    episodes = pd.DataFrame({"steps": np.arange(1, 201), "seconds": np.arange(1, 201) / 10, "return": np.arange(200.0)})
    points = curve(episodes, 400)
    assert list(points["steps"]) == [8 * (1 + i) for i in range(50)]
    assert points["return"].iloc[0] == 3.5 and points["return"].iloc[-1] == 149.5 and points["seconds"].iloc[0] == 0.8
    assert curve(episodes.tail(1), 400)["steps"].iloc[0] == 200


def test_episodes_and_rollouts_are_recorded():
    clock = iter(range(1000))
    episodes = Episodes(lambda: next(clock))
    PPO("MlpPolicy", "CartPole-v1", **SMALL).learn(128, callback=episodes)
    assert [steps for steps, _ in episodes.times] == [0, 32, 64, 96, 128]
    assert episodes.table()["steps"].is_monotonic_increasing and (episodes.table()["return"] > 5).all()


STEPS = np.array([100, 200, 300, 400])


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch):
    monkeypatch.setattr(scores, "BOOTSTRAPS", 200)


def comparison(**ends: list[float]) -> Comparison:
    """Return runs that rise from 0 to these returns, and stay there from half of the steps on; B takes twice A's time."""
    curves = [
        pd.DataFrame({"contestant": name, "seed": seed, "steps": STEPS, "return": end * np.minimum(STEPS / 200, 1)})
        for name, values in ends.items()
        for seed, end in enumerate(values)
    ]
    rows = [
        {"contestant": name, "seed": seed, "mean": end + 1, "machine": "a machine"}
        for name, values in ends.items()
        for seed, end in enumerate(values)
    ]
    speed = pd.DataFrame({"compiling": [0.0, 0.1], "seconds": [1000.0, 2000.0]}, index=["A", "B"])
    return Comparison("Walk", pd.DataFrame(rows), pd.concat(curves), speed, {"A": {"n": 1}, "B": {"n": 2}})


def test_a_lead_that_the_intervals_carry_is_told():
    verdict = comparison(A=[10, 11, 12, 13, 14], B=[1, 2, 3, 4, 5]).verdict()
    assert verdict == (
        "With 5 seeds, A is ahead of B in steps (P 1.00, 1.00 to 1.00); A is ahead of B in seconds (P 1.00, 1.00 to 1.00)."
    )
    assert "A is behind B in steps" in comparison(A=[1, 2, 3, 4, 5], B=[10, 11, 12, 13, 14]).verdict()


def test_a_lead_that_may_be_chance_is_not_told():
    """A is better in 18 of 25 pairs."""
    verdict = comparison(A=[1, 4, 6, 8, 10], B=[2, 3, 5, 0, 7]).verdict()
    assert verdict.count("A and B cannot be told apart in steps (P 0.72") == 1
    assert "about 28 seeds of each would be needed, if this is the true P" in verdict
    assert "ahead" not in verdict and "behind" not in verdict


@pytest.mark.parametrize("n_seeds", [1, 3])
def test_few_seeds_claim_nothing(n_seeds):
    few = comparison(A=[10.0] * n_seeds, B=[1.0] * n_seeds)
    assert "nothing is claimed: the mean returns are A 10.0, B 1.0 after the same steps" in few.verdict()
    page = few.page()
    assert page.startswith("# A or B in Walk?\n") and "a machine" in page and "B:\n  n: 2" in page
    assert ", mean |" in page and "interquartile" not in page and "ahead" not in page


def test_equals_are_told_apart_in_fewer_than_five_of_a_hundred_comparisons():
    """The interval alone would do so in eight or nine."""
    draws = np.random.default_rng(0).standard_normal((300, 2, 5, 1))
    claims = [is_told_apart(improvements({"A": a}, b)["A"], a[:, 0], b[:, 0]) for a, b in draws]
    assert 0 < np.mean(claims) < 0.05


def test_seconds_are_those_of_the_measured_speed():
    """B's 400 steps take 0.1 s at the beginning and 0.8 s; A's have taken 0.4 s, when B is at 150 steps."""
    found = comparison(A=[10.0] * 4, B=[8.0] * 4)
    assert found.end("steps") == 400 and found.end("seconds") == pytest.approx(0.4)
    np.testing.assert_allclose(found.returns("seconds")["B"], 6.0)
    np.testing.assert_allclose(found.returns("steps")["B"], 8.0)
    assert found.at_target("B", "steps", 8.0) == "200 (4 of 4 seeds)"
    assert found.at_target("B", "seconds", 8.0) == "0.5 (4 of 4 seeds)"
    assert found.at_target("B", "steps", 9.0) == "not reached (0 of 4 seeds)"


def test_the_interquartile_mean_is_that_of_the_middle_half():
    values = {"one": np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 70.0]])}
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.50 (0.25 to 0.75)" and str(Estimate(0.5)) == "0.50"
    estimate = interquartile_means(values)["one"]
    assert estimate.value == 3.5 and estimate.low < 3.5 < estimate.high
    state = np.random.get_state()[1].copy()
    assert estimate == interquartile_means(values)["one"]
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # a guest


def test_the_number_of_seeds_is_noethers():
    """(1.96 + 0.84)^2 / (6 (P - 1/2)^2)"""
    assert seeds_needed(0.7) == 33 and seeds_needed(0.9) == 9 and seeds_needed(0.5) == np.inf


TOSSES = [dict(coin=coin, seed=seed) for coin in ("1e5", "a pound") for seed in range(2)]


def toss(run, folder):
    assert folder.is_dir()
    tell(0.5)
    print("tossed")
    return {"heads": run["seed"] % 2}, pd.DataFrame({"steps": [1, 2], "return": [0.5, run["seed"]]})


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "results", "tosses", TOSSES[0])


def add(runs, *tosses):
    for one in tosses:
        runs.add(one, *toss(one, Path()))


@pytest.mark.slow
def test_what_is_missing_is_carried_out(runs, tmp_path):
    add(runs, TOSSES[1])
    log = tmp_path / "log.txt"
    runs.carry_out(TOSSES, toss, log, n_jobs=2)
    assert runs.missing(TOSSES) == [] and len(runs.rows()) == len(TOSSES) and len(runs.curves()) == 2 * len(TOSSES)
    assert log.read_text().count("tossed") == len(TOSSES) - 1
    assert set(runs.rows()["coin"]) == {"1e5", "a pound"}  # text that could be a number


@pytest.mark.slow
def test_a_run_that_fails_says_why_and_the_others_are_kept(runs, tmp_path):
    def fail(run, folder):
        if run["seed"] == 1:
            raise KeyError("the coin is lost")
        return toss(run, folder)

    with pytest.raises(RuntimeError, match="the coin is lost"):
        runs.carry_out(TOSSES[:2], fail, tmp_path / "log.txt")
    assert runs.missing(TOSSES[:2]) == [TOSSES[1]]


def test_a_kill_between_curve_and_row_leaves_no_curve_twice(runs):
    add(runs, *TOSSES[:2])
    file = runs.folder / "tosses.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert runs.missing(TOSSES[:2]) == [TOSSES[1]]
    runs.add(TOSSES[1], {"heads": 1}, pd.DataFrame({"steps": [1, 2], "return": [7.0, 8.0]}))
    assert list(runs.curves()["return"]) == [0.5, 0.0, 7.0, 8.0] and len(runs.rows()) == 2
    assert list(runs.rows(TOSSES[1:2])["heads"]) == [1]


def refuse():
    raise ArgumentError("`coin`=0 cannot work")


@pytest.mark.slow
def test_a_worker_passes_on_results_progress_and_errors():
    heard = []
    with Worker() as worker:
        assert worker(lambda x: tell(0.25) or x + os.getpid(), 1, on_progress=heard.append) == worker.process.pid + 1
        assert heard == [0.25]
        with pytest.raises(ArgumentError, match="`coin`=0 cannot work"):
            worker(refuse)
        with pytest.raises(RuntimeError, match="ended with status 7"):
            worker(lambda: os._exit(7))


@pytest.mark.slow
def test_contestants_take_turns():
    def make(number):
        times = iter(range(10))
        return lambda: {"seconds": number + next(times)}

    turns = take_turns({"one": (make, (10,)), "two": (make, (20,))}, n_turns=2)
    assert list(turns["contestant"]) == ["one", "two"] * 3
    assert list(turns["turn"]) == [0, 0, 1, 1, 2, 2] and list(turns["seconds"]) == [10, 20, 11, 21, 12, 22]


@pytest.mark.slow
def test_a_comparison_that_is_killed_leaves_no_run_behind(tmp_path):
    """Even SIGKILL, after which it can tell its workers nothing, ends them. The script does not ask for ``__main__``."""
    program, file = tmp_path / "trains.py", tmp_path / "pid"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "from sb3_ppg.comparison.workers import Worker\n"
        "def work(file):\n"
        "    pathlib.Path(file).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "Worker()(work, sys.argv[1])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(program), str(file)], env=environment) as queue:
        wait_for(lambda: file.exists() and file.read_text() != "")
        worker = psutil.Process(int(file.read_text()))
        queue.kill()
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)

"""``sb3-ppg compare`` from its options to the picture; its runs, which are those of ``train``; verdict and page."""

import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import psutil
import pytest
from stable_baselines3 import PPO

from sb3_ppg import ArgumentError
from sb3_ppg.comparison import scores
from sb3_ppg.comparison.report import Comparison
from sb3_ppg.comparison.runs import Episodes, Run, carry_out, code_hashes
from sb3_ppg.comparison.scores import Estimate, improvements, interquartile_means, is_told_apart, seeds_needed
from tests.helpers import ROOT, run, wait_for

ENTRY = "CartPole-v1: {policy: MlpPolicy, n_timesteps: 1000, n_steps: 32, batch_size: 32}"
# Ends when an action is far from zero, which without exploration it never is, as in games with moves that do nothing; PPO in a
# class of the user's
MODULE = """
import gymnasium, numpy as np
from gymnasium import spaces
from rl_zoo3 import ALGOS
from stable_baselines3 import PPO

class EndsAfterNoise(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 0, (1,)), spaces.Box(-2, 2, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, bool(abs(action[0]) > 1), False, {}

class Mine(PPO):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{"n_steps": 32, "batch_size": 32, **kwargs})

gymnasium.register("Noise-v0", EndsAfterNoise)
ALGOS["mine"] = Mine
"""


def test_long_words_of_a_command_are_no_files():
    assert "x" * 10_000 not in code_hashes((), ["x" * 10_000])


@pytest.mark.slow
def test_the_command_from_two_tiny_runs_to_the_picture(tmp_path):
    """Runs are known by their content: a run whose entry has changed is another one."""
    mine = tmp_path / "mine.yml"
    mine.write_text(ENTRY)
    variant = "ppg: n_aux_epochs=2 n_policy_iterations=2"
    command = ["compare", "--env", "CartPole-v1", "--algos", "ppo", variant, "-conf", "ppo:mine.yml", "ppg:mine.yml"]
    command += ["-n", "300", "--seeds", "1", "--jobs", "2", "--eval-episodes", "2", "-params", "gamma:0.9", "-f", "here"]
    output = run(*command, cwd=tmp_path)
    folder = tmp_path / "here"
    assert "2 runs, 2 to carry out" in output and "nothing is claimed" in output
    assert (folder / "compare.png").stat().st_size > 10_000
    rows, curves = pd.read_csv(folder / "compare.csv"), pd.read_csv(folder / "compare_curves.csv")
    assert set(rows["contestant"]) == set(curves["contestant"]) == {"ppo", variant}
    assert curves["steps"].max() == 300 and rows["mean"].between(5, 500).all()
    page = (folder / "compare.md").read_text()
    assert f"# ppo or {variant} in CartPole-v1?" in page and "n_policy_iterations: 2" in page and "gamma: 0.9" in page
    next(folder.glob("ppo_*/0/finished")).unlink()
    assert "2 runs, 1 to carry out" in run(*command, cwd=tmp_path)
    mine.write_text(ENTRY.replace("32}", "16}"))
    assert "2 runs, 2 to carry out" in run(*command, cwd=tmp_path)


@pytest.mark.slow
def test_classes_and_environments_of_a_module_and_an_evaluation_that_would_not_end(tmp_path):
    (tmp_path / "noise.py").write_text(MODULE)
    command = ["compare", "--env", "Noise-v0", "--algos", "ppg", "mine", "--gym-packages", "noise", "--defaults"]
    command += ["-n", "512", "--seeds", "1", "--jobs", "2", "-f", "here"]
    run(*command, cwd=tmp_path)
    rows = pd.read_csv(tmp_path / "here" / "compare.csv")
    assert set(rows["contestant"]) == {"ppg", "mine"} and rows["mean"].isna().all() and (rows["seconds"] > 0).all()
    log = next(tmp_path.glob("here/mine_*/0/log.txt")).read_text()
    assert log.count("An evaluation was given up") == 1
    assert "here/mine_defaults.yml" in (tmp_path / "here" / "compare.md").read_text()
    for code, n_runs in ((MODULE, 0), (MODULE.replace("1.0, bool", "2.0, bool"), 2)):
        (tmp_path / "noise.py").write_text(code)
        del sys.modules["noise"]
        assert f"2 runs, {n_runs} to carry out" in run(*command, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_that_is_ended_leaves_no_run_behind(how, tmp_path):
    """Even SIGKILL, after which it can tell them nothing, ends the runs; Ctrl-C does not finish them."""
    command = "compare --env CartPole-v1 -n 999999 --seeds 1 --jobs 2 -f here"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-m", "sb3_ppg", *command.split()], cwd=tmp_path, env=environment) as compare:
        wait_for(lambda: len([*tmp_path.glob("here/*/0/episodes.csv")]) == 2)
        children = psutil.Process(compare.pid).children()
        compare.send_signal(how)
    assert len(children) == 2
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    assert not [*tmp_path.glob("here/*/0/CartPole-v1.zip")] and not [*tmp_path.glob("here/*/0/finished")]


@pytest.mark.slow
def test_a_run_that_fails_shows_the_end_of_its_log(tmp_path):
    failing = Run(tmp_path / "0", ["--algo", "ppg", "--env", "CartPole-v1", "-n", "64", "--device", "abacus"], 64)
    with pytest.raises(ArgumentError, match=r"(?s)ended with status 1; the end of .*log.txt:\n.*abacus"):
        carry_out([failing, Run(tmp_path / "1", ["--algo", "ppg", "-n", "64"], 64)])
    assert not failing.is_finished and not (tmp_path / "1").exists()


def test_the_curve_is_the_mean_of_the_latest_episodes(tmp_path):
    episodes = pd.DataFrame({"steps": np.arange(1, 201), "seconds": np.arange(1, 201) / 10, "return": np.arange(200.0)})
    episodes.to_csv(tmp_path / "episodes.csv", index=False)
    points = Run(tmp_path, [], 400).curve(n_latest=100)
    assert list(points["steps"]) == [8 * (1 + i) for i in range(50)]
    assert points["return"].iloc[0] == 3.5 and points["return"].iloc[-1] == 149.5 and points["seconds"].iloc[0] == 0.8
    episodes.tail(1).to_csv(tmp_path / "episodes.csv", index=False)
    assert Run(tmp_path, [], 400).curve()["steps"].iloc[0] == 200


def test_a_run_that_goes_on_keeps_the_episodes_until_its_checkpoint(tmp_path):
    file, model = tmp_path / "episodes.csv", PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, seed=0, device="cpu")
    model.learn(256, callback=Episodes(str(file)))
    before = pd.read_csv(file)
    assert before["steps"].is_monotonic_increasing and before["seconds"].is_monotonic_increasing
    assert (before["return"] > 5).all() and before["steps"].max() > 192
    model.num_timesteps = 128
    model.learn(128, callback=Episodes(str(file)), reset_num_timesteps=False)
    after, n_kept = pd.read_csv(file), (before["steps"] <= 128).sum()
    pd.testing.assert_frame_equal(after[:n_kept], before[:n_kept])
    assert after["steps"].is_monotonic_increasing and after["seconds"].is_monotonic_increasing and len(after) > n_kept


STEPS = np.array([100, 200, 300, 400])


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch):
    monkeypatch.setattr(scores, "BOOTSTRAPS", 200)


def comparison(**ends: list[float]) -> Comparison:
    """Return runs that rise from 0 to these returns, and stay there from half of the steps on; B takes twice A's time."""
    seconds = {"A": STEPS / 1000, "B": STEPS / 500 + 0.1}
    runs = [(name, seed, end) for name, values in ends.items() for seed, end in enumerate(values)]
    rows = [{"contestant": name, "seed": seed, "mean": end + 1, "machine": "a machine"} for name, seed, end in runs]
    curves = [
        pd.DataFrame({"steps": STEPS, "seconds": seconds[name], "return": end * np.minimum(STEPS / 200, 1)}).assign(**row)
        for (name, _, end), row in zip(runs, rows, strict=True)
    ]
    return Comparison("Walk", pd.DataFrame(rows), pd.concat(curves), {"A": {"n": 1}, "B": {"n": 2}})


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


@pytest.mark.slow
def test_equals_are_told_apart_in_fewer_than_five_of_a_hundred_comparisons():
    """The interval alone would do so in eight or nine."""
    draws = np.random.default_rng(0).standard_normal((300, 2, 5, 1))
    claims = [is_told_apart(improvements({"A": a}, b)["A"], a[:, 0], b[:, 0]) for a, b in draws]
    assert 0 < np.mean(claims) < 0.05


def test_seconds_are_those_that_the_runs_have_taken():
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

"""The file of a run's logged values, and the diagnosis that ``report`` makes of it."""

import re

import pandas as pd
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ppg import PPG
from sb3_ppg.zoo.diagnosis import LOGGED, SIGNS, LogFile, medians, signs, whole_rows
from tests import helpers
from tests.helpers import ROOT, run
from tests.training.test_collecting import Countdown
from tests.zoo.programs import SMALL
from tests.zoo.test_train import killed

TUNING = (ROOT / "docs" / "guides" / "tuning.md").read_text()


def test_the_page_has_the_signs_of_the_code_and_no_others():
    rows = re.findall(r"^\| `(.*)` \| .* \| (.*) \| (.*) \| (.*) \|$", TUNING, re.MULTILINE)
    on_the_page = [(f"{value} {sign}".replace("`", ""), *others) for value, sign, *others in rows if re.search(r"\d", sign)]
    assert on_the_page == [tuple(sign) for sign in SIGNS]


def test_the_page_has_each_value_that_training_logs():
    logged = re.findall(r"`((?:train|aux)/\w[^`]*)`", (ROOT / "docs" / "logs.md").read_text())
    assert len(logged) > 30 and not [name for name in logged if f"`{name}`" not in TUNING]


def test_signs_of_recorded_runs():
    """Three that are good and one without value units: the curves of the page. The number of phases is not a median."""
    rows = pd.read_csv(ROOT / "benchmarks" / "results" / "logs.csv")
    rows = rows[rows["value"] != "aux/n_phases"]
    found = {name: signs(dict(zip(own["value"], own["median"], strict=True))) for name, own in rows.groupby("run")}
    assert [sign.bounds.split()[0] for sign in found.pop("sick")] == ["train/grad_norm", "aux/final_kl"]
    assert found == dict(defaults=[], paper=[], Pendulum=[])


@pytest.mark.parametrize(("ends", "told"), [((False, True), []), ((True, False), ["rollout/hidden_limit"])])
def test_a_time_limit_that_is_reported_as_a_termination_is_a_sign(ends, told, tmp_path):
    env = DummyVecEnv([lambda: Countdown(lengths=[3, 2, 9], ends=ends)])
    PPG("MlpPolicy", env, **{**helpers.SMALL, "n_policy_iterations": 1}).learn(256, LogFile(str(tmp_path), True))
    found = [sign.bounds.split()[0] for sign in signs(medians(tmp_path, env.action_space))]
    assert [name for name in found if name.startswith("rollout")] == told


@pytest.mark.parametrize(("n_aux_epochs", "told"), [(1, ["aux/n_phases below 3"]), (0, [])])
def test_a_run_without_a_finished_phase_has_hardly_any_unless_it_wants_none(n_aux_epochs, told, tmp_path):
    model = PPG("MlpPolicy", "CartPole-v1", **{**helpers.SMALL, "n_policy_iterations": 9, "n_aux_epochs": n_aux_epochs})
    model.learn(4 * model.n_steps, LogFile(str(tmp_path), True))
    found = [sign.bounds for sign in signs(medians(tmp_path, model.action_space))]
    assert [bounds for bounds in found if "n_phases" in bounds] == told


@pytest.mark.slow
def test_a_run_that_goes_on_keeps_its_rows_until_the_checkpoint(tmp_path):
    """Values of the auxiliary phase come later than others; a kill may cut the last line."""
    options = ["--eval-freq", "-1", "--seed", "3", "--save-freq", "128", "-n", "384", *SMALL]
    command, log = ["train", "--run-folder", "mine", *options], tmp_path / "mine" / LOGGED
    killed(command, tmp_path, PPG, "train", 320)
    before = log.read_text()
    log.write_text(before[:-9])
    assert [row["time/total_timesteps"] for _, row in whole_rows(log)] == [64, 128, 192, 256]
    assert medians(log.parent, spaces.Discrete(2))["train/approx_kl"] > 0
    run(*command, cwd=tmp_path)
    assert log.read_text().splitlines()[:4] == before.splitlines()[:4]
    rows = pd.read_json(log, lines=True)
    assert rows["time/total_timesteps"].tolist() == [*range(64, 385, 64), 384] and rows["aux/n_phases"].max() == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "options", "said"),
    [
        ("ppg", "n_policy_iterations:2 learning_rate:0.05", "train/approx_kl"),
        ("ppg", "n_policy_iterations:2 normalize_value_targets:False normalize:False", "train/grad_norm"),
        ("ppg", "n_policy_iterations:2 n_aux_epochs:1", "aux/optimizer_steps"),
        ("ppo", "", "none, without three rows in"),
    ],
)
def test_report_names_what_was_spoiled(algo, options, said, tmp_path):
    words = f"train --algo {algo} --env Pendulum-v1 --run-folder mine -n 2048 --eval-freq -1 -params n_steps:128 n_envs:1"
    run(*words.split(), *options.split(), cwd=tmp_path)
    report = run("report", "--run-folder", "mine", "--episodes", "1", cwd=tmp_path)
    assert said in report.partition("Diagnosis:")[2]

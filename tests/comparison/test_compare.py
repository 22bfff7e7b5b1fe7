"""``compare`` and ``sb3-ppg compare``, from their arguments to the picture."""

import math

import numpy as np
import pandas as pd
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, compare
from sb3_ppg.comparison.training import Episodes, FromClass, curve, described, evaluate, train
from tests.helpers import run

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(env=3), "`env`=3 cannot work"),
        (dict(contestants={"PPG": PPG}), "two contestants"),
        (dict(n_timesteps=None), "a length"),
        (dict(seconds=3.0), "a length"),
        (dict(n_seeds=0), "`n_seeds`=0 cannot work"),
    ],
)
def test_arguments_that_cannot_work(arguments, message, tmp_path):
    given = dict(env="CartPole-v1", contestants={"PPG": PPG, "PPO": PPO}, n_timesteps=100, folder=tmp_path) | arguments
    with pytest.raises(ArgumentError, match=message):
        compare(**given)


def test_a_row_has_the_return_of_its_evaluation(tmp_path):
    row, points = train(FromClass(PPO, "CartPole-v1", SMALL, 2), 3, 640, tmp_path, n_episodes=3)
    assert row["steps"] == 640 and 5 < row["mean"] < 500 and row["std"] >= 0
    assert points["steps"].iloc[-1] == 640 and points["return"].notna().all()
    with pytest.raises(ArgumentError, match="no episode has ended within 2 steps"):
        train(FromClass(PPO, "Pendulum-v1", SMALL, 1), 0, 2, tmp_path, n_episodes=3)


def test_seeds_are_runs_and_masks_are_used(tmp_path):
    made = [FromClass(PPG, "CartPole-v1", PHASES, 1)(seed, tmp_path).model.policy.state_dict() for seed in (0, 0, 1)]
    first, same, other = (weights["action_net.weight"].numpy() for weights in made)
    assert np.array_equal(first, same) and not np.array_equal(first, other)
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

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

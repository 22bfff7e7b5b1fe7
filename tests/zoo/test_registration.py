"""``register()`` and ``patched()``, environments, hyperparameter files, and ``Manager`` as the Zoo's scripts use it."""

import json
from argparse import Namespace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import rl_zoo3
import yaml
from rl_zoo3.utils import SimpleLinearSchedule
from stable_baselines3 import PPO

from benchmarks.entries import entries_of
from benchmarks.harness import RESULTS
from benchmarks.starts import EXAMPLES, STARTS, tuned_entries
from sb3_ppg import MaskablePPG
from sb3_ppg.comparison.runs import short_hash
from sb3_ppg.zoo import ALGOS, patched, register
from sb3_ppg.zoo.hyperparameters import FAMILIES, eval_expression, hyperparameter_file
from sb3_ppg.zoo.manager import Manager
from tests.helpers import run_in_a_new_process
from tests.zoo.programs import register_and_repair

pytestmark = pytest.mark.slow


def test_registering_sets_one_name_and_repairs_end_with_their_block():
    """Also in ``train`` that was imported before; the Zoo's classes stay as they were, and a second call changes nothing."""
    run_in_a_new_process(register_and_repair)


def test_other_algorithms_are_the_zoos(tmp_path, monkeypatch):
    register()
    monkeypatch.chdir(tmp_path)
    manager = Manager(Namespace(), "ppo", "CartPole-v1", str(tmp_path), eval_freq=-1)
    model, hyperparameters = manager.setup_experiment()
    assert manager.config.startswith(str(Path(rl_zoo3.__file__).parent)) and hyperparameters["n_steps"] == 32
    assert type(model) is PPO and isinstance(model.learning_rate, SimpleLinearSchedule)


def test_a_model_acts_under_the_masks_of_the_environment_that_it_is_played_in():
    """The one that was made last; if it is given masks, it acts under those."""
    model = MaskablePPG("MlpPolicy", "InvalidActionsDiscrete-v0", n_steps=16, batch_size=16)

    def actions(**masks) -> set[int]:
        return {int(model.predict(np.array(0), **masks)[0]) for _ in range(200)}

    with patched():
        for n_invalid_actions in (99, 97):
            options = dict(hyperparams={}, should_render=False, env_kwargs=dict(n_invalid_actions=n_invalid_actions))
            env = rl_zoo3.utils.create_test_env("InvalidActionsDiscrete-v0", **options)
            env.reset()
            assert actions() == {*np.flatnonzero(env.env_method("action_masks")[0])}
        assert actions(action_masks=np.arange(100) == 7) == {7}
    assert len(actions()) > 5


# ---- environments ----


def test_games_of_minatar_have_pictures():
    """The package's own are too small and too dark for a video."""
    register()
    for env_id, n_actions in (("MinAtar/SpaceInvaders-v0", 6), ("MinAtar/SpaceInvaders-v1", 4)):
        env = gym.make(env_id, render_mode="rgb_array", sticky_action_prob=0.0)
        env.reset(seed=1)
        picture = env.render()
        assert picture.shape == (240, 240, 3) and picture.dtype == np.uint8 and picture.max() > 100
        assert env.action_space.n == n_actions and len(np.unique(picture[:24, :24].reshape(-1, 3), axis=0)) == 1


# ---- hyperparameter files ----

ENTRIES = [(algo, entry) for algo in ALGOS for entry in yaml.safe_load(hyperparameter_file(algo).read_text())]


@pytest.mark.parametrize(("algo", "entry"), ENTRIES)
def test_every_entry_of_our_files_makes_a_model(algo, entry, tmp_path, monkeypatch, capsys):
    """With its environment, as ``train`` makes it; PyBullet, which is not installed here, has a stand-in."""
    register()
    monkeypatch.chdir(tmp_path)
    if "Bullet" in entry:
        monkeypatch.setitem(gym.registry, entry, gym.spec("Pendulum-v1"))
    env_id, config = EXAMPLES.get(entry, entry), None
    if entry.startswith("procgen-"):  # a preset to copy from
        env_id, config = "CoinrunHard-v0", "mine.yml"
        settings = yaml.safe_load(hyperparameter_file("ppg").read_text())[entry]
        Path(config).write_text(yaml.safe_dump({env_id: settings}))
    manager = Manager(Namespace(), algo, env_id, str(tmp_path), eval_freq=-1, config=config)
    model, hyperparameters = manager.setup_experiment()
    assert type(model) is ALGOS[algo] and model.n_envs == hyperparameters["n_envs"]
    assert model.batch_size <= model.n_steps * model.n_envs
    assert (f"Using {entry!r} hyperparameters" in capsys.readouterr().out) == (entry in {"default", *FAMILIES})
    model.env.close()


# IDs in the Zoo's files that Gymnasium refuses, for which ours have those of later versions
REFUSED = {"HumanoidStandup-v2", "InvertedDoublePendulum-v2", "InvertedPendulum-v2", "Reacher-v2"}
REFUSED |= {"MinitaurBulletEnv-v0", "MinitaurBulletDuckEnv-v0"}  # of the old gym
LANDERS = {"LunarLanderNoVel-v2", "LunarLanderContinuousNoVel-v2"}


@pytest.mark.parametrize(("theirs", "ours", "refused"), [("ppo", "ppg", REFUSED), ("ppo_lstm", "ppg_lstm", REFUSED | LANDERS)])
def test_our_lists_contain_the_zoos(theirs, ours, refused):
    zoo = Path(rl_zoo3.__file__).parent / "hyperparams" / f"{theirs}.yml"
    listed, known = (yaml.safe_load(file.read_text()).keys() for file in (zoo, hyperparameter_file(ours)))
    assert {*listed} - {*known} == refused
    for env_id in refused:
        with pytest.raises((ImportError, gym.error.Error)):
            gym.make(env_id)


def test_every_entry_that_is_not_tuned_was_started():
    """With its present settings."""
    assert STARTS.missing(STARTS.wanted()) == []


# Entries, and their task and contestant in the benchmarks' tables
ZOO_ENVS = {"CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1"}
ZOO_ENVS |= {"LunarLander-v3", "LunarLanderContinuous-v3"}
LEARNED = {("ppg", env_id): (f"{env_id}, RL Zoo", "PPG") for env_id in ZOO_ENVS} | {
    ("ppg_lstm", "CartPoleNoVel-v1"): ("CartPole-v1 without velocities", "RecurrentPPG"),
    ("ppg_mask", "InvalidActionsDiscrete-v0"): ("100 actions, 80 invalid", "MaskablePPG"),
    ("ppg_mask", "InvalidActionsMultiDiscrete-v0"): ("4 x 4 x 4 actions, 6 of 12 invalid", "MaskablePPG"),
    ("ppg_mask", "InvalidActionsMultiBinary-v0"): ("10 binary actions, 5 of 20 invalid", "MaskablePPG"),
}


def test_no_entry_claims_to_be_tuned_that_was_not_run():
    """The benchmarks' tables show it, with the hyperparameters that it was run with."""
    assert {name for name, comment in tuned_entries("ppg").items() if comment == "# Tuned"} == ZOO_ENVS
    results = pd.concat(pd.read_csv(RESULTS / name) for name in ("learning.csv", "variants.csv"))
    for (algo, env_id), (task, contestant) in LEARNED.items():
        rows = results[(results.task == task) & (results.contestant == contestant)]
        present = short_hash(repr(sorted(entries_of(hyperparameter_file(algo))[env_id].items())))
        assert set(rows.hyperparameters) == {present} and len(rows) >= 3, env_id


LARGER = [
    (algo, name)
    for algo in ("ppg", "ppg_lstm")
    for name, comment in tuned_entries(algo).items()
    if comment.endswith(". Tuned") and name != "minatar"  # in benchmarks/matches.py
]


@pytest.mark.parametrize(("algo", "env_id"), LARGER)
def test_larger_tuned_entries_were_run(algo, env_id):
    """Rows of the suites have a hash of the hyperparameters, however they are written."""
    settings = entries_of(hyperparameter_file(algo))[env_id] | dict(n_timesteps=1_000_000)
    settings["policy_kwargs"] = eval_expression(settings.get("policy_kwargs", "dict()"))
    decisive = json.dumps([algo, env_id, None, settings], sort_keys=True, default=lambda cls: cls.__name__)
    results = pd.read_csv(RESULTS / "suites.csv")
    assert results[results["settings"] == short_hash(decisive)]["seed"].nunique() >= 3

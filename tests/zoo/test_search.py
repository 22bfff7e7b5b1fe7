"""``train -optimize``, and training with a trial's hyperparameters."""

import re

import optuna
import pytest
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import PPG
from sb3_ppg.family import with_preset
from sb3_ppg.zoo import ALGOS
from sb3_ppg.zoo.hyperparameters import CONVERTERS, SAMPLERS, hyperparameter_file
from tests.helpers import run

pytestmark = pytest.mark.slow


def test_a_search_has_three_phases_in_each_trial_and_the_same_ranges_in_all():
    """And a trial's hyperparameters follow from what is stored of it."""
    budget, n_envs = 20_000, 8
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(n_startup_trials=5, seed=0, multivariate=True))
    for _ in range(40):
        trial = study.ask()
        trial.set_user_attr("n_timesteps", budget)
        sampled = SAMPLERS["ppg"](trial, n_actions=2, n_envs=n_envs, additional_args={})
        study.tell(trial, sampled["gamma"])
        assert 3 * sampled["n_steps"] * n_envs * sampled["n_policy_iterations"] <= budget
        assert sampled == CONVERTERS["ppg"](study.trials[-1].params)
    assert len({tuple(trial.distributions.items()) for trial in study.trials}) == 1


@pytest.mark.filterwarnings("ignore:.*truncated mini-batch")
@pytest.mark.parametrize("algo", ALGOS)
def test_every_sampled_model_can_be_made(algo):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    policy = "MlpLstmPolicy" if algo == "ppg_lstm" else "MlpPolicy"
    for _ in range(8):
        trial = study.ask()
        sampled = SAMPLERS[algo](trial, n_actions=2, n_envs=4, additional_args={})
        assert sampled == CONVERTERS[algo](trial.params) and sampled["batch_size"] <= 4 * sampled["n_steps"]
        settings = with_preset(algo, sampled)
        assert ("value_learning_rate" in sampled) == (settings.get("n_value_epochs") is not None)
        ALGOS[algo](policy, make_vec_env("CartPole-v1", 4), **settings)


def test_a_search_keeps_what_the_file_says_instead_of_the_preset(tmp_path, monkeypatch):
    """DAAC's preset has nine value epochs, its entry for CartPole four."""
    made: list[int] = []
    monkeypatch.setattr(PPG, "learn", lambda model, *_, **__: made.append(model.n_value_epochs))
    options = "-optimize -n 64 --n-trials 1 --n-evaluations 1 --no-optim-plots".split()
    run("train", "--algo", "daac", "--env", "CartPole-v1", *options, cwd=tmp_path)
    assert made == [4]


def test_a_short_search_is_warned_of_and_runs(tmp_path):
    """Also where the file has an auxiliary batch that is longer than the phases, and the network that the images need."""
    options = "-optimize -n 50 --n-trials 1 --eval-episodes 1 --n-evaluations 1 --no-optim-plots -params n_envs:1"
    assert yaml.safe_load(hyperparameter_file("ppg").read_text())["minatar"]["aux_batch_size"] > 64
    with pytest.warns(UserWarning, match="budget of 50 steps ends after 1 auxiliary phase,"):
        output = run("train", "--env", "MinAtar/Breakout-v1", *options.split(), cwd=tmp_path)
    assert "Number of finished trials:  1" in output and "with --storage" in output


def test_optimize_and_train_a_trial_again(tmp_path):
    """A study in a journal, with pruning; trials are made again by ``--trial-id``, the best one by what the search says."""
    study = ("--env", "CartPole-v1", "--storage", "journal.log", "--study-name", "ppg")
    study += ("-params", "n_envs:2", "policy_kwargs:dict(ortho_init=False)")
    output = run(
        *("train", "-optimize", *study, "-n", "600", "--n-trials", "5", "--n-startup-trials", "1", "--n-evaluations", "3"),
        *("--eval-episodes", "1", "--sampler", "tpe", "--pruner", "halving", "--seed", "1"),
        cwd=tmp_path,
    )
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    trials = optuna.load_study(study_name="ppg", storage=storage).trials
    assert len(trials) == 5 and {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    for chosen in (trial.user_attrs for trial in trials):
        assert 3 * 2 * chosen["n_steps"] * chosen["n_policy_iterations"] <= 600
    (best, said) = re.search(r"The best trial is number (\d+); train it with (.*)", output).groups()
    env, params = study[:2], study[-3:]
    assert "-n" not in said.split() and {*study} - {*env, *params} <= {*said.split()}
    commands = [["--trial-id", "0", *study], study, [*env, *said.split(), *params]]
    commands = [(number, ["train", *options]) for number, options in zip((0, int(best), int(best)), commands, strict=True)]
    for place, (number, options) in enumerate(commands):
        run(*options, "-n", "64", "--eval-freq", "-1", "-f", f"again{place}", cwd=tmp_path)
        model = PPG.load(tmp_path / f"again{place}" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip", device="cpu")
        for name, value in CONVERTERS["ppg"](trials[number].params).items():
            made = getattr(model, name)
            value = value | dict(ortho_init=False) if name == "policy_kwargs" else value
            assert (made(1.0) if callable(made) else made) == value, name


def test_trials_of_other_algorithms_are_trained_again_as_they_were(tmp_path):
    """For these, the Zoo replaces the networks of the file."""
    networks = '{policy: MlpPolicy, n_timesteps: 64, policy_kwargs: "dict(ortho_init=False)"}'
    (tmp_path / "mine.yml").write_text(f"CartPole-v1: {networks}")
    study = ("train", "--algo", "ppo", "--env", "CartPole-v1", "-conf", "mine.yml", "--storage", "s.log", "--study-name", "s")
    search = ("-optimize", "-n", "64", "--n-trials", "1", "--n-evaluations", "1", "--eval-episodes", "1", "--no-optim-plots")
    run(*study, *search, cwd=tmp_path)
    run(*study, "--eval-freq", "-1", cwd=tmp_path)
    (file,) = tmp_path.glob("logs/ppo/*/CartPole-v1.zip")
    model = PPO.load(file, device="cpu")
    assert {*model.policy_kwargs} == {"net_arch", "activation_fn"}

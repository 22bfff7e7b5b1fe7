"""Errors of a newcomer: a missing extra, a wrong name, an environment that returns something else."""

import re
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled
from packaging.requirements import Requirement

from sb3_ppg import PPG, ArgumentError, MaskablePPG, check, hub, zoo
from sb3_ppg.errors import EXTRAS, ORIGIN, MissingExtraError, missing_extras_named, pip_install, requirement
from tests.helpers import ROOT, SMALL, VECTOR, RandomEnv, run, run_in_a_new_process

# Commands, and the extra that each of them misses
COMMANDS = {
    "train --env HalfCheetah-v5": "mujoco",
    "train --env LunarLander-v3": "box2d",
    "train --env LunarLander-v3 --vec-env subproc": "box2d",
    "train --algo ppo --env LunarLander-v3": "box2d",
    "plot_train -e CartPole-v1 -f logs": "plots",
    "enjoy --env ALE/Pong-v5": "atari",
}


def errors_without_extras(folder: Path) -> list[str]:
    """Return what commands and calls say in a process without extras: first RL Zoo and its requirements, then others."""

    def error(function: Callable, *arguments: Any) -> str:
        with pytest.raises(MissingExtraError) as raised:
            function(*arguments)
        return str(raised.value)

    def command(line: str) -> str:
        return run(*line.split(), cwd=folder, fails=True)

    said: list[str] = []
    for of_the_zoo in (("yaml", "rl_zoo3", "pygame"), ("imageio_ffmpeg",)):
        sys.modules.update(dict.fromkeys(of_the_zoo))
        said += [command("train --env CartPole-v1"), error(lambda: zoo.register())]
        for name in of_the_zoo:
            del sys.modules[name]
    sys.modules.update(dict.fromkeys(("mujoco", "Box2D", "seaborn", "ale_py")))
    said += [*map(command, COMMANDS), error(PPG, "MlpPolicy", "LunarLander-v3")]
    sys.modules["tensorboard"] = None
    said.append(error(PPG("MlpPolicy", "CartPole-v1", tensorboard_log=str(folder / "tb")).learn, 10))
    return [*said, command("train --env CartPole-v1 -n 64 --tensorboard-log tb")]


@pytest.mark.slow
def test_a_missing_extra_is_one_line_of_the_zoos_commands_and_in_python(tmp_path):
    *of_the_zoo, in_python, logs_in_python, logs_of_a_command = run_in_a_new_process(errors_without_extras, tmp_path)
    lines, extras = ("train", "", "train", "", *COMMANDS), (*["zoo"] * 4, *COMMANDS.values())
    for line, text, extra in zip(lines, of_the_zoo, extras, strict=True):
        name = f"sb3-ppg {line.split()[0]}: " if line else ""
        assert name in text and text.endswith(pip_install(extra)) and "Traceback" not in text, text
    assert in_python == f"Box2D is not installed: {pip_install('box2d')}"
    assert logs_in_python == f"tensorboard is not installed: {pip_install('tensorboard')}"
    assert logs_of_a_command.endswith(f"sb3-ppg train: {logs_in_python}")


def test_an_error_that_a_missing_module_has_caused_names_its_extra_and_others_stay_what_they_are():
    with (
        pytest.raises(MissingExtraError, match=re.escape(f"moviepy is not installed: {pip_install('zoo')}")),
        missing_extras_named(),
    ):
        try:
            raise ModuleNotFoundError("No module named 'moviepy.editor'", name="moviepy.editor")
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled("MoviePy is not installed, run `pip install 'gymnasium[other]'`") from error
    for other in (ImportError("no foreign_module", name="foreign_module"), ImportError("the hub is closed")):
        with pytest.raises(ImportError) as raised, missing_extras_named():
            raise other
        assert raised.value is other
    with pytest.raises(gymnasium.error.NameNotFound):
        PPG("MlpPolicy", "NoSuchEnvironment-v0")


def test_every_extra_that_is_named_exists_and_pip_understands_how():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS.values()) <= project["optional-dependencies"].keys()
    asked = Requirement(requirement("zoo,plots").strip('"'))
    assert (asked.name, asked.extras) == (project["name"], {"zoo", "plots"})
    assert asked.url == (f"git+{project['urls']['Repository']}" if ORIGIN else None)
    assert 'pip install -e ".[mo]"' in pip_install("mo")


@pytest.mark.parametrize(
    ("env_id", "module", "extra", "registration"),
    [
        ("MiniGrid-Empty-5x5-v0", "minigrid", "minigrid", "`import minigrid`"),
        ("ALE/Pong-v5", "ale_py", "atari", "`import ale_py`"),
        ("PongNoFrameskip-v4", "ale_py", "atari", "`import ale_py`"),
        ("MinAtar/Asterix-v1", "minatar", "minatar", r"`from minatar\.gym import register_envs"),
        ("CoinrunEasy-v0", "envpool", "procgen", "EnvPoolVecEnv"),
        ("mo-mountaincar-v0", "mo_gymnasium", "mo", "`import mo_gymnasium`"),
    ],
)
def test_an_environment_whose_package_is_missing_or_not_imported(env_id, module, extra, registration, monkeypatch, tmp_path):
    for known in [*gymnasium.registry]:  # other tests may have registered some
        monkeypatch.delitem(gymnasium.registry, known)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as raised:
        PPG("MlpPolicy", env_id)
    assert str(raised.value).endswith(f": {pip_install(extra)}")
    monkeypatch.delitem(sys.modules, module)
    (tmp_path / f"{module}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    hub.save_pretrained(PPG("MlpPolicy", RandomEnv(VECTOR, spaces.Discrete(2)), **SMALL), tmp_path)
    for make in (partial(PPG, "MlpPolicy"), partial(hub.from_pretrained, tmp_path), check):
        with pytest.raises(MissingExtraError, match=registration):
            make(env_id)
    monkeypatch.setitem(gymnasium.registry, env_id, EnvSpec(env_id))  # a name of a known family that does not exist
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        PPG("MlpPolicy", env_id.replace("-v", "x-v"))


def test_an_argument_that_there_is_not_names_the_nearest():
    with pytest.raises(TypeError, match=r"^MaskablePPG has no argument `beta_clon`; nearest: .*\bbeta_clone\b"):
        MaskablePPG("MlpPolicy", "CartPole-v1", beta_clon=3)
    with pytest.raises(TypeError, match=r"^PPG has no argument `beta`; nearest: beta_clone$"):
        PPG("MlpPolicy", "CartPole-v1", beta=3)
    with pytest.raises(TypeError, match=r"^MaskablePPG\.learn has no argument `masking`; nearest: use_masking$"):
        MaskablePPG("MlpPolicy", "CartPole-v1", **SMALL).learn(16, masking=False)


def test_load_refuses_unknown_names_and_takes_arguments_and_attributes(tmp_path):
    """SB3's would take all; and those that a model keeps under another name had no effect."""
    PPG("MlpPolicy", "CartPole-v1", **SMALL).save(tmp_path / "model")
    with pytest.raises(TypeError, match=r"^PPG\.load has no argument `batchsize`; nearest: .*\bbatch_size\b"):
        PPG.load(tmp_path / "model", batchsize=4)
    of_load = dict(env=gymnasium.make("CartPole-v1"), custom_objects={}, print_system_info=False, force_reset=True)
    given = dict(batch_size=4, stats_window_size=5, seed=3, tensorboard_log=None, _n_rollouts=7)
    model = PPG.load(tmp_path / "model", device="cpu", **of_load, **given).learn(8)
    assert (model.batch_size, model.ep_info_buffer.maxlen, model.seed, model._n_rollouts) == (4, 5, 3, 8)


OBSERVATION = np.zeros(3, np.float32)


def test_what_an_environment_may_not_return_is_explained_and_its_errors_stay_what_they_are(monkeypatch):
    model = PPG("MlpPolicy", RandomEnv(VECTOR, spaces.Discrete(2)), **SMALL)
    call = r"`step` \(observation, reward, terminated, truncated, info\), where the reward is a number"
    for method, returned, message in (
        ("step", (OBSERVATION, None, False, False, {}), call),
        ("step", (OBSERVATION, 1.0, False, {}), call),
        ("step", (OBSERVATION, 1.0, False, False, None), call),
        ("step", (np.zeros(4, np.float32), 1.0, False, False, {}), r"of shape \(4,\) that does not fit"),
        ("reset", OBSERVATION, call),
    ):
        monkeypatch.setattr(RandomEnv, method, lambda *_, its=returned, **__: its)
        with pytest.raises(ArgumentError, match=message):
            model.learn(16)
        monkeypatch.undo()
    monkeypatch.setattr(RandomEnv, "step", lambda *_: int("a number"))
    with pytest.raises(ValueError, match=r"^invalid literal for int\(\)"):
        model.learn(16)

"""Errors of a newcomer: a missing extra, a wrong name, a model without an environment."""

import subprocess
import sys
import tomllib

import gymnasium
import pytest
from gymnasium.error import DependencyNotInstalled

from sb3_ppg import PPG, ArgumentError, MaskablePPG, RecurrentPPG
from sb3_ppg.errors import EXTRAS, MissingExtraError, missing_extras_named
from tests.helpers import ROOT

pytestmark = pytest.mark.slow

# Prints the error of each statement in a process that cannot import some modules of extras
COMMANDS = """
import sys

sys.modules.update(dict.fromkeys(("mujoco", "Box2D", "seaborn")))

def attempt(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (SystemExit, ImportError) as error:
        print("ERROR", error, flush=True)

from sb3_ppg.zoo import launcher

def command(line):
    sys.argv = ["sb3-ppg", *line.split()]
    launcher.main()

"""


def errors(code: str, cwd) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [line.removeprefix("ERROR ") for line in done.stdout.splitlines() if line.startswith("ERROR ")]


def test_a_missing_extra_is_one_line_of_the_zoos_commands_and_in_python(tmp_path):
    commands = {
        "train --env HalfCheetah-v5": "mujoco",
        "train --env LunarLander-v3": "box2d",
        "train --env LunarLander-v3 --vec-env subproc": "box2d",
        "train --algo ppo --env LunarLander-v3": "box2d",
        "plot_train -e CartPole-v1 -f logs": "plots",
    }
    lines = [f"attempt(command, {line!r})" for line in commands]
    lines += ["from sb3_ppg import PPG", "attempt(PPG, 'MlpPolicy', 'LunarLander-v3')"]
    *said, in_python = errors(COMMANDS + "\n".join(lines), tmp_path)
    for (line, extra), error in zip(commands.items(), said, strict=True):
        assert error.startswith(f"sb3-ppg {line.split()[0]}: ") and error.endswith(f'pip install "sb3-ppg[{extra}]"'), error
    assert in_python == 'Box2D is not installed: pip install "sb3-ppg[box2d]"'


def test_the_zoos_own_extra_is_named_where_there_is_nothing_of_it(tmp_path):
    """Simulate ``pip install .``, without RL Zoo and its requirements."""
    blocked = "sys.modules.update(dict.fromkeys(('yaml', 'rl_zoo3', 'pygame')))\n"
    code = f"import sys\n{blocked}{COMMANDS}\nattempt(command, 'train --env CartPole-v1')\nattempt(command, 'report')\n"
    code += "from sb3_ppg import zoo\nattempt(lambda: zoo.register())\nattempt(lambda: zoo.patched())\n"
    said = errors(code, tmp_path)
    assert len(said) == 4 and all(error.endswith('pip install "sb3-ppg[zoo]"') for error in said), said


def test_an_error_that_a_missing_module_has_caused_names_its_extra():
    with (
        pytest.raises(MissingExtraError, match=r'moviepy is not installed: pip install "sb3-ppg\[zoo\]"'),
        missing_extras_named(),
    ):
        try:
            raise ModuleNotFoundError("No module named 'moviepy.editor'", name="moviepy.editor")
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled("MoviePy is not installed, run `pip install 'gymnasium[other]'`") from error


@pytest.mark.parametrize("error", [ImportError("no foreign_module", name="foreign_module"), ImportError("the hub is closed")])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as raised, missing_extras_named():
        raise error
    assert raised.value is error
    with pytest.raises(gymnasium.error.NameNotFound):
        PPG("MlpPolicy", "NoSuchEnvironment-v0")


def test_every_extra_that_is_named_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS.values()) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize(
    ("algorithm", "policy", "wrong", "right"),
    [
        (PPG, "MlpPolicy", "n_policy_iter", "n_policy_iterations"),
        (PPG, "MlpPolicy", "aux_learn_rate", "aux_learning_rate"),
        (MaskablePPG, "MlpPolicy", "beta_clon", "beta_clone"),
        (RecurrentPPG, "MlpLstmPolicy", "recompute_state", "recompute_states"),
    ],
)
def test_an_argument_that_there_is_not_names_the_nearest(algorithm, policy, wrong, right):
    with pytest.raises(TypeError, match=rf"^{algorithm.__name__} has no argument `{wrong}`; nearest: .*\b{right}\b"):
        algorithm(policy, "CartPole-v1", **{wrong: 3})


@pytest.mark.parametrize(
    ("algorithm", "policy"), [(PPG, "MlpPolicy"), (RecurrentPPG, "MlpLstmPolicy"), (MaskablePPG, "MlpPolicy")]
)
def test_a_model_that_was_loaded_without_an_environment_says_what_it_needs(algorithm, policy, tmp_path):
    options = dict(n_steps=16, batch_size=16)
    algorithm(policy, "CartPole-v1", **options).save(tmp_path / "model")
    model = algorithm.load(tmp_path / "model")
    with pytest.raises(ArgumentError, match=r"`load\(\.\.\., env=\.\.\.\)` or `set_env\(\.\.\.\)`"):
        model.learn(16)
    model.set_env(PPG("MlpPolicy", "CartPole-v1", **options).get_env())
    model.learn(16, **({"use_masking": False} if algorithm is MaskablePPG else {}))
    assert model.num_timesteps == 16

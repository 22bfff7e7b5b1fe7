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


def test_a_missing_extra_is_one_line_of_the_zoos_commands_and_in_python(tmp_path):
    """First as after ``pip install .``, without RL Zoo and its requirements."""
    without_zoo = [
        "command, 'train --env CartPole-v1'",
        "command, 'report'",
        "lambda: zoo.register()",
        "lambda: zoo.patched()",
    ]
    commands = {
        "train --env HalfCheetah-v5": "mujoco",
        "train --env LunarLander-v3": "box2d",
        "train --env LunarLander-v3 --vec-env subproc": "box2d",
        "train --algo ppo --env LunarLander-v3": "box2d",
        "plot_train -e CartPole-v1 -f logs": "plots",
    }
    lines = [
        "sys.modules.update(dict.fromkeys(('yaml', 'rl_zoo3', 'pygame')))",
        "from sb3_ppg import PPG, zoo",
        *(f"attempt({what})" for what in without_zoo),
        "del sys.modules['yaml'], sys.modules['rl_zoo3'], sys.modules['pygame']",
        "sys.modules.update(dict.fromkeys(('mujoco', 'Box2D', 'seaborn')))",
        *(f"attempt(command, {line!r})" for line in commands),
        "attempt(PPG, 'MlpPolicy', 'LunarLander-v3')",
        "sys.modules['tensorboard'] = None",
        "attempt(PPG('MlpPolicy', 'CartPole-v1', tensorboard_log='tb').learn, 10)",
        "attempt(command, 'train --env CartPole-v1 -n 64 --tensorboard-log tb')",
    ]
    code = COMMANDS + "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    errors = [line.removeprefix("ERROR ") for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    *said, in_python, logs_in_python, logs_of_a_command = errors[4:]
    assert all(error.endswith('pip install "sb3-ppg[zoo]"') for error in errors[:4]), errors
    for (line, extra), error in zip(commands.items(), said, strict=True):
        assert error.startswith(f"sb3-ppg {line.split()[0]}: ") and error.endswith(f'pip install "sb3-ppg[{extra}]"'), error
    assert in_python == 'Box2D is not installed: pip install "sb3-ppg[box2d]"'
    assert logs_in_python == 'tensorboard is not installed: pip install "sb3-ppg[tensorboard]"'
    assert logs_of_a_command == f"sb3-ppg train: {logs_in_python}"


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
        (PPG, "MlpPolicy", "aux_learn_rate", "aux_learning_rate"),
        (MaskablePPG, "MlpPolicy", "beta_clon", "beta_clone"),
        (RecurrentPPG, "MlpLstmPolicy", "recompute_state", "recompute_states"),
    ],
)
def test_an_argument_that_there_is_not_names_the_nearest(algorithm, policy, wrong, right):
    with pytest.raises(TypeError, match=rf"^{algorithm.__name__} has no argument `{wrong}`; nearest: .*\b{right}\b"):
        algorithm(policy, "CartPole-v1", **{wrong: 3})


@pytest.mark.parametrize(("algorithm", "policy"), [(RecurrentPPG, "MlpLstmPolicy"), (MaskablePPG, "MlpPolicy")])
def test_a_model_that_was_loaded_without_an_environment_says_what_it_needs(algorithm, policy, tmp_path):
    made = algorithm(policy, "CartPole-v1", n_steps=16, batch_size=16)
    made.save(tmp_path / "model")
    model = algorithm.load(tmp_path / "model")
    with pytest.raises(ArgumentError, match=r"`load\(\.\.\., env=\.\.\.\)` or `set_env\(\.\.\.\)`"):
        model.learn(16)
    model.set_env(made.get_env())
    assert model.learn(16, **({"use_masking": False} if algorithm is MaskablePPG else {})).num_timesteps == 16

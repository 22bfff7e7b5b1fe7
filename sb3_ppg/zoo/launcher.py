"""``python -m sb3_ppg SCRIPT ...`` and ``sb3-ppg SCRIPT ...``: RL Zoo's scripts, with PPG."""

import importlib
import runpy
import sys
from typing import NamedTuple

from sb3_ppg.errors import ArgumentError, HubError, ModelFormatError

ALGO = ["--algo", "ppg"]
# What scripts import besides the extra "zoo": which extra has it
EXTRAS = {"seaborn": "plots", "scipy": "plots", "rliable": "plots", "tensorboard": "tensorboard"}


class Script(NamedTuple):
    """How to run one."""

    about: str
    module: str
    function: str | None  # None: the module is a program
    defaults: list[str]  # ours for its options


SCRIPTS = {
    "train": Script("train an agent, or search for hyperparameters (-optimize)", "rl_zoo3.train", "train", ALGO),
    "enjoy": Script("watch a trained agent, or evaluate it", "rl_zoo3.enjoy", "enjoy", [*ALGO, "-f", "logs"]),
    "report": Script("evaluate an agent and draw its learning curve", "sb3_ppg.zoo.report", "main", [*ALGO, "-f", "logs"]),
    "record_video": Script("record a trained agent", "rl_zoo3.record_video", None, [*ALGO, "-f", "logs"]),
    "record_training": Script(
        *("record all checkpoints of a training, as one video", "sb3_ppg.zoo.repairs", "record_training"),
        [*ALGO, "-f", "logs"],
    ),
    "benchmark": Script("evaluate all trained agents of a folder", "rl_zoo3.benchmark", None, ["--log-dir", "logs"]),
    "push_to_hub": Script(
        "share a trained agent on the Hugging Face Hub", "sb3_ppg.zoo.sharing", "push", [*ALGO, "-f", "logs"]
    ),
    "load_from_hub": Script("fetch one from there", "sb3_ppg.zoo.sharing", "load", ALGO),
    "plot_train": Script("learning curves of trainings", "rl_zoo3.plots.plot_train", "plot_train", ALGO),
    "all_plots": Script("compare evaluations of several algorithms", "rl_zoo3.plots.all_plots", "all_plots", ["-a", "ppg"]),
    "plot_from_file": Script("plots from what all_plots saved", "sb3_ppg.zoo.repairs", "plot_from_file", []),
}


def main() -> None:
    """Run the script that the command line names, with our defaults unless it says otherwise."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
    elif name not in SCRIPTS:
        sys.exit(f"{usage()}\n\n{name} is none of them")
    else:
        try:
            run(name, SCRIPTS[name], arguments)
        except (ArgumentError, HubError, ModelFormatError) as error:
            sys.exit(f"sb3-ppg {name}: {error}")


def run(name: str, script: Script, arguments: list[str]) -> None:
    """
    :param name: of the script
    :param script: which to run
    :param arguments: of the command line
    :raises ArgumentError: if they name what is not there
    """
    # Our defaults come first: where an option is given twice, the last one counts
    sys.argv[1:] = [*script.defaults, *arguments]
    try:
        from sb3_ppg.zoo import register
        from sb3_ppg.zoo.command_line import check_command_line
        from sb3_ppg.zoo.resume import take_continue
    except ImportError as error:
        sys.exit(str(error))

    register()
    if name == "train":
        sys.argv[1:] = take_continue(sys.argv[1:])
    if not {"-h", "--help"} & set(arguments):
        check_command_line(name, sys.argv[1:])
    try:
        if script.function is None:
            runpy.run_module(script.module, run_name="__main__", alter_sys=True)
        else:
            getattr(importlib.import_module(script.module), script.function)()
    except ImportError as error:
        if "pip install" in str(error):  # ours
            sys.exit(f"sb3-ppg {name}: {error}")
        if error.name not in EXTRAS:
            raise
        sys.exit(f'sb3-ppg {name}: {error}. pip install "sb3-ppg[{EXTRAS[error.name]}]"')


def usage() -> str:
    """The list of scripts."""
    lines = [f"  {name:16} {script.about}" for name, script in SCRIPTS.items()]
    return "\n".join(["usage: sb3-ppg SCRIPT [options]     (options: sb3-ppg SCRIPT --help)", "", *lines])

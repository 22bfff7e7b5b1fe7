"""``python -m sb3_ppg SCRIPT ...`` and ``sb3-ppg SCRIPT ...``: RL Zoo's scripts, with PPG."""

import errno
import os
import pkgutil
import runpy
import sys
from argparse import ArgumentParser
from contextlib import ExitStack, redirect_stdout
from functools import partialmethod
from typing import Any, NamedTuple
from unittest.mock import patch

from gymnasium.error import DeprecatedEnv, UnregisteredEnv

from sb3_ppg import __version__
from sb3_ppg.errors import ArgumentError, HubError, ModelFormatError, ProcessGroupError, missing_extras_named, nearest

ALGO = ["--algo", "ppg"]
PLAY = [*ALGO, "-f", "logs"]


class Script(NamedTuple):
    """
    A script, and how to run it.

    :param about: purpose
    :param place: its function, "module:function", or the module if that is a program
    :param example: options of an example
    :param agent: option that names an agent, which ``--pretrained`` replaces
    :param defaults: our defaults for its options
    """

    about: str
    place: str
    example: str
    agent: str | None = None
    defaults: list[str] = PLAY


SCRIPTS = {
    "train": Script(
        "train an agent, or search for hyperparameters (-optimize)",
        "rl_zoo3.train:train",
        "--env Pendulum-v1 --progress",
        "-i",
    ),
    "enjoy": Script(
        "watch a trained agent, or evaluate it", "sb3_ppg.zoo.scripts:enjoy", "--env Pendulum-v1 --no-render", "-f"
    ),
    "report": Script("evaluate an agent and draw its learning curve", "sb3_ppg.zoo.report:main", "--env Pendulum-v1", "-f"),
    "record_video": Script("record a trained agent", "rl_zoo3.record_video", "--env Pendulum-v1 -n 200", "-f"),
    "record_training": Script(
        "record all checkpoints of a training, as one video", "sb3_ppg.zoo.scripts:record_training", "--env Pendulum-v1 -n 200"
    ),
    "record_dataset": Script(
        "record a Minari data set from a trained agent",
        "sb3_ppg.zoo.record_dataset:main",
        "--env Pendulum-v1 --dataset pendulum/ppg-v0 -n 20000 --stochastic",
        "-f",
    ),
    "benchmark": Script(
        "evaluate all trained agents of a folder", "rl_zoo3.benchmark", "--no-hub", defaults=["--log-dir", "logs"]
    ),
    "push_to_hub": Script(
        "share a trained agent on the Hugging Face Hub", "sb3_ppg.zoo.push:main", "--env Pendulum-v1 -orga YOUR_NAME"
    ),
    "load_from_hub": Script(
        "fetch a trained agent from there", "sb3_ppg.zoo.fetch:main", "--env Pendulum-v1 -orga YOUR_NAME", defaults=ALGO
    ),
    "plot_train": Script(
        "learning curves of trainings", "sb3_ppg.zoo.scripts:plot_train", "-e Pendulum-v1 -f logs", defaults=ALGO
    ),
    "all_plots": Script(
        "compare evaluations of several algorithms",
        "sb3_ppg.zoo.scripts:all_plots",
        "-a ppg ppo -e Pendulum-v1 -f logs -o comparison --no-million",
        defaults=["-a", "ppg"],
    ),
    "plot_from_file": Script(
        "plots from what all_plots saved",
        "sb3_ppg.zoo.scripts:plot_from_file",
        "-i comparison -o comparison.svg",
        defaults=[],
    ),
}

# Our options, and the scripts that take them
PRETRAINED, CONTINUE, EPSILON, DATASET = "--pretrained", "--continue", "--epsilon", "--dataset"
OWN_OPTIONS = {
    PRETRAINED: ("an agent that comes with the repository", [name for name, script in SCRIPTS.items() if script.agent]),
    CONTINUE: ("with -i MODEL: continue training exactly where it stopped", ["train"]),
    EPSILON: ("probability of sampling an action instead of taking the most likely one", ["enjoy"]),
    DATASET: ("with --algo bcq: Minari data set (name, folder, hdf5 file), or a replay buffer's .pkl", ["train"]),
}
# Errors that are shown without a traceback
EXPLAINED = (ArgumentError, HubError, ModelFormatError, ProcessGroupError, UnregisteredEnv, DeprecatedEnv)
REGISTER = " If a module of yours registers it, use --gym-packages MODULE (and --env ENV, not MODULE:ENV)"
IMPORT = " (--gym-packages): install it, or add its folder to PYTHONPATH"
# In errors about arguments of an environment, a wrapper, a callback, VecNormalize or Monitor
WRONG_NAME = ("raised from the environment creator", "__init__() got an unexpected keyword argument")
# The disk is full or read-only, or a path is a file instead of a folder, or the reverse
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EFBIG)


def main() -> None:
    """Run the script that the command line names, with our defaults unless it says otherwise."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # report errors to torchrun's agent
        from torch.distributed.elastic.multiprocessing.errors import record

        record(_main)()
    else:
        _main()


def _main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
    elif name == "--version":
        print(__version__)
    elif name not in SCRIPTS:
        sys.exit(f"{usage()}\n\nthere is no script {name}{nearest(name, SCRIPTS)}")
    else:
        try:
            with missing_extras_named():
                run(name, arguments)
        except Exception as error:
            is_explained = isinstance(error, EXPLAINED) or getattr(error, "errno", None) in DISK
            is_missing_package = isinstance(error, ImportError) and "pip install" in str(error)
            is_wrong_path = isinstance(error, FileNotFoundError) and name != "train"  # where it may be a fault
            is_wrong_name = isinstance(error, TypeError) and any(text in str(error) for text in WRONG_NAME)
            is_wrong_module = isinstance(error, ModuleNotFoundError) and any(
                f"{argument}.".startswith(f"{error.name}.") for argument in arguments
            )
            if not (is_explained or is_missing_package or is_wrong_path or is_wrong_name or is_wrong_module):
                raise
            from sb3_ppg.distributed.agreement import is_shared

            is_said_by_another = is_shared(error) and os.environ.get("LOCAL_RANK", "0") != "0"  # of this machine
            remedy = REGISTER if isinstance(error, UnregisteredEnv) else IMPORT if is_wrong_module else ""
            sys.exit(1 if is_said_by_another else f"sb3-ppg {name}: {error}{remedy}")


def run(name: str, arguments: list[str]) -> None:
    """
    Run one of ``SCRIPTS`` with a command line.

    :raises ArgumentError: if that names something that does not exist
    """
    from sb3_ppg.distributed.agreement import agreed, require_equal
    from sb3_ppg.distributed.collectives import n_processes, rank
    from sb3_ppg.distributed.group import process_group
    from sb3_ppg.zoo import patched
    from sb3_ppg.zoo.command_line import check_train
    from sb3_ppg.zoo.manager import Manager

    script = SCRIPTS[name]
    with process_group(), patched(), ExitStack() as stack:
        require_equal({"command": [name, *arguments]})
        with agreed():
            if name != "train" and n_processes() > 1:
                raise ArgumentError(f"{name} is for one process: start it without torchrun")
            if PRETRAINED in arguments and script.agent is not None:
                from sb3_ppg.zoo.trained_agents import with_pretrained

                arguments = with_pretrained(script.agent, arguments)
        with agreed():  # the first process has unpacked the agent
            if name == "train":
                parser = ArgumentParser(add_help=False, allow_abbrev=False)
                parser.add_argument(CONTINUE, dest="asked_to_continue", action="store_true")
                parser.add_argument(DATASET)
                args, arguments = parser.parse_known_args(arguments)
                stack.enter_context(patch.multiple(Manager, **vars(args)))
            # Our defaults come first: where an option is given twice, the last one counts
            sys.argv[1:] = [*script.defaults, *arguments]
            if {"-h", "--help"} & {*arguments}:
                stack.enter_context(patch.object(ArgumentParser, "__init__", partialmethod(_init_with_our_help, name)))
            elif name == "train":
                check_train(arguments)
        if rank() > 0:
            sys.argv = [argument for argument in sys.argv if not argument.startswith("--trac")]  # one run in all processes
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        if ":" in script.place:
            pkgutil.resolve_name(script.place)()
        else:
            runpy.run_module(script.place, run_name="__main__", alter_sys=True)


def usage() -> str:
    """Return the list of scripts."""
    first_line = "usage: sb3-ppg SCRIPT [options]     (options: sb3-ppg SCRIPT --help)"
    scripts = [f"  {name:16} {script.about}" for name, script in SCRIPTS.items()]
    options = [f"  {option:16} {about} ({', '.join(takers)})" for option, (about, takers) in OWN_OPTIONS.items()]
    return "\n".join([first_line, "", *scripts, "", "In addition to RL Zoo's options:", *options])


_init = ArgumentParser.__init__


def _init_with_our_help(parser: ArgumentParser, script: str, *args: Any, **kwargs: Any) -> None:
    """Make the parser of a script with the command's name, our options and an example."""
    _init(parser, *args, **kwargs)
    parser.prog = f"sb3-ppg {script}"
    parser.description = parser.description or SCRIPTS[script].about.capitalize()
    parser.epilog = f"Example: {parser.prog} {SCRIPTS[script].example}"
    for option, (about, scripts) in OWN_OPTIONS.items():
        if script in scripts:
            parser.add_argument(option, action="store" if option in (EPSILON, DATASET) else "store_true", help=about)

"""``python -m sb3_ppg SCRIPT ...`` and ``sb3-ppg SCRIPT ...``: RL Zoo's scripts, with PPG."""

import errno
import os
import pkgutil
import runpy
import sys
from argparse import ArgumentParser
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from sb3_ppg import __version__
from sb3_ppg.errors import ArgumentError, HubError, ModelFormatError, ProcessGroupError, missing_extras_named, nearest
from sb3_ppg.zoo.environments import environment_maker, imported

ALGO = ["--algo", "ppg"]
IN_LOGS = [*ALGO, "-f", "logs"]


class Script(NamedTuple):
    """A script, and how to run it."""

    about: str
    place: str  # its function, "module:function", or the module if that is a program
    agent: str | None = None  # option that names an agent, which `--pretrained` replaces
    defaults: list[str] = IN_LOGS  # our defaults for its options


SCRIPTS = {
    "train": Script("train an agent, or search for hyperparameters (-optimize)", "rl_zoo3.train:train", "-i"),
    "enjoy": Script("watch a trained agent, or evaluate it", "rl_zoo3.enjoy", "-f"),
    "report": Script("evaluate an agent, draw its learning curve and diagnose its run", "sb3_ppg.zoo.scripts:report", "-f"),
    "record_video": Script("record a trained agent", "rl_zoo3.record_video", "-f"),
    "record_training": Script("record all checkpoints of a run, as one video", "sb3_ppg.zoo.scripts:record_training"),
    "record_dataset": Script("record a Minari data set from a trained agent", "sb3_ppg.zoo.scripts:record_dataset", "-f"),
    "check": Script("look for faults of an environment before training in it", "sb3_ppg.zoo.scripts:check", defaults=[]),
    "compare": Script("train algorithms in an environment, and say which is better", "sb3_ppg.zoo.compare:main", defaults=[]),
    "benchmark": Script(
        "evaluate a folder's agents (of the Hub: --log-dir rl-trained-agents)", "rl_zoo3.benchmark", defaults=[]
    ),
    "push_to_hub": Script("share a trained agent on the Hugging Face Hub", "sb3_ppg.zoo.sharing:push"),
    "load_from_hub": Script("fetch a trained agent from there", "sb3_ppg.zoo.sharing:fetch", defaults=ALGO),
    "plot_train": Script("plot learning curves", "rl_zoo3.plots:plot_train"),
    "all_plots": Script(
        "compare evaluations", "rl_zoo3.plots:all_plots", defaults=["-a", "ppg", "-f", "logs", "--print-n-trials"]
    ),
    "plot_from_file": Script("plot what all_plots saved", "rl_zoo3.plots:plot_from_file", defaults=[]),
}
# Our options in addition to those of the scripts: which scripts take them, and arguments of argparse
OWN_OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "--pretrained": (
        [name for name, script in SCRIPTS.items() if script.agent],
        dict(action="store_true", help="an agent that comes with the repository"),
    ),
    "--run-folder": (
        ["train", "enjoy", "report", "record_video", "record_dataset", "push_to_hub"],
        dict(metavar="FOLDER", help="the run there; train begins or continues it, with 20 checkpoints or --save-freq"),
    ),
    "--gym-packages": (
        ["record_video", "record_training", "benchmark"],
        dict(nargs="+", type=imported, default=[], metavar="MODULE", help="modules that register further environments"),
    ),
    "--prior": (["train"], dict(help="agent that the policy stays near: a model's file or folder, or self, with -i MODEL")),
    "--dataset": (["train"], dict(help="with --algo bcq: Minari data set, its HDF5 file, or a replay buffer's .pkl")),
    "--epsilon": (["enjoy", "report"], dict(type=float, default=0.0, help="probability of sampling an action")),
}
# Errors that are shown without a traceback
FILES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
EXPLAINED = (ArgumentError, HubError, ModelFormatError, ProcessGroupError, ModuleNotFoundError, *FILES)
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)  # it is full or read-only


def main() -> None:
    """Run the script that the command line names, with our defaults unless it says otherwise."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
    elif name == "--version":
        print(__version__)
    elif name not in SCRIPTS:
        sys.exit(f"{usage()}\n\nthere is no script {name}{nearest(name, SCRIPTS)}")
    else:
        sys.path.append(os.getcwd())  # where `python -m sb3_ppg` finds modules of the user's, too
        try:
            with missing_extras_named():
                run(name, arguments)
        except Exception as error:
            is_explained = isinstance(error, EXPLAINED) or getattr(error, "errno", None) in DISK
            is_missing_package = isinstance(error, ImportError) and "pip install" in str(error)
            if not (is_explained or is_missing_package):
                raise
            is_module = isinstance(error, ModuleNotFoundError)
            remedy = ": install it, or add the folder of a module of yours to PYTHONPATH" if is_module else ""
            sys.exit(f"sb3-ppg {name}: {error}{remedy}")


def run(name: str, arguments: list[str]) -> None:
    """Run one of ``SCRIPTS`` with a command line."""
    from sb3_ppg.distributed import gather, process_group, rank, require_equal
    from sb3_ppg.zoo import patched
    from sb3_ppg.zoo.manager import Manager
    from sb3_ppg.zoo.registration import agent_of_run, children_through_our_launcher
    from sb3_ppg.zoo.scripts import acting_with_epsilon
    from sb3_ppg.zoo.sharing import with_pretrained

    script = SCRIPTS[name]
    parser = ArgumentParser(f"sb3-ppg {name}", description=script.about.capitalize(), add_help=False, allow_abbrev=False)
    for option, (scripts, settings) in OWN_OPTIONS.items():
        if name in scripts:
            parser.add_argument(option, **settings)
    with process_group(), patched(), ExitStack() as stack:
        require_equal({"command": [name, *arguments]})
        own, arguments = parser.parse_known_args(arguments)
        options = vars(own)
        if options.pop("pretrained", False) and script.agent is not None:
            arguments = with_pretrained(script.agent, arguments)
            gather(None)  # the first process has unpacked the agent
        if {"-h", "--help"} & {*arguments}:
            print(f"{parser.format_help()}\nOptions of the script:\n")
        if name == "train":
            stack.enter_context(patch.multiple(Manager, **options))
        elif options.get("run_folder"):
            arguments = [*stack.enter_context(agent_of_run(Path(options["run_folder"]))), *arguments]
        if script.agent is not None:
            of_agent = ArgumentParser(add_help=False, allow_abbrev=False)
            # A module may add the agent's algorithm, which the script's parser must know
            of_agent.add_argument("--gym-packages", nargs="+", type=imported)
            of_agent.add_argument("--env", default="CartPole-v1")
            environment_maker(of_agent.parse_known_args(arguments)[0].env)
        stack.enter_context(children_through_our_launcher([module.__name__ for module in options.get("gym_packages", [])]))
        stack.enter_context(acting_with_epsilon(options.get("epsilon", 0.0)))
        # Our defaults come first: where an option is given twice, the last one counts
        is_here = name == "benchmark" and not any(argument.startswith("--l") for argument in arguments)  # --log-dir
        of_logs = ["--log-dir", "logs", "--no-hub"] if is_here else []
        sys.argv = [f"sb3-ppg {name}", *script.defaults, *of_logs, *arguments]
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
    options = [f"  {option:16} {kwargs['help']} ({', '.join(takers)})" for option, (takers, kwargs) in OWN_OPTIONS.items()]
    return "\n".join([first_line, "", *scripts, "", "In addition to RL Zoo's options:", *options])

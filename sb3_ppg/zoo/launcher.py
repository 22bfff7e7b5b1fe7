"""``python -m sb3_ppg SCRIPT ...`` and ``sb3-ppg SCRIPT ...``: RL Zoo's scripts, with PPG."""

import errno
import importlib
import os
import runpy
import sys
from collections.abc import Mapping
from typing import NamedTuple

from sb3_ppg import __version__
from sb3_ppg.errors import ArgumentError, HubError, ModelFormatError, ProcessGroupError, missing_extras_named, nearest

ALGO = ["--algo", "ppg"]
PLAY = [*ALGO, "-f", "logs"]
PRETRAINED = "--pretrained"
CONTINUE = "--continue"
# The disk is full, or not to be written to
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EEXIST, errno.EFBIG)
RUN = {"env": ["--env"], "run": ["-f", "--folder"]}


class Script(NamedTuple):
    """
    How to run one.

    :param about: what it does
    :param module: where it is
    :param function: None: the module is a program
    :param defaults: ours for its options
    :param names: which of its options name something that has to be there: "env", "run" (a training in a log folder), "model"
        and "config" (files to read), "archive" (one whose ending may be left out), "folder", "envs" (parts of the names of
        trainings in the folders); "log": a folder to write to
    :param agent: the option that says which agent plays, or begins, for which ``--pretrained`` stands
    """

    about: str
    module: str
    function: str | None
    defaults: list[str]
    names: Mapping[str, list[str]]
    agent: str | None = None


SCRIPTS = {
    "train": Script(
        "train an agent, or search for hyperparameters (-optimize)",
        "rl_zoo3.train",
        "train",
        [*ALGO, "-f", "logs"],
        {
            "env": ["--env"],
            "model": ["-i", "--trained-agent"],
            "config": ["-conf", "--conf-file"],
            "log": ["-f", "--log-folder"],
        },
        "-i",
    ),
    "enjoy": Script("watch a trained agent, or evaluate it", "rl_zoo3.enjoy", "enjoy", PLAY, RUN, "-f"),
    "report": Script("evaluate an agent and draw its learning curve", "sb3_ppg.zoo.report", "main", PLAY, RUN, "-f"),
    "record_video": Script("record a trained agent", "rl_zoo3.record_video", None, PLAY, RUN, "-f"),
    "record_training": Script(
        "record all checkpoints of a training, as one video", "sb3_ppg.zoo.scripts", "record_training", PLAY, RUN
    ),
    "benchmark": Script(
        "evaluate all trained agents of a folder",
        "sb3_ppg.zoo.scripts",
        "benchmark",
        ["--log-dir", "logs"],
        {"folder": ["--log-dir"]},
    ),
    "push_to_hub": Script("share a trained agent on the Hugging Face Hub", "sb3_ppg.zoo.sharing", "push", PLAY, RUN),
    "load_from_hub": Script("fetch one from there", "sb3_ppg.zoo.sharing", "load", ALGO, {"env": ["--env"]}),
    "plot_train": Script(
        "learning curves of trainings",
        "sb3_ppg.zoo.scripts",
        "plot_train",
        ALGO,
        {"folder": ["-f", "--exp-folder"], "envs": ["-e", "--env"]},
    ),
    "all_plots": Script(
        "compare evaluations of several algorithms",
        "sb3_ppg.zoo.scripts",
        "all_plots",
        ["-a", "ppg"],
        {"folder": ["-f", "--exp-folders"], "envs": ["-e", "--env"]},
    ),
    "plot_from_file": Script(
        "plots from what all_plots saved", "sb3_ppg.zoo.scripts", "plot_from_file", [], {"archive": ["-i", "--input"]}
    ),
}
WITH_AGENTS = [name for name, script in SCRIPTS.items() if script.agent is not None]
# Options of ours: what they mean, and for which scripts
OWN_OPTIONS = {
    PRETRAINED: ("an agent that comes with the repository", WITH_AGENTS),
    CONTINUE: ("with -i MODEL: go on exactly where the model's training stopped", ["train"]),
}


def main() -> None:
    """Run the script that the command line names, with our defaults unless it says otherwise."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's agent hears of errors
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
        sys.exit(f"{usage()}\n\n{name} is none of them{nearest(name, SCRIPTS)}")
    else:
        try:
            with missing_extras_named():
                run(name, SCRIPTS[name], arguments)
        except (ArgumentError, HubError, ModelFormatError, ProcessGroupError) as error:
            from sb3_ppg.distributed.agreement import is_shared

            is_said_by_another = is_shared(error) and os.environ.get("LOCAL_RANK", "0") != "0"  # of this machine
            sys.exit(1 if is_said_by_another else f"sb3-ppg {name}: {error}")
        except OSError as error:
            if error.errno not in DISK:
                raise
            sys.exit(f"sb3-ppg {name}: {error}")
        except ImportError as error:
            if "pip install" not in str(error):
                raise
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
    from sb3_ppg.distributed.agreement import agreed, require_equal
    from sb3_ppg.distributed.collectives import n_processes
    from sb3_ppg.distributed.group import process_group
    from sb3_ppg.zoo import patched
    from sb3_ppg.zoo.command_line import check_command_line
    from sb3_ppg.zoo.distributed import train_together
    from sb3_ppg.zoo.interrupted import go_on_when_interrupted
    from sb3_ppg.zoo.resume import take_continue

    with process_group(), patched() as patches:
        require_equal({"command": [name, *arguments]})
        with agreed():
            if name != "train" and n_processes() > 1:
                raise ArgumentError(f"{name} is for one process: start it without torchrun")
            if PRETRAINED in arguments:
                if script.agent is None:
                    raise ArgumentError(f"{name} does not take {PRETRAINED}: {', '.join(WITH_AGENTS)} do")
                from sb3_ppg.zoo.trained_agents import take_pretrained

                arguments = take_pretrained(script.agent, arguments)
                sys.argv[1:] = [*script.defaults, *arguments]
            if name == "train":
                sys.argv[1:] = take_continue(sys.argv[1:], patches)
            if {"-h", "--help"} & set(arguments):
                for line in own_options([name]):
                    print(line)
            else:
                check_command_line(script.names, sys.argv[1:])
        if name == "train":
            train_together(patches)
            go_on_when_interrupted(patches)
        if script.function is None:
            runpy.run_module(script.module, run_name="__main__", alter_sys=True)
        else:
            getattr(importlib.import_module(script.module), script.function)()


def usage() -> str:
    """The list of scripts."""
    lines = [f"  {name:16} {script.about}" for name, script in SCRIPTS.items()]
    return "\n".join(
        [
            "usage: sb3-ppg SCRIPT [options]     (options: sb3-ppg SCRIPT --help)",
            "",
            *lines,
            "",
            *own_options([*SCRIPTS]),
        ]
    )


def own_options(names: list[str]) -> list[str]:
    """
    :param names: of scripts
    :return: lines on what they take beside the Zoo's options; none, if that is nothing
    """
    lines = [
        f"  {option:16} {about} ({', '.join(scripts)})"
        for option, (about, scripts) in OWN_OPTIONS.items()
        if {*scripts} & {*names}
    ]
    return ["Beside RL Zoo's options:", *lines] if lines else []

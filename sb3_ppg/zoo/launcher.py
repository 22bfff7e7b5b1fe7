"""``python -m sb3_ppg SCRIPT ...`` and ``sb3-ppg SCRIPT ...``: RL Zoo's scripts, with PPG."""

import errno
import importlib
import os
import runpy
import sys
from contextlib import ExitStack, redirect_stdout
from unittest.mock import patch

from sb3_ppg import __version__
from sb3_ppg.errors import ArgumentError, HubError, ModelFormatError, ProcessGroupError, missing_extras_named, nearest
from sb3_ppg.zoo.commands import CONTINUE, OWN_OPTIONS, PRETRAINED, SCRIPTS, WITH_AGENTS, Script

# The disk is full or cannot be written to
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOTDIR, errno.EEXIST, errno.EFBIG)


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
    Run a script.

    :raises ArgumentError: if its command line names something that does not exist
    """
    from sb3_ppg.distributed.agreement import agreed, require_equal
    from sb3_ppg.distributed.collectives import n_processes, rank
    from sb3_ppg.distributed.group import process_group
    from sb3_ppg.zoo import patched
    from sb3_ppg.zoo.command_line import check_command_line, without_continue
    from sb3_ppg.zoo.manager import Manager

    with process_group(), patched(), ExitStack() as stack:
        require_equal({"command": [name, *arguments]})
        with agreed():
            if name != "train" and n_processes() > 1:
                raise ArgumentError(f"{name} is for one process: start it without torchrun")
            asked = set(arguments)
            if PRETRAINED in asked:
                if script.agent is None:
                    raise ArgumentError(f"{name} does not take {PRETRAINED}: {', '.join(WITH_AGENTS)} do")
                from sb3_ppg.zoo.trained_agents import with_pretrained

                arguments = with_pretrained(script.agent, arguments)
            if name == "train" and CONTINUE in asked:
                arguments = without_continue(arguments)
                stack.enter_context(patch.object(Manager, "asked_to_continue", True))
            # Our defaults come first: where an option is given twice, the last one counts
            sys.argv[1:] = [*script.defaults, *arguments]
            if {"-h", "--help"} & asked:
                for line in own_options([name]):
                    print(line)
            else:
                check_command_line(script.names, sys.argv[1:])
        if rank() > 0:
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        if n_processes() > 1:
            print(f"{n_processes()} processes train one model")
        if script.function is None:
            runpy.run_module(script.module, run_name="__main__", alter_sys=True)
        else:
            getattr(importlib.import_module(script.module), script.function)()


def usage() -> str:
    """Return the list of scripts."""
    scripts = [f"  {name:16} {script.about}" for name, script in SCRIPTS.items()]
    first_line = "usage: sb3-ppg SCRIPT [options]     (options: sb3-ppg SCRIPT --help)"
    return "\n".join([first_line, "", *scripts, "", *own_options([*SCRIPTS])])


def own_options(names: list[str]) -> list[str]:
    """Return lines about the options that these scripts take in addition to the Zoo's, if there are any."""
    lines = [
        f"  {option:16} {about} ({', '.join(scripts)})"
        for option, (about, scripts) in OWN_OPTIONS.items()
        if {*scripts} & {*names}
    ]
    return ["In addition to RL Zoo's options:", *lines] if lines else []

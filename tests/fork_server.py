"""
A process that has imported what takes seconds, and whose forks become the programs that tests run: as ``python -m module ...``
or ``python -c code`` would, with an environment, streams and an exit status of their own. So do the programs that they call.

RL Zoo's scripts and sb3_ppg are left for the programs to import: the launcher changes what the scripts import from elsewhere.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

IMPORTED = (
    *("torch", "torch._dynamo", "stable_baselines3", "sb3_contrib", "gymnasium", "huggingface_hub", "pandas", "optuna"),
    *("matplotlib.pyplot", "seaborn", "rliable.library", "rich", "tqdm.rich", "moviepy", "imageio_ffmpeg"),
    *("rl_zoo3.import_envs", "rl_zoo3.exp_manager", "rl_zoo3.hyperparams_opt", "rl_zoo3.load_from_hub", "rl_zoo3.utils"),
)


def main() -> None:
    """Serve until the input ends, at the abstract socket that the command line names; a line says that one can connect."""
    del sys.path[0]  # this file's folder
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that serve
    name = sys.argv[1]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                serve(connection, name)
                return  # and the interpreter ends as usual
            connection.close()


def serve(connection: socket.socket, server: str) -> None:
    """Return in the process that has been the program; the other one tells who asked for it how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection, connection.makefile("rw") as stream:
        request = json.loads(stream.readline())
        process = os.fork()
        if process == 0:
            become(**request, server=server)
            return
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=stream, flush=True)
    os._exit(0)


def ask(server: str, **request: Any) -> int:
    """
    :param server: the name of its socket
    :param request: the arguments of ``become``, but this
    :return: the exit status
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{server}")
        with connection.makefile("rw") as stream:
            print(json.dumps(request), file=stream, flush=True)
            return int(stream.readline())


def become(
    option: str,
    program: str,
    arguments: list[str],
    cwd: str,
    environment: dict[str, str],
    streams: list[str],
    time_limit: int,
    server: str,
) -> None:
    """
    :param option: "-m" for a module or "-c" for code
    :param program: the name of the one, or the other
    :param arguments: of the command line
    :param cwd: the working directory
    :param environment: all its variables
    :param streams: the files to use as standard input, output and error
    :param time_limit: in seconds, after which SIGALRM ends the process
    :param server: for the programs that this one calls
    """
    for number, stream in enumerate(streams):
        file = os.open(stream, os.O_WRONLY | os.O_APPEND if number > 0 else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.alarm(time_limit)
    np.random.seed()  # else all forks have the server's numbers
    subprocess.call = partial(call, subprocess.call, server, streams, time_limit)
    sys.path.insert(0, cwd if option == "-m" else "")
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = ModuleType("__main__")
        exec(program, vars(sys.modules["__main__"]))


def call(original: Callable[..., int], server: str, streams: list[str], time_limit: int, command: list[str]) -> int:
    """``subprocess.call``, where it is to run a module of Python."""
    if command[:2] != [sys.executable, "-m"]:
        return original(command)
    program, *arguments = command[2:]
    request = dict(option="-m", program=program, arguments=arguments, cwd=os.getcwd(), environment=dict(os.environ))
    return ask(server, **request, streams=streams, time_limit=time_limit)


if __name__ == "__main__":
    main()

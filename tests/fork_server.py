"""
A process that has imported what takes seconds, and whose forks become the programs that tests run: as ``python -m module ...``
or ``python -c code`` would, with an environment, streams and an exit status of their own.

RL Zoo's scripts and sb3_ppg are left for the programs to import: the launcher changes what the scripts import from elsewhere.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys
from types import ModuleType

import numpy as np

IMPORTED = (
    *("torch", "torch._dynamo", "stable_baselines3", "sb3_contrib", "gymnasium", "huggingface_hub", "pandas", "optuna"),
    *("matplotlib.pyplot", "seaborn", "rliable.library", "rich", "tqdm.rich", "moviepy", "imageio_ffmpeg"),
    *("rl_zoo3.import_envs", "rl_zoo3.exp_manager", "rl_zoo3.hyperparams_opt", "rl_zoo3.load_from_hub", "rl_zoo3.utils"),
)


def main() -> None:
    """Serve until the input ends: a line for each program, see ``become``; a line of output with its exit status."""
    del sys.path[0]  # this file's folder
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    for request in sys.stdin:
        process = os.fork()
        if process == 0:
            become(**json.loads(request))
            return  # and the interpreter ends as usual
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def become(
    option: str, program: str, arguments: list[str], cwd: str, environment: dict[str, str], streams: list[str], time_limit: int
) -> None:
    """
    :param option: "-m" for a module or "-c" for code
    :param program: the name of the one, or the other
    :param arguments: of the command line
    :param cwd: the working directory
    :param environment: all its variables
    :param streams: the files to use as standard input, output and error
    :param time_limit: in seconds, after which SIGALRM ends the process
    """
    for number, path in enumerate(streams):
        file = os.open(path, os.O_WRONLY if number > 0 else os.O_RDONLY)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.alarm(time_limit)
    np.random.seed()  # else all forks have the server's numbers
    sys.path.insert(0, cwd if option == "-m" else "")
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = ModuleType("__main__")
        exec(program, vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main()

"""Programs that tests start, and end by signals, and small settings of runs."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.helpers import ROOT

SMALL = "-params compile_updates:False n_envs:2 n_steps:32 batch_size:32 n_policy_iterations:2 aux_batch_size:32".split()


def program(arguments: list[str], cwd: Path, *, start_new_session: bool = False, **environment: str) -> subprocess.Popen:
    """Start a program whose output goes to a file: a pipe that nobody reads would stop it."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    variables["PYTHONPATH"] = f"{ROOT}{os.pathsep}{cwd}"
    path = cwd / f"output_{len(list(cwd.glob('output_*')))}"
    with path.open("w") as output:
        started = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env=variables,
            stdout=output,
            stderr=output,
            start_new_session=start_new_session,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # which shells ignore in the background
        )
    vars(started)["output"] = path
    return started


def output_of(started: subprocess.Popen) -> str:
    return vars(started)["output"].read_text()


def end_of(started: subprocess.Popen) -> tuple[int, str]:
    """Wait for a program; return its exit status and its output."""
    return started.wait(timeout=150), output_of(started)

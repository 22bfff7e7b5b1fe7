"""
PPG and PPO of other libraries and of this one, each with its defaults, or its own settings for the environment.

Each script in this folder trains an agent with one library, which is all that it needs, and plays 20 episodes without
exploration, the same ones for all agents. The libraries are installed in virtual environments of their own. Trainings have
100,000 steps, in LunarLander-v3 300,000. XuanCe's files ask for 300,000 everywhere, which are the length of its training and
change nothing else (its learning rate is constant). As its steps take less time than others, it has trainings of both lengths.

    python -m benchmarks.peers [run] [--jobs 2] [--task CartPole-v1] [--contestant "SB3's PPO"] [--seed 0]
    python -m benchmarks.peers report
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import venvs
from benchmarks.environments import ROOT
from benchmarks.harness import Experiment, Outcome, Report, machines
from sb3_ppg.comparison.report import page, table
from sb3_ppg.comparison.scores import interquartile_means

SCRIPTS, N_SEEDS = Path(__file__).parent, 5
TASKS = {"CartPole-v1": 100_000, "Acrobot-v1": 100_000, "Pendulum-v1": 100_000, "LunarLander-v3": 300_000}  # steps
CONTESTANTS: dict[str, tuple[str, dict[str, int]]] = {  # script with options, steps in each task
    "PPG": ("our_ppg.py", TASKS),
    "PPG, 8 environments, minibatches of 256": ("our_ppg.py --n_envs 8 --batch_size 256", TASKS),
    "PPG, 8 environments, minibatches of 256, n_steps=256": ("our_ppg.py --n_envs 8 --batch_size 256 --n_steps 256", TASKS),
    "SB3's PPO": ("sb3_ppo.py", TASKS),
    "SBX's PPO": ("sbx_ppo.py", TASKS),
    "XuanCe's PPG": ("xuance_ppg.py", TASKS),
    "XuanCe's PPG, its 300,000 steps": ("xuance_ppg.py", dict.fromkeys(list(TASKS)[:3], 300_000)),
    "DI-engine's PPG": ("di_engine_ppg.py", {"CartPole-v1": 100_000}),
    "DI-engine's PPG, aux_bc_weight=0": ("di_engine_ppg.py --aux_bc_weight 0", {"CartPole-v1": 100_000}),
}
PIP = {  # what scripts need in addition to the packages of this project
    "sbx_ppo.py": venvs.SBX,
    "xuance_ppg.py": "xuance==1.4.4 gymnasium==1.2.3 numpy==1.26.4 torchvision==0.28.0",
    "di_engine_ppg.py": "--no-deps --requirement benchmarks/peers/di_engine.txt",
}


def wanted() -> list[dict[str, Any]]:
    """Return the runs; anybody can give their scripts to Python."""
    return [
        dict(task=task, contestant=name, seed=seed, script=f"{script} {task} --seed {seed} --steps {n_timesteps[task]}")
        for seed in range(N_SEEDS)
        for task in TASKS
        for name, (script, n_timesteps) in CONTESTANTS.items()
        if task in n_timesteps
    ]


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Run a script on one thread; return what it prints, with the mean of the returns."""
    script, *options = run["script"].split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    python = venvs.installed(script, PIP[script])[0] if script in PIP else sys.executable
    done = subprocess.run(
        [python, SCRIPTS / script, *options], check=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    return {"mean": round(float(np.mean(result.pop("returns"))), 2), **result}, None


def report(experiment: Experiment) -> Report:
    """Return the table."""
    rows, lines = experiment.rows(), []
    groups = dict(list(rows.groupby(["task", "contestant"])))
    for task, contestant in filter(groups.__contains__, itertools.product(TASKS, CONTESTANTS)):
        own = groups[task, contestant]
        mean = interquartile_means({contestant: own["mean"].to_numpy()[:, None]})[contestant]
        steps, seconds = own["steps"].median(), own["seconds"].median()
        cells = [f"{steps:,.0f}", f"{seconds:,.0f}", f"{steps / seconds:,.0f}", len(own), f"{mean:,.1f}"]
        lines.append([task, f"{contestant} ({', '.join(own['version'].unique())})", *cells])
    text = page(
        "PPG and PPO of other libraries",
        f"`python -m benchmarks.peers`. {machines(rows)} Interquartile means, over seeds, of the mean return of 20 episodes "
        "without exploration, with 95 % bootstrap intervals (rliable). Steps as taken, in whole rollouts (DI-engine's as "
        "asked for). Seconds of processor time, medians, with environments and compiling, without imports, while others "
        "ran. SB3, SBX and this project have their defaults, XuanCe its file for each environment, DI-engine its program for "
        "CartPole. Each row is what a script in `benchmarks/peers` prints, which needs its own library only.",
        table(["environment", "", "steps", "seconds", "steps/s", "seeds", "return"], lines),
    )
    return {"peers.md": text}


PEERS = Experiment("peers", wanted, train, report)

if __name__ == "__main__":
    PEERS.main()

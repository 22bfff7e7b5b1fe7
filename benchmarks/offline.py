"""
Learning from recorded data.

1. BCQ, against the data's mean return, behavior cloning (``PPG.warm_start`` alone) and d3rlpy's BCQ. All networks of BCQ, ours
   and d3rlpy's, have 128 and 128 units: the paper's take six times as long.
2. PPG from scratch, from a warm start on the data, and from a warm start on BCQ's actions: steps to a threshold. PPG and
   cloning have the hyperparameters of ``hyperparams/ppg.yml``.

The data is of a half-trained PPG agent with its exploration, and of the same agent with half of the episodes random. d3rlpy
needs another version of Gymnasium: give its Python by ``D3RLPY_PYTHON``, or its folder by ``D3RLPY_PATH``. Without it, its
runs end in an error.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

from benchmarks.harness import Experiment, Report, locked
from benchmarks.suites.contestants import entry
from benchmarks.suites.training import Episodes, curve, make
from benchmarks.tables import draw_seeds, finish, machines, page, table
from sb3_ppg import PPG
from sb3_ppg.offline import BCQ, Dataset, load_dataset, record
from sb3_ppg.zoo.manager import Manager


class Task(NamedTuple):
    """
    An environment.

    :param half: mean return of 20 episodes at which an agent is half-trained
    :param threshold: mean return of 100 episodes that PPG is to reach
    :param n_online: steps of PPG
    :param recorder: arguments of the agent whose data is recorded
    :param n_data: recorded steps
    :param n_offline: gradient steps of BCQ, ours and d3rlpy's
    """

    half: float
    threshold: float
    n_online: int
    recorder: dict[str, Any]
    n_data: int = 50_000
    n_offline: int = 20_000


RECORDER = dict(n_steps=128, batch_size=256, n_policy_iterations=8, learning_rate=1e-3)
TASKS = {
    "CartPole-v1": Task(100, 475, 100_000, RECORDER, n_data=20_000),
    "Pendulum-v1": Task(-700, -200, 100_000, {**RECORDER, "gamma": 0.95, "use_sde": True, "sde_sample_freq": 4}),
    "LunarLander-v3": Task(0, 100, 300_000, {**RECORDER, "gamma": 0.999, "ent_coef": 0.01}, n_offline=50_000),
    "Hopper-v5": Task(800, 1500, 300_000, {**RECORDER, "learning_rate": 3e-4}),
}
KINDS = {"half-trained": 0.0, "mixed": 0.5}  # the part of random episodes
SLOWLY = "BCQ, learning rate 3e-4"
SLOWLY_ON = ("CartPole-v1", "Pendulum-v1")  # one of each kind of actions
OFFLINE = ("BCQ", SLOWLY, "d3rlpy", "cloning")
ONLINE = {"PPG": "tab:gray", "PPG from data": "tab:blue", "PPG from BCQ": "tab:green"}
N_SEEDS, N_EPISODES, N_CLONING_EPOCHS = 3, 50, 20
N_FIRST = 20  # episodes before a curve begins: the mean of fewer may reach the threshold by chance
UNITS = [128, 128]  # in all networks of BCQ, ours and d3rlpy's


def wanted() -> list[dict[str, Any]]:
    contestants = [*OFFLINE, *ONLINE]
    return [
        dict(env=env, data=kind, contestant=contestant, seed=seed)
        for env in TASKS
        for seed in range(N_SEEDS)
        for kind in KINDS
        for contestant in contestants
        if contestant != "PPG" or kind == "half-trained"  # PPG sees no data
        if contestant != SLOWLY or (kind == "half-trained" and env in SLOWLY_ON)
    ]


class StopHalfTrained(BaseCallback):
    """Stop at a mean return of the latest episodes."""

    def __init__(self, half: float) -> None:
        super().__init__()
        self.half = half

    def _on_step(self) -> bool:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or []]
        return len(returns) < 20 or float(np.mean(returns[-20:])) < self.half  # of 100, it would lag behind the policy


def data_of(env_id: str, kind: str, folder: Path) -> tuple[Path, Dataset]:
    """Return the data of a kind, which is recorded once: the same for all contestants and seeds."""
    file = folder / f"{env_id}_{kind}.npz"
    with locked(file.with_suffix(".lock")):
        if not file.exists():
            task = TASKS[env_id]
            env = VecNormalize(make_vec_env(env_id, 8, seed=1000), norm_obs=False, gamma=task.recorder.get("gamma", 0.99))
            agent = PPG("MlpPolicy", env, **task.recorder, seed=1000, device="cpu")
            agent.learn(1_000_000, callback=StopHalfTrained(task.half))
            data = record(agent, env, task.n_data, random_episodes=KINDS[kind], seed=0)
            columns = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
            np.savez(file, **{name: getattr(data, name) for name in columns})
    with np.load(file) as arrays:
        return file, load_dataset(dict(arrays))


def bcq_of(training: dict[str, Any], data: Dataset, folder: Path) -> BCQ:
    """Return the agent of a seed, which is trained once: that of contestant "BCQ" is also the start of "PPG from BCQ"."""
    env_id, slowly = training["env"], training["contestant"] == SLOWLY
    file = folder / f"{env_id}_{training['data']}_{training['seed']}{'_slowly' if slowly else ''}.zip"
    with locked(file.with_suffix(".lock")):
        if not file.exists():
            networks = dict(net_arch=UNITS, vae_net_arch=UNITS)
            arguments: dict[str, Any] = dict(learning_rate=3e-4) if slowly else {}
            seed = training["seed"]
            model = BCQ("MlpPolicy", env_id, dataset=data, policy_kwargs=networks, seed=seed, device="cpu", **arguments)
            model.learn(TASKS[env_id].n_offline).save(file)
        return BCQ.load(file, device="cpu")


def make_ppg(training: dict[str, Any], folder: Path) -> tuple[Manager, Any]:
    """Make an agent as RL Zoo does."""
    env_id = training["env"]
    return make("ppg", env_id, entry("ppg", env_id) | {"n_timesteps": TASKS[env_id].n_online}, folder, training["seed"])


def evaluated(manager: Manager, model: PPG) -> float:
    """Return the mean return of deterministic episodes."""
    manager.seed += 2000
    env = manager.create_envs(1, eval_env=True)
    sync_envs_normalization(model.get_env(), env)  # type: ignore[arg-type] # it has one
    mean, _ = evaluate_policy(model, env, N_EPISODES)
    return float(mean)  # type: ignore[arg-type]


def train_offline(training: dict[str, Any], file: Path, data: Dataset, folder: Path) -> float:
    """Return the mean return of deterministic episodes after learning from data."""
    env_id, contestant, seed = training["env"], training["contestant"], training["seed"]
    if contestant == "d3rlpy":
        program = os.environ.get("D3RLPY_PYTHON", sys.executable)
        script = Path(__file__).with_name("offline_d3rlpy.py")
        command = [
            program,
            str(script),
            str(file.absolute()),
            env_id,
            str(TASKS[env_id].n_offline),
            str(UNITS[0]),
            str(seed),
            str(N_EPISODES),
        ]
        environment = {**os.environ, "PYTHONPATH": os.environ.get("D3RLPY_PATH", "")}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
        return float(done.stdout.split()[-1])
    if contestant == "cloning":
        manager, model = make_ppg(training, folder)
        return evaluated(manager, model.warm_start(data, n_epochs=N_CLONING_EPOCHS))
    mean, _ = evaluate_policy(bcq_of(training, data, folder.parent), make_vec_env(env_id, 1, seed=2000 + seed), N_EPISODES)
    return float(mean)  # type: ignore[arg-type]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame | None]:
    """Learn from data, or train PPG online after a start from data."""
    env_id, contestant, task = training["env"], training["contestant"], TASKS[training["env"]]
    file, data = data_of(env_id, training["data"], folder.parent)
    of_data, start = data.episode_returns().mean(), sum(os.times()[:4])  # processes that it starts included
    if contestant in OFFLINE:
        result = train_offline(training, file, data, folder)
        return {"data_return": of_data, "return": result, "seconds": round(sum(os.times()[:4]) - start)}, None
    (manager, model), episodes = make_ppg(training, folder), Episodes(folder / "episodes.csv")
    if contestant == "PPG from data":
        model.warm_start(data, n_epochs=N_CLONING_EPOCHS)
    elif contestant == "PPG from BCQ":
        model.warm_start(data, agent=bcq_of(training, data, folder.parent), n_epochs=N_CLONING_EPOCHS)
    model.learn(task.n_online, callback=episodes)
    mean = evaluated(manager, model)
    done = episodes.read(task.n_online)
    points = curve(done, task.n_online)
    points = points[points["steps"] >= done["steps"].iloc[N_FIRST - 1]]
    return {"data_return": of_data, "return": mean, "seconds": round(sum(os.times()[:4]) - start)}, points


def report(experiment: Experiment) -> Report:
    rows, curves = experiment.rows(), experiment.curves()
    texts, present = [], [env for env in TASKS if (rows["env"] == env).any()]
    figure = Figure(figsize=(5 * max(len(present), 1), 4), dpi=120, layout="constrained")
    for place, env_id in enumerate(present):
        axes = figure.add_subplot(1, len(present), place + 1)
        lines = []
        for kind in KINDS:
            own = rows[(rows["env"] == env_id) & (rows["data"] == kind)]
            points = curves[(curves["env"] == env_id) & (curves["data"] == kind)]
            for contestant in [*OFFLINE, *ONLINE]:
                each = own[own["contestant"] == contestant]
                if len(each) == 0:
                    continue
                returns = each["return"]
                steps = ""
                if contestant in ONLINE:
                    seeds = points[points["contestant"] == contestant].pivot(index="steps", columns="seed", values="return")
                    reached = np.array([one.index[one >= TASKS[env_id].threshold].min() for _, one in seeds.items()])
                    n_reached = int(np.isfinite(reached).sum())
                    steps = f"{np.median(reached):,.0f}" if n_reached == len(each) else f"{n_reached} of {len(each)} seeds"
                    if kind == "half-trained":
                        draw_seeds(axes, seeds, contestant, ONLINE[contestant])
                spread = f"{returns.mean():.1f} ({returns.min():.1f} to {returns.max():.1f})"
                of_data = f"{each['data_return'].iloc[0]:.1f}"
                lines.append([kind, of_data, contestant, len(each), spread, steps, f"{each['seconds'].median():.0f}"])
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        finish(axes, env_id, "environment steps", "return of the latest 100 episodes", legend="lower right")
        reaching = f"steps to {TASKS[env_id].threshold:g}, median"
        head = [
            "data",
            "its mean return",
            "algorithm",
            "seeds",
            "return, mean (range of the seeds)",
            reaching,
            "seconds of a core",
        ]
        texts += [f"## {env_id}", table(head, lines)]
    text = page(
        "Recorded data",
        f'`python -m benchmarks.offline`: {N_EPISODES} deterministic episodes after learning. "half-trained": data of one PPG '
        f'agent with its exploration; "mixed": half of the episodes are random. {machines(rows) if len(rows) else ""}',
        *texts,
        "![learning curves](offline.png)",
    )
    return {"offline.md": text, "offline.png": figure}


OFFLINE_DATA = Experiment("offline", wanted, train, report)

if __name__ == "__main__":
    OFFLINE_DATA.main()

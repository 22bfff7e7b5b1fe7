"""
The trained agents under ``pretrained``, from the tuned entries of ``hyperparams``: trained by RL Zoo's command, evaluated over
100 episodes, written as plain data with a model card. What is there is left as it is. Three hours on one core.

    python -m benchmarks.pretrained [ppg/LunarLander-v3 ...]
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from huggingface_sb3 import EnvironmentName

from sb3_ppg.hub.files import read_json
from sb3_ppg.zoo.sharing import ZOO, Environment

os.environ["OMP_NUM_THREADS"] = "1"  # for the commands
ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "pretrained"


class Agent(NamedTuple):
    """
    An agent of the repository.

    :param algo: name of its algorithm in RL Zoo
    :param eval_freq: steps between the evaluations that are kept
    :param seed: seed of the run; where the suites' seeds end far apart, of one that learned
    """

    algo: str
    env_id: str
    eval_freq: int
    seed: int = 1

    @property
    def name(self) -> str:
        """Name of the agent's folder."""
        return f"{self.algo}/{EnvironmentName(self.env_id)}"

    @property
    def command(self) -> str:
        """The command that trains the agent, without ``sb3-ppg``."""
        evaluation = f"--eval-freq {self.eval_freq} --eval-episodes 20"
        return f"train --algo {self.algo} --env {self.env_id} --seed {self.seed} {evaluation}"


# These would take 11 and 4 of the 30 MB that all agents may take, with their optimizers
LEFT_OUT = ["ppg_lstm/MiniGrid-MemoryS9-v0", "ppg/MinAtar-SpaceInvaders-v1"]
AGENTS = [
    Agent("ppg", "CartPole-v1", 10_000),
    Agent("ppg", "Acrobot-v1", 50_000),
    Agent("ppg", "MountainCarContinuous-v0", 5_000),
    Agent("ppg", "Pendulum-v1", 10_000),
    Agent("ppg", "LunarLander-v3", 50_000),
    Agent("ppg", "LunarLanderContinuous-v3", 50_000),
    Agent("ppg", "Hopper-v5", 50_000),
    Agent("ppg", "Walker2d-v5", 50_000, seed=0),
    Agent("ppg", "HalfCheetah-v5", 50_000, seed=2),
    Agent("ppg", "MiniGrid-DoorKey-8x8-v0", 50_000),
    Agent("ppg", "MinAtar/Asterix-v1", 100_000),
    Agent("ppg", "MinAtar/Breakout-v1", 100_000),
    Agent("ppg", "PongNoFrameskip-v4", 200_000),
    Agent("ppg_lstm", "CartPoleNoVel-v1", 10_000),
    Agent("ppg_mask", "InvalidActionsDiscrete-v0", 5_000),
    Agent("ppg_mask", "InvalidActionsMultiDiscrete-v0", 5_000),
    Agent("ppg_mask", "InvalidActionsMultiBinary-v0", 5_000),
]


def usage(agent: Agent, environment: Environment) -> str:
    """Return the section of the model card on using the agent."""
    commit = subprocess.check_output(["git", "log", "-1", "--format=%h"], cwd=ROOT, text=True).strip()
    algo = "" if agent.algo == "ppg" else f" --algo {agent.algo}"
    wrappers = [
        f"{name}(..., {', '.join(f'{key}={value!r}' for key, value in arguments.items())})" if arguments else name
        for name, arguments in environment.wrappers
    ]
    if environment.config.frame_stack:  # around the normalization
        wrappers += ["`hub.load_vec_normalize(folder, ...)`", f"VecFrameStack(..., {environment.config.frame_stack})"]
    within = f", the environment being within {', '.join(wrappers)}" if wrappers else ""
    return f"""In the folder of the repository:

```bash
sb3-ppg enjoy{algo} --env {agent.env_id} --pretrained
```

In Python `hub.from_pretrained("pretrained/{agent.name}", env=...)`{within}. Trained with commit {commit} by

```bash
sb3-ppg {agent.command}
```"""


def make(agent: Agent) -> None:
    """Train, evaluate, write."""
    folder = FOLDER / agent.name
    with TemporaryDirectory() as temporary:
        which = f"--algo {agent.algo} --env {agent.env_id} -orga none --device cpu --no-render --episodes 100"
        for command in (agent.command, f"push_to_hub {which} --dry-run {folder}"):
            subprocess.run([sys.executable, "-m", "sb3_ppg", *command.split(), "-f", temporary], check=True)
        (folder / "logs").mkdir()
        (evaluations,) = Path(temporary).glob(f"{agent.name}_*/evaluations.npz")
        shutil.copy(evaluations, folder / "logs")
    (folder / "learning_curve.png").unlink()
    card = folder / "README.md"
    before, after = re.split(r"## Usage\n.*(?=## Hyperparameters\n)", card.read_text(), flags=re.DOTALL)
    before = before.replace("![Learning curve](learning_curve.png)\n\n", "")
    card.write_text(f"{before}## Usage\n\n{usage(agent, read_json(folder / ZOO, Environment))}\n\n{after}")


if __name__ == "__main__":
    for agent in AGENTS:
        if agent.name in (sys.argv[1:] or [agent.name]) and not (FOLDER / agent.name).exists():
            make(agent)

"""
RecurrentPPG and MaskablePPG, and their PPO counterparts of sb3-contrib with the same number of steps; 100 deterministic
episodes per agent.

- CartPole-v1 without velocities (RL Zoo's CartPoleNoVel-v1): RecurrentPPG with stored and with recomputed LSTM states,
  RecurrentPPO with RL Zoo's tuned hyperparameters, which RecurrentPPG shares, and PPG, which has no memory.
- sb3-contrib's InvalidActionEnvDiscrete, ...MultiDiscrete and ...MultiBinary: MaskablePPG and MaskablePPO.
"""

from rl_zoo3 import ALGOS
from sb3_contrib import MaskablePPO

from benchmarks.learning import Task, Tasks, comparison
from benchmarks.suites.contestants import entry, zoo_entry

ALGOS["ppo_mask"] = MaskablePPO
NO_VELOCITIES = "CartPoleNoVel-v1"
LSTM = entry("ppg_lstm", NO_VELOCITIES)
WITHOUT_LSTM = "dict(ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[64], vf=[64]))"


def masked(env_id: str) -> Task:
    """Return a task of both maskable algorithms, with the same entry but for PPG's own arguments and the entropy bonus."""
    ours = entry("ppg_mask", env_id)
    not_theirs = ("n_policy_iterations", "aux_batch_size", "ent_coef")
    theirs = {name: value for name, value in ours.items() if name not in not_theirs}
    return Task(env_id, 3, {"MaskablePPG": ("ppg_mask", ours), "MaskablePPO": ("ppo_mask", theirs)})


TASKS: Tasks = {
    "CartPole-v1 without velocities": Task(
        NO_VELOCITIES,
        5,
        {
            "RecurrentPPG": ("ppg_lstm", LSTM),
            "RecurrentPPO": ("ppo_lstm", zoo_entry("ppo_lstm", NO_VELOCITIES)),
            "RecurrentPPG, stored states": ("ppg_lstm", LSTM | dict(recompute_states=False)),
            "PPG": ("ppg", LSTM | dict(policy="MlpPolicy", policy_kwargs=WITHOUT_LSTM)),
        },
    ),
    "100 actions, 80 invalid": masked("InvalidActionsDiscrete-v0"),
    "4 x 4 x 4 actions, 6 of 12 invalid": masked("InvalidActionsMultiDiscrete-v0"),
    "10 binary actions, 5 of 20 invalid": masked("InvalidActionsMultiBinary-v0"),
}
VARIANTS = comparison("variants", "RecurrentPPG and MaskablePPG", TASKS)

if __name__ == "__main__":
    VARIANTS.main()

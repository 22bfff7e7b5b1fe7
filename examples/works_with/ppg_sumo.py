"""
sumo-rl, eclipse-sumo: PPG controls the traffic lights of a crossing.

Needs ``pip install --no-deps sumo-rl==1.4.5 eclipse-sumo==1.28.0 sumolib==1.28.0 traci==1.28.0 libsumo==1.28.0
pettingzoo==1.27.0``.
"""

import os
from pathlib import Path

import sumo  # noqa: F401, sets SUMO_HOME

os.environ["LIBSUMO_AS_TRACI"] = "1"  # the simulator in this process, faster; only one environment then
import sumo_rl

from sb3_ppg import PPG

net = Path(sumo_rl.__file__).parent / "nets" / "2way-single-intersection"
env = sumo_rl.SumoEnvironment(
    str(net / "single-intersection.net.xml"),
    str(net / "single-intersection-vhvh.rou.xml"),
    num_seconds=1000,
    single_agent=True,
    sumo_seed=0,
)
model = PPG("MlpPolicy", env, n_steps=200, n_policy_iterations=2, batch_size=50, seed=0)  # an episode has 200 steps
model.learn(1200)
returns = [info["r"] for info in model.ep_info_buffer]
assert model.n_aux_phases == 3 and len(returns) == 6
print(f"3 phases; returns {', '.join(f'{value:.1f}' for value in returns)}")

"""
godot-rl: PPG trains through its environment class, and its exporter writes the policy for the game.

Needs ``pip install --no-deps godot-rl==0.8.2``, because it asks for old versions, and ``pip install ".[export]" onnxruntime``.
In place of the game, which nobody has run, a thread answers: four agents that move toward a mark, each episode 20 steps.
"""

import json
import random
import socket
import tempfile
import threading
import time

from godot_rl.wrappers.onnx.stable_baselines_export import export_model_as_onnx
from godot_rl.wrappers.stable_baselines_wrapper import StableBaselinesGodotEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

from sb3_ppg import PPG

N_AGENTS, N_STEPS, PORT = 4, 20, 11008


def play() -> None:
    """Answer as Godot's plugin does: JSON after its length in four bytes."""
    link = socket.socket()
    while link.connect_ex(("127.0.0.1", PORT)):
        link.close()
        time.sleep(0.1)
        link = socket.socket()
    with link.makefile("rwb") as file:
        while size := file.read(4):
            answer = reply(json.loads(file.read(int.from_bytes(size, "little"))))
            if answer is not None:
                text = json.dumps(answer).encode()
                file.write(len(text).to_bytes(4, "little") + text)
                file.flush()


def reply(message: dict) -> dict | None:
    """Return what the game says to a message."""
    global places, n_steps
    seen = dict(type=message["type"])
    if message["type"] == "env_info":
        spaces = dict(action_space={"move": {"action_type": "continuous", "size": 1}})
        return seen | spaces | dict(observation_space={"obs": {"space": "box", "size": [2]}}, n_agents=N_AGENTS)
    if message["type"] == "action":
        n_steps += 1
        moves = [0.1 * max(-1.0, min(1.0, action["move"][0])) for action in message["action"]]
        places = [[x + move, mark] for (x, mark), move in zip(places, moves, strict=True)]
        seen |= dict(reward=[-abs(x - mark) for x, mark in places], done=[n_steps == N_STEPS] * N_AGENTS)
    elif message["type"] != "reset":
        return None
    if message["type"] == "reset" or n_steps == N_STEPS:
        n_steps, places = 0, [[random.uniform(-1, 1), random.uniform(-1, 1)] for _ in range(N_AGENTS)]
    return seen | dict(obs=[{"obs": place} for place in places])


random.seed(0)
threading.Thread(target=play, daemon=True).start()
env = VecMonitor(StableBaselinesGodotEnv(port=PORT))
# No `seed`, which its environments refuse
model = PPG("MultiInputPolicy", env, n_steps=32, n_policy_iterations=4, gamma=0.9)
returns = []
for _ in range(2):
    model.learn(8 * 512, reset_num_timesteps=False)
    returns.append(sum(info["r"] for info in model.ep_info_buffer) / len(model.ep_info_buffer))
assert model.n_aux_phases == 16 and returns[1] > returns[0]

PPO.register(PPG)  # the exporter asks whether the model is a PPO
with tempfile.TemporaryDirectory() as folder:
    export_model_as_onnx(model, f"{folder}/model.onnx")  # which compares the file with the policy
env.close()
print(f"returns {returns[0]:.1f}, {returns[1]:.1f}; exported")

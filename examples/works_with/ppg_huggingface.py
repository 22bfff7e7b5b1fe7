"""
sb3-team-hf-integration: its function ``package_to_hub`` (of the module ``huggingface_sb3``) uploads a model with a video.

Needs ``pip install ".[zoo]"``, which brings 3.2, a token (``HF_TOKEN``) and ffmpeg. The file is a pickle, which
``load_from_hub`` fetches; ``sb3_ppg.hub.push`` uploads plain data instead.
"""

import os

from huggingface_sb3 import load_from_hub, package_to_hub
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import PPG

REPOSITORY = os.environ.get("REPOSITORY", "me/ppg-CartPole-v1")

model = PPG("MlpPolicy", "CartPole-v1", n_steps=256, n_policy_iterations=2, seed=0).learn(2048)
env = make_vec_env("CartPole-v1", env_kwargs=dict(render_mode="rgb_array"))
about = dict(model_name="ppg-CartPole-v1", model_architecture="PPG", env_id="CartPole-v1", commit_message="PPG on CartPole")
package_to_hub(model, **about, eval_env=env, repo_id=REPOSITORY, n_eval_episodes=2, video_length=100)

os.environ["TRUST_REMOTE_CODE"] = "True"  # it is our own
loaded = PPG.load(load_from_hub(REPOSITORY, "ppg-CartPole-v1.zip"))
observations = env.reset()
assert loaded.predict(observations, deterministic=True)[0] == model.predict(observations, deterministic=True)[0]
print(f"uploaded and loaded after {loaded.num_timesteps} steps")

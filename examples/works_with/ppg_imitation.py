"""
imitation: PPG learns from the rewards of GAIL, AIRL and preference comparisons; BC and DAgger train its policy.

Needs ``pip install --no-deps imitation==1.0.1 seals==0.2.1``, because they ask for SB3 2.2 and Gymnasium 0.29, and
``pip install datasets==5.2.0 sacred==0.8.7 scikit-learn==1.9.1``.
"""

import tempfile
from pathlib import Path

import numpy as np
from imitation.algorithms import preference_comparisons as preferences
from imitation.algorithms.adversarial.airl import AIRL
from imitation.algorithms.adversarial.gail import GAIL
from imitation.algorithms.bc import BC
from imitation.algorithms.dagger import SimpleDAggerTrainer
from imitation.data import rollout
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.rewards.reward_nets import BasicRewardNet, BasicShapedRewardNet
from imitation.util.util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import PPG, hub

rng = np.random.default_rng(0)
env = make_vec_env("CartPole-v1", rng=rng, n_envs=8, post_wrappers=[lambda env, _: RolloutInfoWrapper(env)])


def new_model() -> PPG:
    """Return a model whose phases have 8 x 64 x 2 steps."""
    return PPG("MlpPolicy", env, n_steps=64, n_policy_iterations=2, batch_size=128, n_epochs=5, seed=0)


expert = hub.from_pretrained(Path(__file__).parents[2] / "pretrained/ppg/CartPole-v1")
demonstrations = rollout.rollout(expert, env, rollout.make_sample_until(min_episodes=4), rng=rng)
agents = {"untrained": new_model().policy}

spaces = dict(observation_space=env.observation_space, action_space=env.action_space, rng=rng)
cloning = BC(**spaces, policy=new_model().policy, demonstrations=rollout.flatten_trajectories(demonstrations))
cloning.train(n_epochs=2, progress_bar=False)
agents["BC"] = cloning.policy

with tempfile.TemporaryDirectory() as folder:
    student = BC(**spaces, policy=new_model().policy)
    dagger = SimpleDAggerTrainer(venv=env, scratch_dir=folder, expert_policy=expert.policy, bc_trainer=student, rng=rng)
    dagger.train(total_timesteps=1000, bc_train_kwargs=dict(n_epochs=2, progress_bar=False))
    agents["DAgger"] = dagger.policy

for algorithm, reward_net in {GAIL: BasicRewardNet, AIRL: BasicShapedRewardNet}.items():
    model, rewards = new_model(), reward_net(env.observation_space, env.action_space)
    own = dict(venv=env, gen_algo=model, reward_net=rewards, demonstrations=demonstrations, demo_batch_size=256)
    algorithm(**own, gen_train_timesteps=1024, allow_variable_horizon=True).train(5 * 1024)
    assert model.n_aux_phases == 5
    agents[algorithm.__name__] = model.policy

model, rewards = new_model(), BasicRewardNet(env.observation_space, env.action_space)
generator = preferences.AgentTrainer(model, rewards, env, rng)
sizes = dict(num_iterations=2, fragment_length=10, initial_epoch_multiplier=20, allow_variable_horizon=True)
comparisons = preferences.PreferenceComparisons(generator, rewards, rng=rng, **sizes)
comparisons.train(total_timesteps=4 * 1024, total_comparisons=50)
assert model.n_aux_phases == 6  # of 1,024 steps: it trains once more than `num_iterations`
agents["preferences"] = model.policy

returns = {name: evaluate_policy(policy, env, n_eval_episodes=8, deterministic=False)[0] for name, policy in agents.items()}
print(", ".join(f"{name} {mean:.0f}" for name, mean in returns.items()))
assert min(returns["BC"], returns["DAgger"]) > 2 * returns["untrained"]  # the others get few steps

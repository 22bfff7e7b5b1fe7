"""
captum: which part of an observation an action depends on; ``mlp_extractor.policy_net`` and ``action_net`` are the actor.

Needs ``pip install --no-deps captum==0.9.0``, whose dependencies the project has.
"""

import torch as th
from captum.attr import IntegratedGradients

from sb3_ppg import PPG

model = PPG("MlpPolicy", "CartPole-v1", n_steps=256, n_policy_iterations=2, seed=0).learn(2048)
actor = th.nn.Sequential(model.policy.mlp_extractor.policy_net, model.policy.action_net)
observations = th.as_tensor(model.rollout_buffer.observations).flatten(0, 1)

actions = actor(observations).argmax(dim=1)
assert (actions.numpy() == model.predict(observations.numpy(), deterministic=True)[0]).all()

attributions, errors = IntegratedGradients(actor).attribute(observations, target=actions, return_convergence_delta=True)
means = attributions.abs().mean(dim=0).tolist()
print(", ".join(f"{name} {mean:.2f}" for name, mean in zip(("x", "v", "angle", "its velocity"), means, strict=True)))
assert errors.abs().max() < 0.1 and max(means) > 0

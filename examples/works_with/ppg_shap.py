"""
shap: which part of an observation an action depends on; ``mlp_extractor.policy_net`` and ``action_net`` are the actor.

Needs ``pip install shap==0.51.0``.
"""

import numpy as np
import shap
import torch as th

from sb3_ppg import PPG

model = PPG("MlpPolicy", "CartPole-v1", n_steps=256, n_policy_iterations=2, seed=0).learn(2048)
actor = th.nn.Sequential(model.policy.mlp_extractor.policy_net, model.policy.action_net)
observations = th.as_tensor(model.rollout_buffer.observations).flatten(0, 1)

explainer, some = shap.DeepExplainer(actor, observations[:200]), observations[200:210]
values = explainer.shap_values(some)  # (observations, parts of them, actions)
with th.no_grad():
    difference = (actor(some) - actor(observations[:200]).mean(dim=0)).numpy()
means = np.abs(values).mean(axis=(0, 2))
print(", ".join(f"{name} {mean:.2f}" for name, mean in zip(("x", "v", "angle", "its velocity"), means, strict=True)))
np.testing.assert_allclose(values.sum(axis=1), difference, atol=1e-3)

"""Mistakes in objectives of a user's are named where they are made."""

import pytest
from torch.nn import functional as F

from sb3_ppg import PPG, ArgumentError
from sb3_ppg.objectives import Losses, Objective

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, n_policy_iterations=1, n_aux_epochs=1, device="cpu")


class KeepsThePolicy(Objective):
    def __init__(self, policy):
        super().__init__(policy)
        self.policy = policy


class KeepsAHead(Objective):
    def __init__(self, policy):
        super().__init__(policy)
        self.head = policy.aux_value_net


@pytest.mark.parametrize("objective", [KeepsThePolicy, KeepsAHead])
def test_keeping_the_policy_would_train_its_parameters_twice(objective):
    with pytest.raises(ArgumentError, match=r"weight.* would be trained twice per step: use the policy that each"):
        PPG("MlpPolicy", "CartPole-v1", objective=objective, **SMALL)


@pytest.mark.parametrize("wrong", ["a term", "the total", "a term per sample"])
@pytest.mark.parametrize("micro_batch_size", [None, 8])
def test_losses_are_scalar_tensors(wrong, micro_batch_size):
    class Floats(Objective):
        def evaluated_losses(self, policy, evaluation, batch, coefficients):
            paper = super().evaluated_losses(policy, evaluation, batch, coefficients)
            per_sample = F.mse_loss(evaluation.latent_pi, evaluation.latent_pi, reduction="none")
            own = per_sample if wrong == "a term per sample" else 1.5
            return Losses(2.5 if wrong == "the total" else paper.total, {**paper.terms, "own_term": own})

    model = PPG("MlpPolicy", "CartPole-v1", objective=Floats, micro_batch_size=micro_batch_size, **SMALL)
    with pytest.raises(ArgumentError, match=r"must be a scalar tensor; change (own_term|loss)"):
        model.learn(32)

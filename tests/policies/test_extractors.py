"""Images reach the features extractor as bytes and are scaled in its weights."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from torch import nn

from sb3_ppg import ImpalaCNN
from tests.helpers import image_space, untrained
from tests.helpers import make_on_images as make


@pytest.mark.parametrize(
    "space, policy_kwargs",
    [
        (image_space(3, 36, 36), {}),
        (image_space(36, 36, 3), {}),
        (image_space(3, 36, 36), dict(normalize_images=False, features_extractor_kwargs=dict(normalized_image=True))),
        (spaces.Box(0, 1, (3, 36, 36), np.float32), dict(features_extractor_kwargs=dict(normalized_image=True))),
        (spaces.Box(0, 100, (3, 36, 36), np.uint8), dict(features_extractor_kwargs=dict(normalized_image=True))),
    ],
    ids=["images", "channels last", "not to be normalised", "floats", "bytes that are no image"],
)
def test_images_are_scaled_when_sb3_scales_them(space, policy_kwargs):
    model = make(policy_kwargs, space=space)
    policy = model.policy
    obs, _ = policy.obs_to_tensor(np.stack([policy.observation_space.sample() for _ in range(3)]))
    scaled = preprocess_obs(obs, policy.observation_space, normalize_images=policy.normalize_images)
    expected = policy.pi_features_extractor(scaled)
    th.testing.assert_close(policy.extract_features(obs)[0], expected, rtol=1e-5, atol=1e-6)
    # Environments do not always keep their word
    for other in (obs.float(), obs.to(th.int64)) if obs.dtype == th.uint8 else ():
        th.testing.assert_close(policy.extract_features(other)[0], expected, rtol=1e-5, atol=1e-6)


class Centred(ImpalaCNN):
    def forward(self, x):
        assert x.dtype == th.float32 and x.max() <= 1  # scaled, unless a subclass says otherwise
        return super().forward(x - 0.5)


class WithPositions(ImpalaCNN):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.positions = nn.Parameter(th.zeros(1, 3, 36, 36))

    def forward(self, x):  # only convolutions change how they lie in memory
        return super().forward(x + self.positions.view(3, 36, 36))


@pytest.mark.parametrize("extractor", [Centred, WithPositions])
def test_subclasses_of_our_network_train(extractor):
    assert not untrained(make(dict(features_extractor_class=extractor), n_aux_epochs=1), 2)


def test_parameters_in_one_array():
    """Also of channels_last weights, and back."""
    model = make()
    vector = model.policy.parameters_to_vector()
    assert vector.shape == (sum(parameter.numel() for parameter in model.policy.parameters()),)
    other = make(seed=1)
    other.policy.load_from_vector(vector)
    for ours, theirs in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)

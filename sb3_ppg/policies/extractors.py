"""Networks and initializations of the authors' code that SB3 does not have."""

import math

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from sb3_ppg.errors import ArgumentError


def init_normed(layer: nn.Module, scale: float) -> None:
    """Rescale a layer's weights as the authors do: those of each output unit have L2 norm ``scale``; biases are zero."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d))
    with th.no_grad():
        norm = layer.weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (layer.weight.dim() - 1))
        layer.weight.mul_(scale / norm)
        if layer.bias is not None:
            layer.bias.zero_()


class ImageConv2d(nn.Conv2d):
    """
    A convolution that divides its weights by 255 if the image is uint8: (W / 255) x + b = W (x / 255) + b. This saves a copy
    of the image, and bfloat16 represents the integers up to 255 exactly.
    """

    @override
    def forward(self, x: th.Tensor) -> th.Tensor:
        if x.dtype != th.uint8:
            return super().forward(x)
        device = x.device.type
        dtype = th.get_autocast_dtype(device) if th.is_autocast_enabled(device) else self.weight.dtype
        return self._conv_forward(x.to(dtype), self.weight / 255, self.bias)


class ResidualBlock(nn.Module):
    """x + conv1(relu(conv0(relu(x)))), with 3x3 convolutions: (B, channels, H, W) -> (B, channels, H, W)."""

    def __init__(self, channels: int, scale: float):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        for conv in (self.conv0, self.conv1):
            init_normed(conv, math.sqrt(scale))

    @override
    def forward(self, x: th.Tensor) -> th.Tensor:
        branch: th.Tensor = self.conv1(F.relu_(self.conv0(F.relu(x))))
        return branch.add_(x)  # in place where autograd does not need the input, which saves memory


class ConvStack(nn.Module):
    """A convolution, a max-pooling that halves the image, residual blocks: (B, C, H, W) -> (B, channels, ⌈H/2⌉, ⌈W/2⌉)."""

    def __init__(self, in_channels: int, channels: int, n_blocks: int, scale: float):
        super().__init__()
        self.firstconv = ImageConv2d(in_channels, channels, kernel_size=3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(channels, scale / math.sqrt(n_blocks)) for _ in range(n_blocks)))
        init_normed(self.firstconv, scale=1.0)

    @override
    def forward(self, x: th.Tensor) -> th.Tensor:
        return self.blocks(F.max_pool2d(self.firstconv(x), kernel_size=3, stride=2, padding=1))


class MinAtarCNN(BaseFeaturesExtractor):
    """
    The network of MinAtar (Young, Tian 2019, https://arxiv.org/abs/1903.03176): a 3x3 convolution and a dense layer, for the
    10x10 grids of its games: (B, H, W, channels) -> (B, features_dim).

    :param observation_space: space of grids, channels last, as MinAtar gives them
    :param features_dim: units of the dense layer
    :param channels: channels of the convolution
    """

    def __init__(self, observation_space: spaces.Box, features_dim: int = 128, channels: int = 16):
        super().__init__(observation_space, features_dim)
        height, width, in_channels = observation_space.shape
        self.conv = nn.Conv2d(in_channels, channels, kernel_size=3)
        self.dense = nn.Linear(channels * (height - 2) * (width - 2), features_dim)

    @override
    def forward(self, observations: th.Tensor) -> th.Tensor:
        x = F.relu(self.conv(observations.permute(0, 3, 1, 2)))
        return F.relu(self.dense(x.flatten(1)))


class ImpalaCNN(BaseFeaturesExtractor):
    """
    The residual network of IMPALA (Espeholt et al. 2018, https://arxiv.org/abs/1802.01561), the encoder of the PPG paper,
    initialized as in the authors' code: (B, C, H, W) -> (B, features_dim).

    Images of type uint8 are divided by 255 in the first convolution.

    :param observation_space: space of images, channels first (SB3 transposes others)
    :param features_dim: units of the dense layer
    :param channels: channels of each convolutional stack
    :param n_blocks: residual blocks per stack
    :param normalized_image: whether images are scaled already; skips the check of their type and bounds, as in SB3's
        ``NatureCNN``
    :raises ArgumentError: if the observations are not images
    """

    scales_images = True  # `PhasicActorCriticPolicy` reads this from the class itself, not from its bases

    def __init__(
        self,
        observation_space: spaces.Box,
        features_dim: int = 256,
        channels: tuple[int, ...] = (16, 32, 32),
        n_blocks: int = 2,
        normalized_image: bool = False,
    ):
        super().__init__(observation_space, features_dim)
        if not is_image_space(observation_space, normalized_image=normalized_image):
            raise ArgumentError(f"ImpalaCNN needs images, not {observation_space}: {how_to_convolve(observation_space)}")
        in_channels, height, width = observation_space.shape
        stacks = []
        for out_channels in channels:
            stacks.append(ConvStack(in_channels, out_channels, n_blocks, scale=1 / math.sqrt(len(channels))))
            in_channels, height, width = out_channels, math.ceil(height / 2), math.ceil(width / 2)
        self.stacks = nn.Sequential(*stacks)
        self.dense = nn.Linear(in_channels * height * width, features_dim)
        init_normed(self.dense, scale=1.4)

    @override
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return F.relu_(self.dense(F.relu_(self.stacks(observations)).flatten(1)))


SMALLEST = 36  # pixels on each side of an image for `NatureCNN`


def how_to_convolve(space: spaces.Space) -> str:
    """Return advice for observations that are not images of the kind and size that ``CnnPolicy`` needs."""
    shape = space.shape or ()
    if len(shape) == 4:
        return "for stacked images use SB3's VecFrameStack, which appends channels, or leave out the last axis of gray ones"
    if len(shape) == 2 and space.dtype == np.uint8:
        return "give gray images a last axis, (height, width, 1), for CnnPolicy"
    if is_image_space(space):
        size = f"{SMALLEST} x {SMALLEST} pixels"
        return (
            f"enlarge images below {size}, or, if they are not in a Dict, use CnnPolicy with policy_kwargs="
            "dict(features_extractor_class=ImpalaCNN)"
        )
    if len(shape) == 3 and sorted(shape)[1] < SMALLEST:
        return "for grids with the channels last, use MlpPolicy with policy_kwargs=dict(features_extractor_class=MinAtarCNN)"
    if len(shape) == 3:
        return (
            "for images that are already scaled, with the channels first, use CnnPolicy with policy_kwargs="
            "dict(normalize_images=False, features_extractor_kwargs=dict(normalized_image=True))"
        )
    return "use MlpPolicy, or MultiInputPolicy for a Dict"


def has_convolutions(module: nn.Module) -> bool:
    """Return whether a network has convolutions."""
    return any(isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in module.modules())


def looks_at_the_batch(module: nn.Module) -> bool:
    """Return whether a network has layers whose output for a sample depends on the other samples of its batch."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


class SharedTrunk(MlpExtractor):
    """One trunk of dense layers for the policy and the value function; ``trunk``: units of each layer."""

    def __init__(self, features_dim: int, trunk: list[int], activation_fn: type[nn.Module], device: th.device | str = "auto"):
        super().__init__(features_dim, dict(pi=trunk, vf=[]), activation_fn, device)
        self.latent_dim_vf = self.latent_dim_pi

    @override
    def forward_critic(self, features: th.Tensor) -> th.Tensor:
        return self.policy_net(features)

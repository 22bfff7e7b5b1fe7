"""Models of a few hundred numbers, in folders, and what is done to them."""

import json
import tempfile
from collections.abc import Callable
from functools import cache, partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_ppg import PPG, ImpalaCNN, MaskablePPG, RecurrentPPG, VectorRewards
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.family import with_preset
from sb3_ppg.hub import from_pretrained, save_pretrained
from sb3_ppg.hub.pretrained import DESCRIPTION
from tests.helpers import NESTED, SMALL, RandomEnv, VectorRewardEnv, image_space, masked_envs, normalized_rewards, random_envs

BOX = spaces.Box(-2, 2, (3,), np.float32)
DICT = spaces.Dict({"zebra": BOX, "ant": image_space(3, 36, 36), "mouse": spaces.Discrete(4)})
TINY: dict[str, Any] = dict(net_arch=[4])
PHASE = 32  # steps of two environments

# Together they have every kind of space, optimizer, buffer and network
MODELS: dict[str, dict[str, Any]] = {
    "settings": dict(
        env=partial(random_envs, BOX, spaces.Discrete(2)),
        learning_rate=LinearSchedule(1e-3, 1e-5, 0.5),
        aux_learning_rate=LinearSchedule(1e-4, 0.0, 1.0),
        value_learning_rate=LinearSchedule(2e-4, 0.0, 1.0),
        clip_range_vf=0.3,
        n_value_epochs=1,
        target_kl=5.0,
        policy_kwargs=dict(
            net_arch=dict(pi=[8, 4], vf=[16]),
            activation_fn=th.nn.ELU,
            optimizer_class=th.optim.AdamW,
            optimizer_kwargs=dict(eps=1e-7, betas=(0.8, 0.99)),
        ),
    ),
    "squashed": dict(
        env=partial(random_envs, BOX, spaces.Box(np.float32([-1, -2]), np.float32([1, 5]))),
        use_sde=True,
        policy_kwargs=dict(TINY, squash_output=True, use_expln=True, optimizer_kwargs=dict(amsgrad=True)),
    ),
    "LSTMs": dict(
        algorithm=RecurrentPPG,
        policy="MlpLstmPolicy",
        env=partial(random_envs, BOX),
        policy_kwargs=dict(TINY, lstm_hidden_size=4, n_lstm_layers=2),
    ),
    "masks": dict(algorithm=MaskablePPG, env=partial(masked_envs, BOX, "MultiDiscrete")),
    "dictionary": dict(
        policy="MultiInputPolicy",
        env=partial(random_envs, DICT, spaces.MultiBinary(2)),
        policy_kwargs=dict(
            TINY,
            features_extractor_kwargs=dict(cnn_output_dim=2),
            share_features_extractor=False,
            optimizer_class=th.optim.SGD,
            optimizer_kwargs=dict(momentum=0.9),
        ),
    ),
    "images": dict(
        policy="CnnPolicy",
        env=partial(random_envs, image_space(12, 12, 3), spaces.MultiDiscrete([2, 5])),
        mixed_precision="bf16",
        policy_kwargs=dict(
            architecture="detached",
            features_extractor_class=ImpalaCNN,
            features_extractor_kwargs=dict(features_dim=4, channels=(4, 4)),
        ),
    ),
    "vector rewards": dict(
        env=lambda: make_vec_env(lambda: VectorRewards(VectorRewardEnv()), 2),
        reward_weights=[1.0, 0.5],
        gamma=[0.9, 0.99],
        **normalized_rewards(),
        policy_kwargs=dict(
            TINY,
            architecture="shared",
            optimizer_class=th.optim.RMSprop,
            optimizer_kwargs=dict(momentum=0.5, centered=True),
        ),
    ),
    "nested actions": dict(
        env=partial(random_envs, spaces.MultiBinary(5), NESTED),
        ent_coef=dict(kind=0.1, how=(0.1, 0.2), move=0.0),
        policy_kwargs=dict(TINY, squash_output=True, optimizer_class=RMSpropTFLike),
    ),
    "ewma": dict(env=partial(random_envs, spaces.MultiDiscrete([3, 4])), **with_preset("ppg_ewma", {})),
    "idaac": dict(
        env=partial(random_envs, BOX),
        **with_preset("idaac", dict(objective_kwargs=dict(hidden_size=4), n_aux_epochs=0, policy_kwargs=TINY)),
    ),
}
NORMALIZED: dict[str, Any] = {"settings": {}, "dictionary": dict(norm_obs_keys=["zebra"])}  # arguments of `VecNormalize`


class Honest(NamedTuple):
    """A model in good order after one phase, its files, and its environments without normalization."""

    model: PPG
    files: dict[str, bytes]
    make_env: Callable[[], VecEnv]


@cache
def honest(name: str) -> Honest:
    arguments: dict[str, Any] = {"algorithm": PPG, "policy": "MlpPolicy", "policy_kwargs": TINY, **SMALL, **MODELS[name]}
    algorithm, make_env = arguments.pop("algorithm"), arguments.pop("env")
    env = VecNormalize(make_env(), **NORMALIZED[name]) if name in NORMALIZED else make_env()
    model = algorithm(env=env, **arguments).learn(PHASE)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        return Honest(model, {file.name: file.read_bytes() for file in Path(folder).iterdir()}, make_env)


def write(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def small_model(**arguments: Any) -> PPG:
    """A model of a few hundred numbers, after one phase."""
    arguments = {"policy_kwargs": TINY, **SMALL, **arguments}
    return PPG("MlpPolicy", RandomEnv(BOX, spaces.Discrete(2)), **arguments).learn(16)


def refused(folder: Path, complaint: str = ".") -> None:
    with pytest.raises(ModelFormatError, match=complaint):
        from_pretrained(folder, device="cpu")


def change(folder: Path, place: str, value: Any) -> None:
    """Put a value at a place of a model's description: keys with dots between them."""
    description = json.loads((folder / DESCRIPTION).read_text())
    *path, last = place.split(".")
    reduce(getitem, path, description)[last] = value
    (folder / DESCRIPTION).write_text(json.dumps(description))


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    return reduce(lambda data, _: [data], range(depth), 0)

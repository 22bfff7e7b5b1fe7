"""Every space that SB3 knows, in and out, through both phases, saving and loading."""

import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib.common.maskable.utils import get_action_masks

from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from tests.helpers import (
    ARCHITECTURES,
    BOX,
    DICT,
    NESTED,
    SMALL,
    VECTOR,
    assert_both_phases_train,
    image_space,
    masked_envs,
    random_envs,
)

LARGEST = np.finfo(np.float64).max
ACTIONS = {
    "Box": (BOX, dict()),
    "gSDE": (BOX, dict(use_sde=True, sde_sample_freq=4)),
    "squashed gSDE": (BOX, dict(use_sde=True, policy_kwargs=dict(squash_output=True, full_std=False, use_expln=True))),
    "Box of the largest numbers": (spaces.Box(-LARGEST, LARGEST, (2,), np.float64), dict()),
    "Discrete": (spaces.Discrete(4), dict()),
    "Discrete from 2 on": (spaces.Discrete(4, start=2), dict()),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 2, 4]), dict()),
    "MultiDiscrete from elsewhere": (spaces.MultiDiscrete([3, 2], start=[-5, 7]), dict()),
    "MultiBinary": (spaces.MultiBinary(3), dict()),
    "nested": (NESTED, dict(policy_kwargs=dict(squash_output=True))),
    "Tuple": (spaces.Tuple([NESTED, spaces.Discrete(2)]), dict()),
}
OBSERVATIONS = {
    "Box": ("MlpPolicy", VECTOR),
    "Box of float64": ("MlpPolicy", spaces.Box(-2, 2, (2, 2), np.float64)),
    "Discrete": ("MlpPolicy", spaces.Discrete(5)),
    "MultiDiscrete": ("MlpPolicy", spaces.MultiDiscrete([3, 4])),
    "Discrete from 1 on": ("MlpPolicy", spaces.Discrete(2, start=1)),
    "MultiDiscrete from elsewhere": ("MlpPolicy", spaces.MultiDiscrete([3, 4], start=[-2, 5])),
    "MultiBinary": ("MlpPolicy", spaces.MultiBinary(4)),
    "CHW images": ("CnnPolicy", image_space(3, 36, 36)),
    "HWC images": ("CnnPolicy", image_space(36, 36, 3)),
    "Dict": (
        "MultiInputPolicy",
        spaces.Dict(image=image_space(36, 36, 1), vector=VECTOR, no=spaces.Discrete(3, start=3), bits=spaces.MultiBinary(2)),
    ),
}


# Each space with one of the architectures, in turn
CASES = [(PPG, "MlpPolicy", VECTOR, space, kwargs) for space, kwargs in ACTIONS.values()]
CASES += [(PPG, policy, space, spaces.Discrete(3), {}) for policy, space in OBSERVATIONS.values()]
CASES += [
    (RecurrentPPG, "MlpLstmPolicy", VECTOR, spaces.Discrete(3), {}),
    (RecurrentPPG, "MlpLstmPolicy", spaces.MultiDiscrete([2, 3]), BOX, {}),
    (RecurrentPPG, "CnnLstmPolicy", image_space(36, 36, 1), spaces.MultiDiscrete([3, 2]), {}),
    (RecurrentPPG, "MultiInputLstmPolicy", DICT, NESTED, {}),
    (MaskablePPG, "MlpPolicy", VECTOR, "MultiDiscrete", {}),
    (MaskablePPG, "CnnPolicy", image_space(36, 36, 1), "Discrete", {}),
    (MaskablePPG, "MultiInputPolicy", DICT, "MultiBinary", {}),
]
CASES = [(*case, ARCHITECTURES[place % 3]) for place, case in enumerate(CASES)]
NAMES = [*ACTIONS, *(f"from {name}" for name in OBSERVATIONS), *(f"{case[0].__name__}-{case[1]}" for case in CASES[-7:])]


@pytest.mark.parametrize(("cls", "policy", "observation_space", "actions", "kwargs", "architecture"), CASES, ids=NAMES)
def test_both_phases_train_every_parameter_and_the_loaded_model_predicts_the_same(
    cls, policy, observation_space, actions, kwargs, architecture, tmp_path
):
    """The loaded model then trains on. Environments refuse actions that their masks exclude."""
    of_memory = dict(lstm_hidden_size=6, n_lstm_layers=2) if cls is RecurrentPPG else {}
    policy_kwargs = {**kwargs.get("policy_kwargs", {}), **of_memory, "architecture": architecture}
    env = (masked_envs if cls is MaskablePPG else random_envs)(observation_space, actions)
    model = cls(policy, env, **{**SMALL, **kwargs, "policy_kwargs": policy_kwargs})
    assert_both_phases_train(model)
    model.save(tmp_path / "model.zip")
    loaded = cls.load(tmp_path / "model.zip", device="cpu")
    state = other = None
    start, raw = np.ones(2, dtype=bool), env.reset()  # images that were transposed for training are transposed here, too
    for _ in range(4):
        masks = dict(action_masks=get_action_masks(env)) if cls is MaskablePPG else {}
        action, state = model.predict(raw, state, start, deterministic=True, **masks)
        again, other = loaded.predict(raw, other, start, deterministic=True, **masks)
        np.testing.assert_equal(again, action)
        assert env.action_space.contains(action[0])
        if cls is RecurrentPPG:
            np.testing.assert_array_equal(other, state)
        raw, _, start, _ = env.step(action)
    assert state is None or np.abs(state[0]).max() > 0
    loaded.set_env(env)
    loaded.learn(16)

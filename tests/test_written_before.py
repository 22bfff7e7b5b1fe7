"""Files of version 0.1.0's first layout, when classes were named by their modules: they are read as they were."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, MaskablePPG, NormalizedRewardRolloutBuffer, RecurrentPPG, hub
from sb3_ppg.saving.model_file import MOVED

FOLDER = Path(__file__).parent / "data" / "written_before"
ALGORITHMS = {
    "ppg": (PPG, lambda: VecNormalize(make_vec_env("CartPole-v1", 2))),
    "recurrent": (RecurrentPPG, lambda: make_vec_env("CartPole-v1", 2)),
    "maskable": (MaskablePPG, lambda: make_vec_env(lambda: InvalidActionEnvDiscrete(dim=4, n_invalid_actions=2), 2)),
}


def check(model: PPG, name: str) -> None:
    assert type(model) is ALGORITHMS[name][0] and model.num_timesteps == 40 and model._n_aux_phases == 1
    ours = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.policy.parameters()])
    np.testing.assert_array_equal(ours, np.load(FOLDER / name / "parameters.npy"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_zip_files_and_trainings_go_on(name):
    cls, env = ALGORITHMS[name]
    model = cls.load(FOLDER / name / "model.zip", env=env(), device="cpu")
    check(model, name)
    assert not MOVED.keys() & sys.modules.keys()
    model.load_aux_buffer(FOLDER / name / "aux.npz")
    assert len(model.aux_buffer) == 2
    model.learn(8, reset_num_timesteps=False)
    assert model._n_aux_phases == 2


@pytest.mark.parametrize("name", ALGORITHMS)
def test_shared_files(name):
    _, env = ALGORITHMS[name]
    model = hub.from_pretrained(FOLDER / name, env(), device="cpu")
    check(model, name)
    assert (model.rollout_buffer_class is NormalizedRewardRolloutBuffer) == (name == "ppg")
    model.learn(24, reset_num_timesteps=False)
    assert model._n_aux_phases == 2


def test_new_files_name_no_modules(tmp_path):
    model = hub.from_pretrained(FOLDER / "ppg", device="cpu")
    hub.save_pretrained(model, tmp_path)
    text = (tmp_path / "model.json").read_text()
    assert '"$class": "PPG"' in text and "sb3_ppg." not in text and "torch." not in text

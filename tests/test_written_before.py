"""Files of earlier versions are read as they were, see tests/written.py."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_sb3 import EnvironmentName

import sb3_ppg
from sb3_ppg import NormalizedRewardRolloutBuffer, hub
from sb3_ppg.distributed.collectives import rank
from sb3_ppg.ppg import PPG
from sb3_ppg.zoo.sharing import ZOO, download_without_pickle
from tests.distributed.several import in_processes
from tests.hub_server import Repository
from tests.written import FOLDER, N_TIMESTEPS, SAMPLES, weights

OF_ONE = sorted(path for path in FOLDER.glob("*/*") if path.name in SAMPLES)
every_sample = pytest.mark.parametrize("folder", OF_ONE, ids=lambda folder: str(folder.relative_to(FOLDER)))


def check(model: PPG, folder: Path) -> None:
    assert type(model) is SAMPLES[folder.name].algorithm
    assert model.num_timesteps == N_TIMESTEPS and model.n_aux_phases == (folder.name != "idaac")
    np.testing.assert_array_equal(weights(model), np.load(folder / "parameters.npy"))


def test_this_version_has_its_samples():
    assert {path.name for path in FOLDER.glob(f"{sb3_ppg.__version__}/*")} == {*SAMPLES, "two_processes"}


@every_sample
def test_zip_files_and_trainings_go_on(folder):
    sample = SAMPLES[folder.name]
    model = sample.algorithm.load(folder / "model.zip", env=sample.make_env(), device="cpu")
    check(model, folder)
    model.load_aux_buffer(folder / "aux.npz")
    assert len(model.aux_buffer) == 2 * (folder.name != "idaac")
    assert len(model.replay.rollouts) == 2 * (folder.name == "replay")
    model.learn(8, reset_num_timesteps=False)
    assert model.n_aux_phases == 2 * (folder.name != "idaac")


@every_sample
def test_shared_files(folder):
    model = hub.from_pretrained(folder, SAMPLES[folder.name].make_env(), device="cpu")
    check(model, folder)
    assert (model.rollout_buffer_class is NormalizedRewardRolloutBuffer) == (folder.name == "ppg")
    model.learn(24, reset_num_timesteps=False)
    assert model.n_aux_phases == 2 * (folder.name != "idaac")


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted({path.parts[-3] for path in FOLDER.glob(f"*/ppg/{ZOO}")}))
def test_repositories_of_the_zoo(version, hub_server, tmp_path):
    repository = hub_server.repositories["me/ppg-CartPole-v1"] = Repository(private=False)
    files = {path.name: path.read_bytes() for path in (FOLDER / version / "ppg").iterdir()}
    names = ("model.json", "model.safetensors", "SHA256SUMS", ZOO)
    repository.commit("main", {name: files[name] for name in names}, [])
    run = download_without_pickle("ppg", EnvironmentName("CartPole-v1"), 0, str(tmp_path), "me")
    assert PPG.load(run / "CartPole-v1.zip", device="cpu").num_timesteps == N_TIMESTEPS
    config = dict(yaml.unsafe_load((run / "CartPole-v1" / "config.yml").read_text()))
    assert config["env_wrapper"] == ["rl_zoo3.wrappers.HistoryWrapper"] and "normalize" in config
    assert yaml.safe_load((run / "CartPole-v1" / "args.yml").read_text())["env_kwargs"] == {"max_episode_steps": 100}


def go_on_in_several(folder: Path) -> bool:
    model = PPG.load(folder / "model.zip", env=SAMPLES["ppg"].make_env(), device="cpu")
    model.load_aux_buffer(folder / "aux.npz")
    same = np.array_equal(np.stack(model.aux_buffer.observations), np.load(folder / f"observations_{rank()}.npy"))
    model.learn(16, reset_num_timesteps=False)
    return same and model.n_aux_phases == 2


@pytest.mark.slow
@pytest.mark.parametrize("folder", sorted(FOLDER.glob("*/two_processes")), ids=lambda folder: folder.parent.name)
def test_trainings_of_several_processes_go_on(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert in_processes(go_on_in_several, tmp_path, tmp_path / "copy") == [True, True]


def test_new_files_name_no_modules(tmp_path):
    model = hub.from_pretrained(FOLDER / "before_0.1.0" / "ppg", device="cpu")
    hub.save_pretrained(model, tmp_path)
    text = (tmp_path / "model.json").read_text()
    assert '"$class": "PPG"' in text and not re.search(r"sb3_ppg\.|torch\.", text)

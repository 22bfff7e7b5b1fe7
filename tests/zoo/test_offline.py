"""``record_dataset``, and BCQ by RL Zoo's commands."""

import re
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

from sb3_ppg.offline import BCQ, load_dataset
from tests.helpers import run
from tests.zoo.programs import SMALL as PPG
from tests.zoo.test_sharing import commands_of

pytest.importorskip("rl_zoo3")
pytest.importorskip("minari")
pytest.importorskip("h5py")
pytestmark = pytest.mark.slow

SMALL = "--algo bcq --env Pendulum-v1 -params policy_kwargs:dict(net_arch=[8],vae_net_arch=[8]) n_play_samples:5".split()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A folder with an agent, and a Minari store with its data."""
    folder = tmp_path_factory.mktemp("recorded")
    run("train", "--env", "Pendulum-v1", "-n", "64", "--eval-freq", "-1", *PPG, cwd=folder)
    options = ("--env", "Pendulum-v1", "--dataset", "pendulum/new-v0", "-n", "450", "--noise", "0.1", "--stochastic")
    said = run("record_dataset", *options, cwd=folder, MINARI_DATASETS_PATH=str(folder / "store"))
    assert "Recorded 450 steps as pendulum/new-v0: 3 episodes, mean return -" in said
    return folder


def test_bcq_is_trained_continued_evaluated_and_recorded(recorded):
    store = dict(MINARI_DATASETS_PATH=str(recorded / "store"))
    data = ("--dataset", "pendulum/new-v0")
    run("train", *SMALL, *data, "-n", "30", "--eval-freq", "20", "--save-freq", "20", "--progress", cwd=recorded, **store)
    folder = recorded / "logs/bcq/Pendulum-v1_1"
    model = BCQ.load(folder / "Pendulum-v1.zip")
    assert "pendulum/new-v0" in (folder / "Pendulum-v1/config.yml").read_text()
    assert model.num_timesteps == 30 and np.load(folder / "evaluations.npz")["timesteps"].tolist() == [20]
    run("train", *SMALL, *data, "-n", "10", "-i", str(folder / "Pendulum-v1.zip"), cwd=recorded, **store)
    assert BCQ.load(recorded / "logs/bcq/Pendulum-v1_2/Pendulum-v1.zip")._n_updates == 40
    agent = ("--algo", "bcq", "--env", "Pendulum-v1")
    said = run("report", *agent, "--episodes", "1", cwd=recorded)  # its monitor file has no rows
    assert "Mean return over 1 episodes" in said and "has no training episodes and no evaluations.npz" in said
    run("enjoy", *agent, "-n", "5", "--no-render", cwd=recorded)
    run("record_video", *agent, "-n", "5", cwd=recorded)
    assert list((recorded / "logs/bcq/Pendulum-v1_2/videos").glob("*.mp4"))


def test_bcq_is_shared_as_the_zoos_algorithms_are(recorded, hub_server, tmp_path):
    """
    An SB3 zip file, fetched by the card's own commands, acts as before. The Zoo itself imports a name that no longer exists,
    and expects another error where there are no statistics of VecNormalize.
    """
    store = dict(MINARI_DATASETS_PATH=str(recorded / "store"))
    data = ("--dataset", "pendulum/new-v0", "-n", "20", "--eval-freq", "-1", "--seed", "0")
    run("train", *SMALL, *data, cwd=tmp_path, **store)
    agent = ("--algo", "bcq", "--env", "Pendulum-v1")
    run("push_to_hub", *agent, "-orga", "me", "-n", "20", cwd=tmp_path)
    files = hub_server.files("me/bcq-Pendulum-v1")
    assert {"bcq-Pendulum-v1.zip", "README.md", "replay.mp4"} <= set(files)
    assert ModelCard(files["README.md"].decode()).data.eval_results[0].metric_type == "mean_reward"
    fetch, enjoy, *_ = commands_of(files["README.md"].decode())
    assert "TRUST_REMOTE_CODE" in run(*fetch, cwd=tmp_path, fails=True)
    run(*fetch, cwd=tmp_path, TRUST_REMOTE_CODE="True")
    assert "Mean reward" in run(*enjoy, "--no-render", "-n", "200", cwd=tmp_path)
    report = ("report", *agent, "--episodes", "2", "--exp-id")
    returns = [re.search(r"Mean return.*", run(*report, number, cwd=tmp_path))[0] for number in ("1", "2")]
    assert returns[0] == returns[1]


def test_bcq_is_searched(recorded):
    options = "--dataset pendulum/new-v0 -optimize --n-trials 1 -n 10 --n-evaluations 1 --eval-episodes 1 --no-optim-plots"
    command = ("train", *SMALL, *options.split())
    said = run(*command, cwd=recorded, MINARI_DATASETS_PATH=str(recorded / "store"))
    assert "The best trial is number 0" in said


def test_a_recording_has_the_agents_environment(recorded, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(recorded / "store"))
    data = load_dataset("pendulum/new-v0")
    assert data.ends.tolist() == [199, 399, 449] and not data.terminations.any()
    np.testing.assert_allclose(data.observations[:, 0] ** 2 + data.observations[:, 1] ** 2, 1, atol=1e-5)  # not normalized

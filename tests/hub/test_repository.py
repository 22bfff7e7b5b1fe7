"""The Hugging Face Hub, with its real client, against a server on this machine."""

import importlib
import os
import re
import sys
from pathlib import Path
from unittest.mock import patch

import ale_py  # noqa: F401  registers environments
import gymnasium as gym
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeAwareObservation
from huggingface_hub import ModelCard
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_ppg import PPG, MaskablePPG, hub
from sb3_ppg.errors import HubError, pip_install
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION
from sb3_ppg.hub.repository import python_usage, write_repository
from tests.helpers import SMALL, MaskedEnv, RandomEnv, run_code
from tests.hub.small_models import BOX, refused, small_model
from tests.hub_server import HubServer
from tests.saving.small_models import same


@pytest.fixture(scope="module")
def model() -> PPG:
    return small_model()


# ---- push and load ----


def test_push_and_load(hub_server, model):
    url = hub.push(model, "me/model", evaluation=hub.EvaluationResult(21.5, 3.25, 10))
    assert url.startswith(f"{hub_server.url}/me/model/commit/")
    assert set(hub_server.files("me/model")) == {DESCRIPTION, ARRAYS, "README.md"}
    loaded = hub.load("me/model", RandomEnv(BOX, spaces.Discrete(2)), "cpu")
    assert same(model, loaded)
    hub_server.stop()
    assert same(model, hub.load("me/model", device="cpu"))  # from the cache
    with pytest.raises(HubError, match=r"me/never-seen could not be loaded [^\\]*$"):  # on one line
        hub.load("me/never-seen")
    with pytest.raises(HubError, match="me/model could not be pushed"):
        hub.push(model, "me/model")


def test_load_by_revision(hub_server, model):
    another = small_model(gamma=0.5)
    first = hub.push(another, "me/model").rpartition("/")[2]
    hub.push(model, "me/model")
    hub.push(another, "me/model", revision="try")
    assert hub.load("me/model").gamma == model.gamma
    assert hub.load("me/model", revision=first).gamma == hub.load("me/model", revision="try").gamma == 0.5
    with pytest.raises(HubError, match="nonsense"):
        hub.load("me/model", revision="nonsense")


def test_private_and_missing_repositories(hub_server, model, tmp_path, monkeypatch):
    hub.push(model, "me/secret", private=True)
    for repo_id, token in (("me/secret", False), ("me/secret", "hf_somebody_else"), ("me/nothing", None)):
        with pytest.raises(HubError, match=r"RepositoryNotFoundError.* make sure you are authenticated"):
            hub.load(repo_id, token=token)
    (tmp_path / "me" / "nothing").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("me/nothing", "me", str(tmp_path)):
        with pytest.raises(HubError, match=rf"{name} could not be loaded from the Hub\. .* use hub\.from_pretrained"):
            hub.load(name)
    assert same(model, hub.load("me/secret", device="cpu"))
    with pytest.raises(HubError, match="me/other could not be pushed"):
        hub.push(model, "me/other", token="hf_somebody_else")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(HubError, match=r"me/other could not be pushed\. There is no token.*`hf auth login`"):
        hub.push(model, "me/other", token=False)


def test_what_is_interrupted_changes_nothing_and_can_be_repeated(hub_server, model):
    another = small_model(gamma=0.5)
    hub.push(model, "me/model")
    before = hub_server.files("me/model")
    hub_server.break_off = "resolve/.*safetensors"
    with pytest.raises(HubError, match="me/model could not be loaded"):
        hub.load("me/model")
    hub_server.break_off = "/commit/"
    with pytest.raises(HubError, match="me/model could not be pushed"):
        hub.push(another, "me/model")
    assert hub_server.files("me/model") == before
    hub_server.break_off = None
    assert same(model, hub.load("me/model", device="cpu"))
    hub.push(another, "me/model")
    assert hub.load("me/model").gamma == 0.5


def test_files_of_an_earlier_push_are_gone(hub_server, model, tmp_path):
    (tmp_path / "film").write_bytes(b"film")
    hub.push(model, "me/model", files={"replay.mp4": tmp_path / "film", "zoo.json": tmp_path / "film"})
    assert {"replay.mp4", "zoo.json"} <= set(hub_server.files("me/model"))
    hub_server.repositories["me/model"].commit("main", {"notes.md": b"mine"}, [])
    hub.push(model, "me/model")
    assert set(hub_server.files("me/model")) == {DESCRIPTION, ARRAYS, "README.md", "notes.md"}
    (tmp_path / "replay.mp4").write_bytes(b"an older model's film")
    write_repository(model, tmp_path, "me/model")
    assert "replay.mp4" not in (tmp_path / "README.md").read_text()


# ---- the model card ----


def snippet_of(hub_server: HubServer, repo_id: str) -> str:
    (snippet,) = re.findall(r"```python\n(.*?)```", hub_server.files(repo_id)["README.md"].decode(), re.DOTALL)
    return snippet


def test_the_card_says_what_and_how(hub_server, tmp_path):
    venv = VecNormalize(make_vec_env("CartPole-v1", 2))
    hub.push(PPG("MlpPolicy", venv, **SMALL).learn(64), "me/cartpole", evaluation=hub.EvaluationResult(21.5, 3.25, 10))
    text = hub_server.files("me/cartpole")["README.md"].decode()
    data = ModelCard(text).data
    assert data.library_name == "stable-baselines3" and data.pipeline_tag == "reinforcement-learning"
    assert {"CartPole-v1", "sb3-ppg", "ppg", "stable-baselines3", "reinforcement-learning"} <= set(data.tags)
    (result,) = data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("CartPole-v1", "mean_reward", "21.50 +/- 3.25")
    assert "| environment | CartPole-v1 |" in text and "| torch |" in text
    for word in ("21.50 ± 3.25", "10 episodes", "n_policy_iterations", "64 steps"):
        assert word in text, word
    check = "\nassert env.get_attr('spec')[0].id == 'CartPole-v1' and type(env).__name__ == 'VecNormalize'"
    check += "\nassert not env.training and (env.get_original_reward() == rewards).all()"
    run_code(snippet_of(hub_server, "me/cartpole").replace("1000", "3") + check, tmp_path)


def test_the_card_makes_the_environment_with_its_options(hub_server, tmp_path):
    options = {"obs_type": "ram", "max_episode_steps": 50}
    hub.push(PPG("MlpPolicy", make_vec_env("PongNoFrameskip-v4", env_kwargs=options), **SMALL), "me/pong")
    snippet = snippet_of(hub_server, "me/pong")
    assert "import ale_py" in snippet and "'obs_type': 'ram'" in snippet and "'max_episode_steps': 50" in snippet
    run_code(snippet.replace("1000", "3"), tmp_path)
    # Their package does not register these games when it is imported
    card = python_usage(PPG, "me/model", "MinAtar/Breakout-v1", {}, [], False)
    assert "from minatar.gym import register_envs; register_envs()" in card


def test_the_card_of_an_environment_without_a_limit(hub_server):
    model = PPG("MlpPolicy", make_vec_env("CartPole-v1", env_kwargs=dict(max_episode_steps=-1)), **SMALL)
    hub.push(model, "me/model")
    assert "env_kwargs={'max_episode_steps': -1}" in snippet_of(hub_server, "me/model")


def test_the_card_of_a_model_that_was_trained_without_masks_has_none(hub_server, tmp_path):
    hub.push(MaskablePPG("MlpPolicy", "CartPole-v1", **SMALL).learn(16, use_masking=False), "me/model")
    run_code(snippet_of(hub_server, "me/model").replace("1000", "3"), tmp_path)


ENVIRONMENTS = {
    "stacked": lambda: VecFrameStack(make_vec_env("CartPole-v1"), 2),
    "wrapped": lambda: make_vec_env("CartPole-v1", wrapper_class=TimeAwareObservation),
    "with a file": lambda: make_vec_env("Ant-v5", env_kwargs=dict(xml_file="ant.xml")),
    "of a script": lambda: make_vec_env("Script-v0"),
    "not registered": lambda: RandomEnv(BOX, spaces.Discrete(2)),
    "none": lambda: None,
}


gym.register("Script-v0", "__main__:CartPoleEnv", vector_entry_point=None)
gym.registry["Script-v0"].entry_point = type("Mine", (CartPoleEnv,), {"__module__": "__main__"})


@pytest.mark.parametrize("make_env", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_the_card_does_not_promise_an_environment_that_a_name_does_not_make(hub_server, make_env):
    env = make_env()
    model = PPG("MlpPolicy", env or "CartPole-v1", **SMALL)
    model.env = env and model.env
    hub.push(model, "me/model", env_id="Mine-v0")
    assert "env = ...  # the one that it was trained in" in snippet_of(hub_server, "me/model")
    assert "playing **Mine-v0**" in hub_server.files("me/model")["README.md"].decode()


def test_the_card_of_a_model_with_masks_acts_under_them(hub_server, tmp_path):
    hub.push(MaskablePPG("MlpPolicy", make_vec_env(MaskedEnv), **SMALL), "me/masks", env_id="Strict-v0")
    snippet = snippet_of(hub_server, "me/masks").replace("env = ...", "env = make_vec_env(MaskedEnv)").replace("1000", "20")
    imports = "from stable_baselines3.common.env_util import make_vec_env\nfrom tests.helpers import MaskedEnv\n"
    run_code(imports + snippet, tmp_path)


def test_the_card_names_what_a_reader_must_give(hub_server):
    model = small_model(learning_rate=lambda progress: 1e-3)
    hub.push(model, "me/custom", custom_objects={"my schedule": model.learning_rate})
    assert "custom_objects={'my schedule': ...}" in hub_server.files("me/custom")["README.md"].decode()


# ---- malice, and a missing package ----


def test_names_that_lead_out_of_the_folder(hub_server, model, tmp_path, monkeypatch):
    """Not even the client's cache gets files under such names."""
    monkeypatch.chdir(tmp_path)
    hub.push(model, "me/model")
    evil = {f"{up}evil.zip": b"evil" for up in ("../", "../../../../", "/tmp/", "logs/../../../../", "logs/../../../../../")}
    hub_server.repositories["me/model"].commit("main", evil, [])
    assert same(model, hub.load("me/model", device="cpu"))
    with pytest.raises(HubError, match=r"evil\.zip"):
        hub.download("me/model", ["*"])
    found = [path for folder in (tmp_path.parent, Path(os.environ["HF_HOME"])) for path in folder.rglob("evil.zip")]
    assert found == [] and not Path("/tmp/evil.zip").exists()


def test_links_of_the_hubs_client_are_followed_and_no_others(hub_server, model, tmp_path):
    hub.push(model, "me/model")
    snapshot = hub.download("me/model", [DESCRIPTION, ARRAYS])
    assert (snapshot / DESCRIPTION).is_symlink() and snapshot.parent.name == "snapshots"
    (tmp_path / "linked").symlink_to(snapshot)
    assert same(model, hub.from_pretrained(tmp_path / "linked", device="cpu"))
    outside, blob = tmp_path / "blobs" / "x", snapshot.parent.parent / "blobs" / "link"
    outside.parent.mkdir()
    outside.write_bytes((snapshot / DESCRIPTION).read_bytes())
    blob.symlink_to(outside)
    for target in (outside, snapshot / DESCRIPTION, blob):
        (snapshot / DESCRIPTION).unlink()
        (snapshot / DESCRIPTION).symlink_to(target)
        refused(snapshot, f"{DESCRIPTION} is not a regular file")


def test_without_the_extra():
    without = {name: module for name, module in sys.modules.items() if not name.startswith("sb3_ppg.hub")}
    with patch.dict(sys.modules, {**without, "safetensors": None}, clear=True):
        with pytest.raises(ImportError, match=re.escape(pip_install("hub"))):
            importlib.import_module("sb3_ppg.hub")

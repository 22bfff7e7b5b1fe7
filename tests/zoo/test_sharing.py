"""``sb3-ppg push_to_hub`` and ``sb3-ppg load_from_hub``."""

import io
import json
import os
import re
import shutil
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from huggingface_sb3 import EnvironmentName
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, hub
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.pretrained import ARRAYS, CHECKSUMS, DESCRIPTION
from sb3_ppg.zoo import launcher
from sb3_ppg.zoo.sharing import WRAPPERS, ZOO, download_without_pickle, wrapper_names
from tests.helpers import run, run_code
from tests.hub.small_models import nested, same_parameters, small_model, zip_repository

pytestmark = pytest.mark.slow


@pytest.fixture
def model() -> PPG:
    return small_model()


@pytest.fixture
def trained(tmp_path, monkeypatch) -> Path:
    """A folder with a training under VecNormalize, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    options = ("--env", "CartPole-v1", "-n", "2048", "--eval-freq", "1000", "-params", "normalize:True", "--seed", "1")
    run("train", *options, "--env-kwargs", "max_episode_steps:100")
    return tmp_path


def test_share_a_training_and_fetch_it(hub_server, trained):
    """The card's own commands, in an empty folder; what comes back is what was shared, and works with the other scripts."""
    output = run("push_to_hub", "--env", "CartPole-v1", "-orga", "me", "-n", "60")
    files = hub_server.files("me/ppg-CartPole-v1")
    expected = {DESCRIPTION, ARRAYS, CHECKSUMS, ZOO, "README.md", "replay.mp4", "learning_curve.png"}
    assert expected | {"logs/evaluations.npz", "logs/0.monitor.csv"} <= set(files)
    assert not any(name.endswith((".zip", ".pkl", ".yml")) for name in files)
    assert files["replay.mp4"][4:8] == b"ftyp" and files["learning_curve.png"].startswith(b"\x89PNG")
    card = files["README.md"].decode()
    assert "replay.mp4" in card and "learning_curve.png" in card and "Mean return" in output

    elsewhere = trained / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    commands = [line.split("#")[0] for line in re.findall(r"^sb3-ppg .*", card, re.MULTILINE)]
    assert [command.split()[1] for command in commands] == ["load_from_hub", "enjoy"]
    run(*commands[0].split()[1:])
    assert "Mean reward" in run(*commands[1].split()[1:], "--no-render")
    for snippet in re.findall(r"```python\n(.*?)```", card, re.DOTALL):
        run_code(snippet)

    fetched, original = elsewhere / "logs" / "ppg" / "CartPole-v1_1", trained / "logs" / "ppg" / "CartPole-v1_1"
    same_parameters(PPG.load(original / "CartPole-v1.zip", device="cpu"), PPG.load(fetched / "CartPole-v1.zip", device="cpu"))
    for name in ("evaluations.npz", "0.monitor.csv"):
        assert (fetched / name).read_bytes() == (original / name).read_bytes()
    one, other = (
        VecNormalize.load(str(folder / "CartPole-v1" / "vecnormalize.pkl"), make_vec_env("CartPole-v1"))
        for folder in (original, fetched)
    )
    assert np.array_equal(one.obs_rms.var, other.obs_rms.var) and one.norm_reward == other.norm_reward is True
    assert yaml.safe_load((fetched / "CartPole-v1" / "args.yml").read_text())["env_kwargs"] == {"max_episode_steps": 100}
    report = run("report", "--env", "CartPole-v1", "--episodes", "5")
    assert (
        report.split(":")[1]
        == run("report", "--env", "CartPole-v1", "--episodes", "5", "-f", str(trained / "logs")).split(":")[1]
    )

    run("train", "--env", "CartPole-v1", "-i", str(fetched / "CartPole-v1.zip"), "-n", "1024", "--eval-freq", "-1")
    assert (elsewhere / "logs" / "ppg" / "CartPole-v1_2" / "CartPole-v1.zip").exists()
    run(*commands[0].split()[1:], "--exp-id", "1", "--force", "--revision", "main")
    assert sorted(path.name for path in (elsewhere / "logs").iterdir()) == ["ppg"]  # nothing half-made is left


@pytest.mark.parametrize(("algo", "env_id"), [("ppg_lstm", "CartPoleNoVel-v1"), ("ppg_mask", "InvalidActionsDiscrete-v0")])
def test_share_a_training_of_a_variant_and_fetch_it(hub_server, tmp_path, monkeypatch, algo, env_id):
    """Its card's own commands and snippets, in an empty folder: they know LSTM states and masks."""
    monkeypatch.chdir(tmp_path)
    which = ("--algo", algo, "--env", env_id)
    run("train", *which, "-n", "512", "--eval-freq", "-1", "-params", "n_steps:32", "n_policy_iterations:2", "--seed", "1")
    video = [] if algo == "ppg_lstm" else ["--no-render"]  # sb3-contrib's environment has no pictures
    run("push_to_hub", *which, "-orga", "me", "-n", "60", *video)
    card = hub_server.files(f"me/{algo}-{env_id}")["README.md"].decode()
    assert type(hub.load(f"me/{algo}-{env_id}")).__name__ in card

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    commands = [line.split("#")[0] for line in re.findall(r"^sb3-ppg .*", card, re.MULTILINE)]
    run(*commands[0].split()[1:])
    assert "Mean reward" in run(*commands[1].split()[1:], "--no-render", "-n", "600")
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == (algo == "ppg_lstm")  # the masks' environments are known to the commands alone
    for snippet in snippets:
        assert "episode_starts" in snippet
        run_code(snippet)
    with pytest.raises(ModelFormatError, match=f"use --algo {algo}"):
        download_without_pickle("ppg", EnvironmentName(env_id), 0, "logs", "me", f"{algo}-{env_id}")


def test_without_an_experiment_folder_no_other_training_is_touched(hub_server, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share(model, tmp_path, {"env_id": "CartPole-v1", "env_kwargs": {}, "config": {}})
    others = [tmp_path / "logs" / "ppg" / name for name in ("CartPole-v1_1/CartPole-v1.zip", "report.csv", "CartPole-v1.zip")]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"mine")
    assert "already exists" in load_from_hub(monkeypatch, "--exp-id", "-1")
    assert load_from_hub(monkeypatch, "--exp-id", "-1", "--force") == ""
    assert [other.read_bytes() == b"mine" for other in others] == [True, True, False]
    (tmp_path / "logs" / "ppg" / "CartPole-v1.zip").unlink()
    shutil.rmtree(tmp_path / "logs" / "ppg" / "CartPole-v1")
    evaluations = tmp_path / "logs" / "ppg" / "evaluations.npz"
    evaluations.write_bytes(b"mine")
    assert "already exists" in load_from_hub(monkeypatch, "--exp-id", "-1") and evaluations.read_bytes() == b"mine"


def test_a_training_that_needs_its_number_of_environments(hub_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("-params", "n_steps:32", "n_policy_iterations:2", "aux_batch_size:256")
    run("train", "--env", "CartPole-v1", *settings, "-n", "512", "--eval-freq", "-1")
    run("push_to_hub", "--env", "CartPole-v1", "-orga", "me", "-name", "model", "--no-render", "--n-envs", "2")
    assert "| environments in parallel | 8 |" in hub_server.files("me/model")["README.md"].decode()
    assert load_from_hub(monkeypatch) == ""
    assert hub.load("me/model").n_envs == 8


def test_an_experiment_is_not_overwritten_unasked(hub_server, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share(model, tmp_path, {"env_id": "CartPole-v1", "env_kwargs": {}, "config": {}})
    (tmp_path / "logs" / "ppg" / "CartPole-v1_1").mkdir(parents=True)
    assert "already exists: --force overwrites it" in load_from_hub(monkeypatch, "--exp-id", "1")


def test_the_zoos_other_algorithms_are_shared_as_ever(hub_server, tmp_path, monkeypatch):
    """Which is broken in the Zoo itself: it imports what is no longer there, and expects another error for a missing file."""
    monkeypatch.chdir(tmp_path)
    place = ("--algo", "ppo", "--env", "CartPole-v1", "-f", "logs", "-orga", "me")
    run("train", "--algo", "ppo", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1")
    run("push_to_hub", *place, "-n", "20")
    assert {"ppo-CartPole-v1.zip", "README.md", "replay.mp4"} <= set(hub_server.files("me/ppo-CartPole-v1"))
    assert (
        ModelCard(hub_server.files("me/ppo-CartPole-v1")["README.md"].decode()).data.eval_results[0].metric_type
        == "mean_reward"
    )
    run("load_from_hub", *place, fails=True)  # not without a word about pickle
    run("load_from_hub", *place, "--trust-pickle")
    assert (tmp_path / "logs" / "ppo" / "CartPole-v1_2" / "CartPole-v1.zip").exists()


def load_from_hub(monkeypatch, *options: str) -> str:
    """In this process; its error, if there was one."""
    monkeypatch.setattr(
        sys, "argv", ["sb3-ppg", "load_from_hub", "--env", "CartPole-v1", "-orga", "me", "-name", "model", *options]
    )
    try:
        launcher.main()
    except SystemExit as exit_:
        return str(exit_)
    return ""


def share(model: PPG, folder: Path, description: object) -> None:
    (folder / ZOO).write_text(description if isinstance(description, str) else json.dumps(description))
    hub.push(model, "me/model", files={ZOO: folder / ZOO})


MALICIOUS = [
    ({"config": {"env_wrapper": "os.system"}}, "has the wrapper 'os.system'.*--allow os.system"),
    ({"config": {"env_wrapper": [{"subprocess.Popen": {"args": "touch ran"}}]}}, "has the wrapper 'subprocess.Popen'"),
    ({"config": {"vec_env_wrapper": ["rl_zoo3.wrappers.FrameSkip", "a.b"]}}, "has the wrapper 'a.b'"),
    ({"config": {"env_wrapper": [["os.system"]]}}, "is not the name of a wrapper"),
    ({"config": {"normalize": "__import__('os').system('touch ran')"}}, r"unknown settings \['normalize'\]"),
    ({"config": {"policy_kwargs": "dict()"}}, r"unknown settings \['policy_kwargs'\]"),
    ({"config": {"frame_stack": "4"}}, "no numbers"),
    ({"config": []}, "cannot be read|no numbers"),
    ({"env_kwargs": "dict()"}, "cannot be read"),
    ({"env_id": "os:CartPole-v1"}, "was trained on 'os:CartPole-v1'"),
    ({"env_id": "Pendulum-v1"}, "was trained on 'Pendulum-v1', not on 'CartPole-v1'"),
    ("[1, 2", "cannot be read"),
    ("[" * 100_000, "is larger than"),
    ("[" * 1000, "cannot be read"),
    ({"env_kwargs": {"a": nested(12)}}, "nested more than 10 deep"),
    ({"env_kwargs": {"a": "x" * 2**14}}, "is larger than"),
    ({"config": {"env_wrapper": "x\x1b[2K\r: --allow os.system"}}, r"--allow x\\x1b\[2K\\r: --allow os.system"),
    ({"config": {"env_wrapper": "a.\ud800"}}, r"a.\\ud800"),
    ({"config": {"n_timesteps": True}}, "no numbers"),
    ({"config": {"frame_stack": 10**9}}, "no numbers"),
    ({"unknown": 1}, r"'unknown'\] are not known"),
    ({"env_kwargs": {"a": nested(400)}}, "cannot be read"),
    ({"config": {"frame_stack": -3}}, "no numbers"),
    (
        {"config": {"env_wrapper": [{"gymnasium.wrappers.FrameStackObservation": {"stack_size": 2 * 10**8}}]}},
        "too large to be meant",
    ),
    ({"config": {"frame_stack": 2.5}}, "no numbers"),
    ('{"env_id": "CartPole-v1", "env_kwargs": {}, "config": {"n_timesteps": NaN}}', "cannot be read"),
]


@pytest.mark.parametrize(("changes", "complaint"), MALICIOUS)
def test_a_malicious_environment(hub_server, model, tmp_path, monkeypatch, changes, complaint):
    monkeypatch.chdir(tmp_path)
    description = {"env_id": "CartPole-v1", "env_kwargs": {}, "config": {}}
    share(model, tmp_path, changes if isinstance(changes, str) else {**description, **changes})
    complained = load_from_hub(monkeypatch)
    assert re.search(complaint, complained) and complained.isprintable()
    assert not (tmp_path / "ran").exists() and not list(tmp_path.rglob("*.yml"))


def test_what_constructors_are_given_is_shown(hub_server, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = {"env_wrapper": [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}}]}
    share(model, tmp_path, {"env_id": "CartPole-v1", "env_kwargs": {"path": "\x1b[2J\x7f../x", "n": [1]}, "config": config})
    assert load_from_hub(monkeypatch) == ""
    printed = capsys.readouterr().out
    assert r'made with env_kwargs {"path": "\u001b[2J\u007f../x", "n": [1]}' in printed
    assert 'made with env_wrapper [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}}]' in printed


def zip_of(**members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(f"{name}.npy", member)
    return content.getvalue()


def npy(shape: str, content: bytes) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


@pytest.mark.parametrize(
    "content",
    [
        zip_of(results=bytes(2**27)),
        zip_of(results=npy("(1000000000000,)", bytes(8))),
        zip_of(results=b"\x80\x04N."),
        zip_of(results=npy("(1,)", b"text    ").replace(b"<f8", b"<U2")),
        b"PK\x03\x04",
    ],
)
def test_a_log_that_is_a_bomb(hub_server, model, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evaluations.npz").write_bytes(content)
    hub.push(model, "me/model", files={"logs/evaluations.npz": tmp_path / "evaluations.npz"})
    before = time.process_time()
    assert re.search("evaluations.npz cannot be read", load_from_hub(monkeypatch))
    assert time.process_time() - before < 5 and not (tmp_path / "logs" / "ppg" / "CartPole-v1_1").exists()


@pytest.mark.parametrize("header", [b"#" + b"[" * 100_000, b"#{}\n" + b"a," * 300_000])
def test_a_monitor_file_that_takes_long_to_read(hub_server, model, tmp_path, monkeypatch, header):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.monitor.csv").write_bytes(header)
    hub.push(model, "me/model", files={"logs/0.monitor.csv": tmp_path / "0.monitor.csv"})
    assert "logs/0.monitor.csv has a longer header than the monitor of a training writes" in load_from_hub(monkeypatch)


def test_logs_that_cannot_be_drawn_are_no_error(hub_server, model, tmp_path, monkeypatch, capsys):
    """The agent is evaluated all the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.monitor.csv").write_text("hello")
    hub.push(model, "me/model", files={"logs/0.monitor.csv": tmp_path / "0.monitor.csv"})
    assert not load_from_hub(monkeypatch)
    monkeypatch.setattr("sb3_ppg.zoo.report.load_agent", lambda *_, **__: None)  # it is not CartPole's
    monkeypatch.setattr("sb3_ppg.zoo.report.evaluate", lambda *_: [1.0])
    monkeypatch.setattr(sys, "argv", ["sb3-ppg", "report", "--env", "CartPole-v1", "-f", "logs", "--episodes", "1"])
    launcher.main()
    output = capsys.readouterr().out
    assert "Mean return over 1 episodes" in output and "Learning curve: none, AssertionError" in output


def test_a_damaged_environment(hub_server, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share(model, tmp_path, {"env_id": "CartPole-v1", "env_kwargs": {}, "config": {"n_timesteps": 1000}})
    content = hub_server.files("me/model")[ZOO]
    hub_server.repositories["me/model"].commit("main", {ZOO: content.replace(b"1000", b"1001")}, [])
    assert "damaged" in load_from_hub(monkeypatch)
    hub_server.repositories["me/model"].commit("main", {}, [ZOO])  # its checksum stays: something has been lost
    assert ZOO in load_from_hub(monkeypatch)
    assert not list(tmp_path.rglob("*.zip"))
    (tmp_path / "evaluations.npz").write_bytes(b"")
    hub.push(model, "me/model", files={"logs/evaluations.npz": tmp_path / "evaluations.npz"})
    hub_server.repositories["me/model"].commit("main", {}, ["logs/evaluations.npz"])
    assert "evaluations.npz is missing" in load_from_hub(monkeypatch)


def test_a_zip_in_the_place_of_a_model(hub_server, tmp_path, monkeypatch):
    ran = zip_repository(hub_server, tmp_path)
    hub_server.repositories["me/model"] = hub_server.repositories["stranger/model"]
    monkeypatch.chdir(tmp_path)
    assert "runs whatever code its author put in" in load_from_hub(monkeypatch)
    assert "--revision cannot work" in load_from_hub(monkeypatch, "--trust-pickle", "--revision", "main")
    assert "TRUST_REMOTE_CODE" not in os.environ  # trust ends with the command
    assert not ran.exists()
    hub_server.repositories["me/model"].commit("main", {}, ["ppg-Some-v0.zip"])
    assert "holds no model: there is neither" in load_from_hub(monkeypatch)


def test_a_wrapper_that_the_user_allows(hub_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    share(small_model(), tmp_path, {"env_id": "CartPole-v1", "env_kwargs": {}, "config": {"env_wrapper": "mine.Wrapper"}})
    assert load_from_hub(monkeypatch, "--allow", "mine.Wrapper") == ""
    config = yaml.safe_load((tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1" / "config.yml").read_text())
    assert config["env_wrapper"] == "mine.Wrapper"


def test_the_well_known_wrappers_exist():
    for name in WRAPPERS:
        module, _, wrapper = name.rpartition(".")
        assert isinstance(getattr(__import__(module, fromlist=[wrapper]), wrapper), type), name


def test_wrapper_names():
    assert wrapper_names({"env_wrapper": ["a.B", {"c.D": {"x": 1}}], "vec_env_wrapper": "e.F"}) == ["a.B", "c.D", "e.F"]
    assert wrapper_names({"env_wrapper": None}) == []

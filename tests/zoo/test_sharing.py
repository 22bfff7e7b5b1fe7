"""``push_to_hub``, ``load_from_hub`` and ``--pretrained``, with the agents under ``pretrained``."""

import json
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from huggingface_sb3 import EnvironmentName
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.starts import tuned_entries
from sb3_ppg import hub
from sb3_ppg.errors import ArgumentError, ModelFormatError
from sb3_ppg.hub.files import read_json
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION
from sb3_ppg.zoo import ALGOS, patched
from sb3_ppg.zoo.scripts import agent_parser, evaluate, is_deterministic, load_agent
from sb3_ppg.zoo.sharing import MAX_BYTES, WRAPPERS, ZOO, Environment, Settings, unpack, with_pretrained
from tests.helpers import ROOT, run, run_code
from tests.hub.small_models import honest, nested, small_model, write
from tests.hub.test_attack import changed_json
from tests.hub.watch import watched
from tests.hub_server import Repository
from tests.zoo.programs import MY_POLE, SMALL

pytestmark = pytest.mark.slow
EMPTY_ZIP = b"PK\x05\x06" + bytes(18)


@pytest.fixture
def repository(tmp_path_factory) -> Path:
    """A folder with a small model."""
    return write(honest("settings").files, tmp_path_factory.mktemp("repository"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def follow(card: str, *options: str) -> tuple[list[str], list[str]]:
    """Do what a card says, in a new folder that becomes the working folder; return its command that fetches, and snippets."""
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    fetch, enjoy = (line.split()[1:] for line in re.findall(r"^sb3-ppg .*", card, re.MULTILINE))
    run(*fetch)
    assert "Mean reward" in run(*enjoy, "--no-render", *options)
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    for snippet in snippets:
        run_code(snippet)
    return fetch, snippets


def load_from_hub(*options: str, fails: bool = False) -> str:
    return run("load_from_hub", "--env", "CartPole-v1", "-orga", "me", "-name", "model", *options, fails=fails)


def share(folder: Path, **changes: object) -> None:
    """A small model with a description of its environment, which is written as it is."""
    hub.push(small_model(), "me/model", files={ZOO: described(folder, **changes)})


def described(folder: Path, **changes: object) -> Path:
    description = {"env_id": "CartPole-v1", "env_kwargs": {}, "config": {}, **changes}
    (folder / ZOO).write_text(str(changes["text"]) if "text" in changes else json.dumps(description))
    return folder / ZOO


def test_share_a_run_and_fetch_it(hub_server, folder):
    """
    By the card's own commands, in an empty folder; what comes back is what was shared, and works with other scripts. The model
    needs its number of environments.
    """
    options = ("-n", "192", "--eval-freq", "128", *SMALL, "aux_batch_size:128", "normalize:True", "--seed", "1")
    run("train", "--env", "CartPole-v1", *options, "--env-kwargs", "max_episode_steps:9")
    push = "push_to_hub --env CartPole-v1 -orga me -n 60 --n-envs 2".split()  # which are closed for the video
    dry = run(*push, "--dry-run", "here", "--episodes", "2")
    assert dry.endswith("Not shared: these files would be me/ppg-CartPole-v1: here\n") and not hub_server.repositories
    output = run(*push)
    files = hub_server.files("me/ppg-CartPole-v1")
    assert {path.name for path in (folder / "here").iterdir()} == {*files}
    assert {DESCRIPTION, ARRAYS, ZOO, "README.md", "replay.mp4", "learning_curve.png"} <= set(files)
    assert not any(name.endswith((".zip", ".pkl", ".yml", ".csv", ".npz")) for name in files)
    assert files["replay.mp4"][4:8] == b"ftyp" and files["learning_curve.png"].startswith(b"\x89PNG")
    card = files["README.md"].decode()
    assert "replay.mp4" in card and "learning_curve.png" in card and "Mean return" in output
    assert "| environments in parallel | 2 |" in card and hub.load("me/ppg-CartPole-v1").n_envs == 2

    fetch, _ = follow(card)
    fetched, original = (place / "logs" / "ppg" / "CartPole-v1_1" for place in (folder / "elsewhere", folder))
    ours, theirs = (
        VecNormalize.load(str(run_folder / "CartPole-v1" / "vecnormalize.pkl"), make_vec_env("CartPole-v1"))
        for run_folder in (original, fetched)
    )
    assert np.array_equal(ours.obs_rms.var, theirs.obs_rms.var) and ours.norm_reward == theirs.norm_reward is True
    assert yaml.safe_load((fetched / "CartPole-v1" / "args.yml").read_text())["env_kwargs"] == {"max_episode_steps": 9}
    report = ("report", "--env", "CartPole-v1", "--episodes", "5")
    here, there = (run(*report, "-f", str(logs)) for logs in ("logs", folder / "logs"))
    returns = [re.search(r"Mean return over 5 episodes: [\d.]+", output)[0] for output in (here, there)]
    assert returns[0] == returns[1] and float(returns[0].split()[-1]) <= 9 and "Learning curve: none" in here

    run("push_to_hub", "--env", "CartPole-v1", "-orga", "you", "--no-render", "--episodes", "1", "-f", str(folder / "logs"))
    assert hub.load("you/ppg-CartPole-v1").n_envs == 2
    run("train", "--env", "CartPole-v1", "-i", str(fetched / "CartPole-v1.zip"), "-n", "64", "--eval-freq", "-1", *SMALL)
    assert fetched.with_name("CartPole-v1_2").joinpath("CartPole-v1.zip").exists()
    run(*fetch, "--exp-id", "1", "--force", "--revision", "main")
    assert len(list(fetched.parent.iterdir())) == 2 and len(list(fetched.parent.parent.iterdir())) == 1  # nothing half-made


def test_an_agent_of_another_algorithm_is_fetched(trained, hub_server, tmp_path):
    """The Zoo does it, which unpickles the file. The agent has no statistics of VecNormalize."""
    run_folder = trained / "logs" / "ppo" / "CartPole-v1_1"
    files = {name: (run_folder / "CartPole-v1" / name).read_bytes() for name in ("args.yml", "config.yml")}
    files |= {"ppo-CartPole-v1.zip": (run_folder / "CartPole-v1.zip").read_bytes(), "env_kwargs.yml": b"{}"}
    hub_server.repositories["me/ppo-CartPole-v1"] = Repository(private=False)
    hub_server.repositories["me/ppo-CartPole-v1"].commit("main", {**files, "train_eval_metrics.zip": EMPTY_ZIP}, [])
    which = ("--algo", "ppo", "--env", "CartPole-v1")
    assert "TRUST_REMOTE_CODE" in run("load_from_hub", *which, "-orga", "me", cwd=tmp_path, fails=True)
    run("load_from_hub", *which, "-orga", "me", cwd=tmp_path, TRUST_REMOTE_CODE="True")
    assert "Mean reward" in run("enjoy", *which, "--no-render", "-n", "200", cwd=tmp_path)


@pytest.mark.parametrize(("algo", "env_id"), [("ppg_lstm", "CartPoleNoVel-v1"), ("ppg_mask", "InvalidActionsDiscrete-v0")])
def test_share_a_run_of_a_variant_and_fetch_it(hub_server, folder, algo, env_id):
    """By its card's own commands and snippets, in an empty folder: they know LSTM states and masks."""
    which = ("--algo", algo, "--env", env_id)
    run("train", *which, "-n", "128", "--eval-freq", "-1", *SMALL, "--seed", "1")
    video = [] if algo == "ppg_lstm" else ["--no-render"]  # sb3-contrib's environment has no pictures
    run("push_to_hub", *which, "-orga", "me", "-n", "20", "--episodes", "2", *video)
    card = hub_server.files(f"me/{algo}-{env_id}")["README.md"].decode()
    assert type(hub.load(f"me/{algo}-{env_id}")).__name__ in card

    _, snippets = follow(card, "-n", "200")
    assert len(snippets) == (algo == "ppg_lstm")  # the masks' environments are known to the commands alone
    assert all("episode_starts" in snippet for snippet in snippets)
    other = ("load_from_hub", "--env", env_id, "-orga", "me", "-name", f"{algo}-{env_id}")
    assert f"use --algo {algo}" in run(*other, fails=True)


def test_the_card_of_an_environment_of_ones_own_says_which_module_registers_it(hub_server, folder):
    (folder / "my_pole.py").write_text(MY_POLE)
    which = ("--env", "MyPole-v0", "--gym-packages", "my_pole")
    run("train", *which, "-n", "64", "--eval-freq", "-1", *SMALL)
    run("push_to_hub", *which, "-orga", "me", "--episodes", "2", "--no-render")
    card = hub_server.files("me/ppg-MyPole-v0")["README.md"].decode()
    fetch, (snippet,) = follow(card, "-n", "20")
    assert fetch[-4:] == ["--gym-packages", "my_pole", "-f", "logs"] and "import my_pole  # registers" in snippet


def test_no_run_is_overwritten_unasked(hub_server, folder):
    """Without an experiment folder, no other run is touched."""
    share(folder)
    runs = folder / "logs" / "ppg"
    others = [runs / name for name in ("CartPole-v1_1/CartPole-v1.zip", "report.csv", "CartPole-v1.zip")]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(b"mine")
    for number in ("-1", "1"):
        assert "already exists: --force overwrites it" in load_from_hub("--exp-id", number, fails=True)
    load_from_hub("--exp-id", "-1", "--force")
    assert [other.read_bytes() == b"mine" for other in others] == [True, True, False]


def test_a_run_that_begins_during_a_download_is_not_overwritten(hub_server, folder, monkeypatch):
    share(folder)
    download, model = hub.download, folder / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip"

    def begins_meanwhile(*args):
        model.parent.mkdir(parents=True)
        model.write_bytes(b"mine")
        return download(*args)

    monkeypatch.setattr(hub, "download", begins_meanwhile)
    assert "exists" in load_from_hub(fails=True) and model.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"config": {"env_wrapper": "os.system"}}, "has the wrapper 'os.system'.*--allow os.system"),
        ({"config": {"env_wrapper": [{"subprocess.Popen": {"args": "touch ran"}}]}}, "has the wrapper 'subprocess.Popen'"),
        ({"config": {"env_wrapper": "x\x1b[2K\r: --allow os.system"}}, r"--allow x\\x1b\[2K\\r: --allow os.system"),
        ({"config": {"env_wrapper": [["os.system"]]}}, r"config\.env_wrapper"),
        ({"config": {"env_wrapper": "a.\ud800"}}, "cannot be read"),
        ({"config": {"normalize": "__import__('os').system('touch ran')"}}, "unknown field `normalize`"),
        ({"config": {"frame_stack": 10**9}}, r"config\.frame_stack"),
        ({"config": {"frame_stack": 65}}, "stacks 65 observations"),
        ({"config": {"env_wrapper": ["rl_zoo3.wrappers.HistoryWrapper"] * 40}}, r"stacks \d+ observations"),
        ({"config": {"env_wrapper": [{"gymnasium.wrappers.ResizeObservation": {"shape": [30000, 30000]}}]}}, "--allow shape"),
        ({"env_kwargs": {"xml_file": "/tmp/x.xml"}}, "'xml_file' with '/tmp/x.xml'.*--allow xml_file"),
        ({"env_kwargs": {"size": [[1]]}}, "--allow size"),
        ({"env_kwargs": {"size": [1] * 9}}, "--allow size"),
        ({"env_kwargs": "dict()"}, r"\$\.env_kwargs"),
        ({"env_kwargs": {"a": nested(20)}}, r"\$\.env_kwargs"),
        ({"env_kwargs": {"a": "x" * 2**14}}, "is larger than"),
        ({"env_id": "Pendulum-v1"}, "was trained on 'Pendulum-v1', not on 'CartPole-v1'"),
        ({"unknown": 1}, "unknown field `unknown`"),
        ({"text": "[" * 1000}, "cannot be read"),
        ({"text": '{"env_id": "CartPole-v1", "env_kwargs": {}, "config": {"n_timesteps": NaN}}'}, "cannot be read"),
    ],
)
def test_a_malicious_environment(repository, tmp_path, changes, complaint):
    described(repository, **changes)
    with pytest.raises(ModelFormatError, match=complaint) as raised:
        unpack(repository, "ppg", EnvironmentName("CartPole-v1"), tmp_path / "logs")
    assert str(raised.value).isprintable() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["/tmp/x.xml", ["<mujoco/>"], {"../x": 1}, {"a": ['"']}, "x.xml", ["\\", "a"]])
def test_what_could_name_a_file_is_refused_also_where_the_user_allows_the_argument(repository, tmp_path, value):
    described(repository, env_kwargs={"xml_file": value})
    with pytest.raises(ModelFormatError, match="could name a file"):
        unpack(repository, "ppg", EnvironmentName("CartPole-v1"), tmp_path / "logs", ["xml_file"])


COMPLETE = {
    "env_id": "CartPole-v1",
    "env_kwargs": {"max_episode_steps": 100, "options": {"names": ["a", "b"]}, "g": 9.81},
    "config": {
        "n_timesteps": 1000.0,
        "frame_stack": 4,
        "env_wrapper": [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 10}}, "rl_zoo3.wrappers.FrameSkip"],
        "vec_env_wrapper": "rl_zoo3.wrappers.FrameSkip",
    },
}


@given(content=changed_json(COMPLETE) | st.binary(max_size=100))
def test_a_changed_environment_is_refused_or_plain_data(content):
    """Reading does nothing else, and the Zoo reads the same from the YAML that is made of it."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / ZOO
        file.write_bytes(content)
        with watched(), suppress(ModelFormatError):
            environment = msgspec.to_builtins(read_json(file, Environment, MAX_BYTES))
            assert yaml.safe_load(yaml.safe_dump(environment)) == environment


def test_what_the_user_allows_is_written(hub_server, folder):
    wrappers = [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 7}}, "mine.Wrapper"]
    share(folder, env_kwargs={"\x1b[2J\x7f": "x", "n": [1]}, config={"env_wrapper": wrappers})
    load_from_hub("--allow", "\x1b[2J\x7f", "n", "mine.Wrapper")
    config = yaml.safe_load((folder / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1" / "config.yml").read_text())
    assert config["env_wrapper"] == wrappers and config["n_timesteps"] == 16  # which `benchmark` reads


def test_booleans_and_numbers_of_a_usual_size_need_no_consent():
    usual = {"gravity": -5.5, "enable_wind": True, "healthy_z_range": [0.2, 1], "frameskip": 4, "num_levels": 1000, "delay": 0}
    assert Environment("LunarLander-v3", usual, Settings()).to_allow == []
    unusual = {"xml_file": "ant", "width": 10**5, "gravity": -5, "delay": 1e6, "noise": float("nan"), "game": None, "n": -1.0}
    assert {*Environment("LunarLander-v3", usual | unusual, Settings()).to_allow} == {*unusual}


def test_an_honest_description_is_read_as_it_was_written(tmp_path):
    (tmp_path / ZOO).write_text(json.dumps(COMPLETE))
    environment = read_json(tmp_path / ZOO, Environment, MAX_BYTES)
    assert msgspec.to_builtins(environment) == COMPLETE
    names = ["gymnasium.wrappers.TimeLimit", "rl_zoo3.wrappers.FrameSkip", "rl_zoo3.wrappers.FrameSkip"]
    assert [name for name, _ in environment.wrappers] == names and environment.to_allow == ["options"]


def test_the_well_known_wrappers_exist():
    for name in WRAPPERS:
        module, _, wrapper = name.rpartition(".")
        assert isinstance(getattr(__import__(module, fromlist=[wrapper]), wrapper), type), name


# ---- the agents under `pretrained` ----

FOLDER = ROOT / "pretrained"
AGENTS = sorted(path for path in FOLDER.glob("*/*"))


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: str(folder.relative_to(FOLDER)))
def test_an_agent_is_as_good_as_its_card_says(folder, tmp_path):
    card = (folder / "README.md").read_text()
    ((mean, std, how),) = re.findall(r"Mean return \*\*(-?[\d.]+) ± ([\d.]+)\*\* .* with (\w+) actions", card)
    mean, std, deterministic = float(mean), float(std), {"deterministic": True, "stochastic": False}[how]
    algo, env_name = folder.parent.name, EnvironmentName(json.loads((folder / ZOO).read_text())["env_id"])
    options = ["--algo", algo, "-f", str(tmp_path), "--device", "cpu"]
    unpack(folder, algo, env_name, tmp_path / algo / f"{env_name}_1")
    args = agent_parser("").parse_args(options)
    args.env, args.episodes = env_name, 5
    with patched():
        evaluation = evaluate(*load_agent(args)[:2], args)
    assert evaluation.deterministic == deterministic
    args.deterministic = True
    assert is_deterministic(args)
    args.stochastic = True
    assert not is_deterministic(args)
    assert abs(evaluation.mean - mean) <= 4 * std / 5**0.5 + 1e-2


@pytest.mark.parametrize("algo", ALGOS)
def test_every_tuned_entry_has_an_agent(algo):
    """MinAtar's entry has two; the one of MemoryS9, whose file is large, is left out."""
    env_ids = {*tuned_entries(algo)} - {"minatar", "MiniGrid-MemoryS9-v0"}
    env_ids |= {"MinAtar/Asterix-v1", "MinAtar/Breakout-v1"} if algo == "ppg" else set()
    names = {f"{algo}/{EnvironmentName(env_id)}" for env_id in env_ids}
    assert names == {f"{algo}/{path.name}" for path in AGENTS if path.parent.name == algo}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 30e6


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(tmp_path):
    """Another command may read it: files are not written in place."""
    folder = AGENTS[0]
    place = (folder.parent.name, EnvironmentName(folder.name), tmp_path / "run")
    unpack(folder, *place)
    (model,) = (tmp_path / "run").glob("*.zip")
    whole = model.read_bytes()
    with model.open("rb") as reader:
        unpack(folder, *place)
        assert reader.read() == whole and os.fstat(reader.fileno()).st_nlink == 0


def test_the_commands(tmp_path):
    """An agent is unpacked as a training like others, here in a folder of one's own."""
    printed = run("enjoy", "--env", "CartPole-v1", "--pretrained", "--no-render", "-n", "600", cwd=tmp_path)
    assert "Mean reward: 500" in printed and "The shared model was written by sb3_ppg 0.1.0\n" in printed
    assert "Mean return over 2 episodes: 500.0" in run("report", "--pretrained", "--episodes", "2", cwd=tmp_path)
    unpacked = tmp_path / "logs" / "pretrained" / "ppg" / "CartPole-v1_1"
    assert (unpacked / "learning_curve.png").exists() and (unpacked / "evaluations.npz").exists()
    options = ("-n", "64", "-params", "n_envs:1", "n_steps:64", "compile_updates:False", "--eval-freq", "-1")
    output = run("train", "--env", "CartPole-v1", "--pretrained", *options, cwd=tmp_path)
    assert "Loading pretrained agent" in output and "phase starts over" not in output


def test_a_copy_of_the_package_says_where_the_agents_are(tmp_path, monkeypatch):
    monkeypatch.setattr("sb3_ppg.zoo.sharing.FOLDERS", [tmp_path / "none", tmp_path / "neither"])
    with pytest.raises(
        ArgumentError, match=r"no trained agent ppg/CartPole-v1 in .*neither: run in a clone of the repository, or .* -e"
    ):
        with_pretrained("-f", [])


def test_agents_of_the_working_folder_come_first(tmp_path):
    (tmp_path / "pretrained" / "ppg" / "CartPole-v1").mkdir(parents=True)
    assert "pretrained/ppg/CartPole-v1 holds no model" in run("report", "--pretrained", cwd=tmp_path, fails=True)

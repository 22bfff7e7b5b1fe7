"""Files of strangers: what is read of them, how often, and what is left as it was."""

import hashlib
import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch as th
from gymnasium import spaces

from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from sb3_ppg.buffers.sequences import longest_equal_part
from sb3_ppg.errors import MAX_MESSAGE, ModelFormatError, printable
from sb3_ppg.hub import from_pretrained, load_vec_normalize, save_pretrained
from sb3_ppg.hub.array_file import ArrayFile
from sb3_ppg.hub.pretrained import ARRAYS, CHECKSUMS, DESCRIPTION, write_checksums
from sb3_ppg.hub.untrusted import MAX_TEXT_BYTES, parse_json, read_bytes
from sb3_ppg.saving.generators import generators_kept
from tests.helpers import MaskedEnv, RandomEnv
from tests.hub.small_models import BOX, SMALL, change, put, refused, same_parameters, small_model


def change_arrays(folder: Path, changes: Callable[[dict[str, th.Tensor]], Any]) -> None:
    """With checksums to match."""
    arrays = safetensors.torch.load_file(folder / ARRAYS)
    changes(arrays)
    (folder / ARRAYS).write_bytes(safetensors.torch.save(arrays))
    write_checksums(folder, [DESCRIPTION, ARRAYS])


def replace_array(folder: Path, name: str, change_array: Callable[[th.Tensor], th.Tensor]) -> None:
    change_arrays(folder, lambda arrays: arrays.update({name: change_array(arrays[name])}))


# ---- optimizers ----


MOMENT = "policy.optimizer.state.0.exp_avg"
STATES: dict[str, tuple[str, Callable[[th.Tensor], th.Tensor], str]] = {
    "a moment without a shape": (MOMENT, lambda moment: th.zeros(()), r"exp_avg is not a number for each .*float32 \(\)"),
    "a moment turned": (MOMENT, lambda moment: moment.T.contiguous(), "exp_avg is not a number for each"),
    "integers": (MOMENT, lambda moment: moment.long(), "exp_avg is not a number for each .*int64"),
    "truth values": (MOMENT, lambda moment: moment > 0, "exp_avg is not a number for each .*bool"),
    "a moment that is not finite": (MOMENT, lambda moment: moment * np.nan, "not all of its numbers are finite"),
    "a huge moment": (MOMENT, lambda moment: moment * 0 + 1e30, "would change weights by more than"),
    "a negative second moment": (f"{MOMENT}_sq", lambda moment: moment * 0 - 1, "cannot be negative"),
    "steps of a shape": ("policy.optimizer.state.0.step", lambda step: th.ones(4, 3), "step is not a number for each"),
    "negative steps": ("policy.optimizer.state.0.step", lambda step: -step, "cannot be negative"),
    "steps without end": ("policy.optimizer.state.0.step", lambda step: step + np.inf, "not all of its numbers are finite"),
}


@pytest.mark.parametrize("name", STATES)
def test_states_that_do_not_fit_their_parameter(copied, name):
    """Torch's fused Adam would write past the end of what it is given."""
    array, change_array, complaint = STATES[name]
    replace_array(copied, array, change_array)
    refused(copied, complaint)


def test_states_are_complete_and_nothing_else(copied):
    for changes in (
        lambda states: states["0"].pop("exp_avg"),
        lambda states: states["0"].update(max_exp_avg_sq=states["1"]["exp_avg"]),
    ):
        description = (copied / DESCRIPTION).read_bytes()
        change(copied, lambda data: changes(data["optimizers"]["policy.optimizer"]["state"]) and None)  # noqa: B023
        refused(copied, r"state.0: \['exp_avg'\] are missing|\['max_exp_avg_sq'\] are not known")
        (copied / DESCRIPTION).write_bytes(description)


OPTIONS = {
    "lr": [-1, 1e300, "x", None],
    "eps": [-1, 0, 1e300, None, True],
    "betas": [[0.9], {"$tuple": [0.9, 1.5]}, {"$tuple": [0.9, "x"]}, 0.5],
    "weight_decay": [-0.1, 1e300],
    "amsgrad": [True, 1, "x"],
    "maximize": ["x"],
    "unheard of": [1],
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in OPTIONS.items() for value in values])
def test_options_out_of_range(copied, option, value):
    change(copied, put("optimizers", "aux_optimizer", "groups", 0, option, value=value))
    refused(copied, rf"aux_optimizer.groups\[0\].{option}|are missing there")


def test_how_a_step_is_computed_is_not_the_files_choice(copied):
    for option in ("foreach", "capturable", "differentiable"):
        change(copied, put("optimizers", "policy.optimizer", "groups", 0, option, value=True))
    loaded = from_pretrained(copied, RandomEnv(BOX, spaces.Discrete(2)), "cpu")
    assert loaded.policy.optimizer.param_groups[0] == small_model().policy.optimizer.param_groups[0] | {
        "params": loaded.policy.optimizer.param_groups[0]["params"]
    }
    loaded.learn(16)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(optimizer_class=th.optim.SGD, optimizer_kwargs=dict(momentum=0.9)),
        dict(optimizer_class=th.optim.SGD),
        dict(optimizer_class=th.optim.RMSprop, optimizer_kwargs=dict(centered=True, momentum=0.5)),
        dict(optimizer_class=th.optim.AdamW, optimizer_kwargs=dict(amsgrad=True)),
    ],
)
def test_each_optimizer_comes_back(tmp_path, kwargs):
    model = small_model(policy_kwargs=dict(net_arch=[4], **kwargs))
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2)), "cpu")
    same_parameters(model, loaded)
    loaded.learn(16)


# ---- bounds ----


def cost_of(folder: Path, complaint: str) -> float:
    """Seconds of computing, until it was refused."""
    start = time.process_time()
    refused(folder, complaint)
    return time.process_time() - start


def test_rollouts_beyond_all_measure(tmp_path):
    """Neither is its length divided, nor are its masks filled with ones."""
    save_pretrained(RecurrentPPG("MlpLstmPolicy", RandomEnv(BOX, spaces.Discrete(2)), **SMALL), tmp_path / "lstm")
    save_pretrained(MaskablePPG("MlpPolicy", MaskedEnv(), **SMALL), tmp_path / "masks")
    for name, n_steps in (("lstm", 10**15), ("lstm", 10**17 - 1), ("masks", 2 * 10**8), ("masks", 9_999_999)):
        for argument in ("n_steps", "batch_size"):
            change(tmp_path / name, put("arguments", argument, value=n_steps))
        assert cost_of(tmp_path / name, "claims") < 5


def test_largest_part_of_large_numbers():
    start = time.process_time()
    assert longest_equal_part(10**12, 10**12) == 10**12 and longest_equal_part(2 * 999_983, 10**6) == 999_983
    assert longest_equal_part(10**10 + 19, 10**5) == 1 and longest_equal_part(12, 5) == 4 and longest_equal_part(7, 7) == 7
    assert time.process_time() - start < 5
    for whole in range(1, 60):
        for at_most in range(1, 70):
            expected = max(part for part in range(1, min(whole, at_most) + 1) if whole % part == 0)
            assert longest_equal_part(whole, at_most) == expected


def test_many_keys(copied):
    keys = [[str(key), {"$space": ["Discrete", {"n": 2, "start": 0}]}] for key in range(20_000)]
    change(copied, put("spaces", "observation", value={"$space": ["Dict", keys]}))
    assert cost_of(copied, "20000 keys") < 5


@pytest.mark.parametrize(
    "text",
    ["[" + "[]," * 5 * 10**6 + "0]", '{"format": "sb3_ppg", "x": [' + "[]," * 10**6 + "0]}", '{"a": 1, "a": 2}', "1e999"],
)
def test_json_that_takes_much(copied, text):
    (copied / DESCRIPTION).write_text(text)
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    assert cost_of(copied, "larger than|more than|a key is there twice|too large") < 5


@pytest.mark.parametrize(
    "path", [(), ("arguments",), ("spaces",), ("counters",), ("optimizers",), ("optimizers", "aux_optimizer"), ("versions",)]
)
def test_what_is_not_known_is_refused(copied, path):
    change(copied, put(*path, "unknown", value=[[]] * 100))
    refused(copied, r"'unknown'\] are not known|has no \['unknown'\]|are not named")


def test_a_file_is_not_read_before_its_size_is_looked_at(copied, monkeypatch):
    """Six gigabytes of zeros, in a few kilobytes on the disk: nothing that this description needs."""
    header = json.dumps({"policy.log_std": {"dtype": "F32", "shape": [3 * 2**29], "data_offsets": [0, 6 * 2**30]}}).encode()
    start = len(header).to_bytes(8, "little") + header
    (copied / ARRAYS).write_bytes(start)
    os.truncate(copied / ARRAYS, len(start) + 6 * 2**30)
    for load in (from_pretrained, load_vec_normalize):
        began = time.process_time()
        with pytest.raises(ModelFormatError, match="there is no array"):
            load(copied)
        assert time.process_time() - began < 5
    os.truncate(copied / ARRAYS, 2**40)
    assert cost_of(copied, "do not take all of it") < 5


def test_many_dimensions(copied):
    """Each of them is an object in the distribution of actions."""
    change(
        copied,
        put("spaces", "action", value={"$space": ["MultiDiscrete", {"nvec": {"$array": "n"}, "start": {"$array": "s"}}]}),
    )
    change_arrays(copied, lambda arrays: arrays.update(n=th.full((10**5,), 2), s=th.zeros(10**5, dtype=th.int64)))
    assert cost_of(copied, "100000 dimensions") < 5


def test_bounds_of_spaces_do_not_take_gigabytes(copied, monkeypatch):
    """They are refused by what the header says of them: nothing of them is read."""
    header = json.dumps(
        {
            f"observation_space.{name}": {"dtype": "F32", "shape": [2**28], "data_offsets": [place, place + 2**30]}
            for name, place in (("low", 0), ("high", 2**30))
        }
    ).encode()
    start = len(header).to_bytes(8, "little") + header
    (copied / ARRAYS).write_bytes(start)
    os.truncate(copied / ARRAYS, len(start) + 2**31)
    read: list[str] = []
    monkeypatch.setattr(ArrayFile, "_read", lambda self, name: read.append(name))
    assert cost_of(copied, "what describes a model does not take more than") < 5
    assert not read


# ---- what was checked is what is used ----


def test_what_becomes_of_the_files_afterwards_does_not_matter(copied):
    """A mapped file would change the model, or end the process."""
    loaded, again = from_pretrained(copied, device="cpu"), from_pretrained(copied, device="cpu")
    with (copied / ARRAYS).open("r+b") as file:
        file.write(bytes(4000))
        file.truncate(100)
    same_parameters(loaded, again)
    assert loaded.observation_space == BOX
    loaded.set_env(RandomEnv(BOX, spaces.Discrete(2)))
    loaded.learn(16)


def test_each_file_is_opened_once(copied, monkeypatch):
    opened: list[str] = []
    open_ = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *rest, **options: opened.append(Path(path).name) or open_(path, *rest, **options)
    )
    from_pretrained(copied, device="cpu")
    assert sorted(opened) == sorted([DESCRIPTION, ARRAYS, CHECKSUMS])


# ---- files that are none ----


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS, CHECKSUMS])
@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_links_pipes_and_devices_are_not_opened(copied, tmp_path_factory, monkeypatch, name, kind):
    outside = tmp_path_factory.mktemp("outside") / name
    (copied / name).rename(outside)
    if kind == "pipe":
        os.mkfifo(copied / name)
    else:
        (copied / name).symlink_to(outside if kind == "link" else "/dev/zero")
    opened: list[Path] = []
    open_ = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **options: opened.append(Path(path)) or open_(path, *rest, **options))
    refused(copied, f"{name} is not a regular file")
    assert all(path.name != name for path in opened)


def as_in_the_cache(folder: Path, files: Path) -> Path:
    """As the Hub's client keeps them."""
    snapshot = folder / "models--a--b" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (snapshot.parent.parent / "blobs").mkdir()
    for name in (DESCRIPTION, ARRAYS, CHECKSUMS):
        content = (files / name).read_bytes()
        blob = snapshot.parent.parent / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / blob.name)
    return snapshot


def test_links_of_the_hubs_client_are_followed_and_no_others(small, tmp_path):
    snapshot = as_in_the_cache(tmp_path, small)
    same_parameters(from_pretrained(small, device="cpu"), from_pretrained(snapshot, device="cpu"))
    (tmp_path / "linked").symlink_to(snapshot)
    same_parameters(from_pretrained(small, device="cpu"), from_pretrained(tmp_path / "linked", device="cpu"))
    (snapshot / DESCRIPTION).unlink()
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "x").write_bytes((small / DESCRIPTION).read_bytes())
    for target in (tmp_path / "blobs" / "x", small / DESCRIPTION, snapshot / DESCRIPTION):
        (snapshot / DESCRIPTION).symlink_to(target)
        refused(snapshot, f"{DESCRIPTION} is not a regular file")
        (snapshot / DESCRIPTION).unlink()
    blob = snapshot.parent.parent / "blobs" / "link"
    blob.symlink_to(small / DESCRIPTION)
    (snapshot / DESCRIPTION).symlink_to(blob)
    refused(snapshot, f"{DESCRIPTION} is not a regular file")


def test_a_file_that_grows_while_it_is_read(tmp_path):
    (tmp_path / "x").write_bytes(bytes(100))
    assert read_bytes(tmp_path / "x", 100) == bytes(100)
    with pytest.raises(ModelFormatError, match="larger than 99 bytes"):
        read_bytes(tmp_path / "x", 99)
    with pytest.raises(ModelFormatError, match="y is missing"):
        read_bytes(tmp_path / "y")
    assert parse_json(b" " * (MAX_TEXT_BYTES - 1) + b"1", "x") == 1


# ---- what is left as it was ----


def compiled(folder: Path, monkeypatch, **options: Any) -> tuple[PPG, list[Any]]:
    modes: list[Any] = []
    monkeypatch.setattr(th.nn.Module, "compile", lambda self, *, mode, dynamic: modes.append(mode))
    return from_pretrained(folder, device="cpu", **options), modes


def test_a_file_does_not_start_a_compiler(copied, monkeypatch):
    change(copied, put("arguments", "policy_kwargs", "compile_mode", value="max-autotune"))
    model, modes = compiled(copied, monkeypatch)
    assert modes == [] and model.policy.compile_mode is None and "compile_mode" not in model.policy_kwargs
    model, modes = compiled(copied, monkeypatch, compile_mode="default")
    assert modes == ["default"] and model.policy.compile_mode == "default"


def generator_states() -> list[Any]:
    kind, keys, *rest = np.random.get_state()
    return [random.getstate(), kind, keys.tolist(), rest, th.get_rng_state().tolist()]


@pytest.mark.parametrize(
    "reader", ["from_pretrained", "refused", "load_vec_normalize", "load", "load refused", "trust_pickle"]
)
def test_loading_leaves_the_global_generators_alone(copied, reader):
    model = small_model()
    model.save(copied / "model.zip")
    env = RandomEnv(BOX, spaces.Discrete(2))
    before = generator_states()
    if reader == "load":
        PPG.load(copied / "model.zip", env)
    elif reader == "from_pretrained":
        from_pretrained(copied, env)
    elif reader == "trust_pickle":
        from_pretrained(copied / "model.zip", env, trust_pickle=True)
    elif reader == "refused":
        replace_array(copied, "policy.value_net.weight", lambda weight: weight * np.nan)
        refused(copied, "finite")
    elif reader == "load refused":
        with pytest.raises(ValueError, match="Observation spaces do not match"):
            PPG.load(copied / "model.zip", RandomEnv(spaces.Box(-1, 1, (5,)), spaces.Discrete(2)))
    else:
        with pytest.raises(ModelFormatError, match="trained without"):
            load_vec_normalize(copied)
    assert generator_states() == before


def test_depth_is_known_before_anything_is_read(monkeypatch):
    """Where somebody has raised the recursion limit, reading would end the process."""
    monkeypatch.setattr("sb3_ppg.hub.untrusted.json.loads", lambda *_, **__: pytest.fail("it was read"))
    for text in ("[" * 190_000 + "]" * 190_000, '{"a[": ' * 101 + "1" + "}" * 101, '["\\"", ' * 101 + "1" + "]" * 101):
        with pytest.raises(ModelFormatError, match="nested more than 100 deep"):
            parse_json(text.encode(), "it")


@pytest.mark.parametrize("text", ['"' + '\\"' * 2_000_000, '"' * 4_000_001], ids=["escapes", "quotes"])
def test_text_without_an_end_is_read_once(text):
    start = time.process_time()
    with pytest.raises(ModelFormatError, match="it cannot be read"):
        parse_json(text.encode(), "it")
    assert time.process_time() - start < 5


def test_brackets_in_text_are_not_depth():
    data = {"[" * 500: ["[" * 200, '"' + "{" * 200, "\\"]}
    assert parse_json(json.dumps(data).encode(), "it") == data


def test_long_keys_are_refused_at_once(copied):
    start = time.perf_counter()
    change(copied, put("arguments", "policy_kwargs", value={"k" * 2_000_000: [0] * 20_000}))
    refused(copied, "a key of more than 1000 characters")
    assert time.perf_counter() - start < 5


def test_keys_that_a_terminal_would_obey_are_neither_read_nor_written(tmp_path):
    def of_key(key: str) -> PPG:
        space = spaces.Dict({key: spaces.Box(-1, 1, (2,))})
        return PPG("MultiInputPolicy", RandomEnv(space, spaces.Discrete(2)), device="cpu", n_steps=8, batch_size=8)

    save_pretrained(of_key("a"), tmp_path)
    assert list(from_pretrained(tmp_path).observation_space) == ["a"]
    change(tmp_path, put("spaces", "observation", "$space", 1, 0, 0, value="\x1b[2J"))
    refused(tmp_path, "keys that cannot be printed")
    with pytest.raises(ModelFormatError, match="keys that cannot be printed"):
        save_pretrained(of_key("\x1b[2J"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_seed_that_is_asked_for_is_used(tmp_path):
    model = small_model()
    model.save(tmp_path / "model.zip")
    before = generator_states()
    PPG.load(tmp_path / "model.zip", seed=5)
    assert generator_states() != before
    drawn = [np.random.rand(), th.rand(()).item(), random.random()]
    PPG.load(tmp_path / "model.zip", seed=5)
    assert [np.random.rand(), th.rand(()).item(), random.random()] == drawn
    before = generator_states()
    with pytest.raises(KeyError), generators_kept():
        th.manual_seed(np.random.randint(5) + random.randrange(5))
        raise KeyError
    assert generator_states() == before


def test_gpus_draw_as_if_nothing_had_been_read(monkeypatch):
    """Before they are in use, their seed is the last one that anybody has asked for."""
    asked = []
    monkeypatch.setattr(th.cuda, "manual_seed_all", asked.append)
    th.manual_seed(5)
    with generators_kept():
        th.manual_seed(3)
    assert asked[-1] == 5


# ---- numbers that learn() could not use ----


def test_networks_that_give_no_numbers(copied):
    replace_array(copied, "policy.value_net.std", lambda std: std * 0)
    refused(copied, "no unit of values")


NONSENSE = [
    ("learning_rate", 1e300),
    ("learning_rate", {"$schedule": ["linear", 1e-3, -1.0, 1.0]}),
    ("aux_learning_rate", {"$schedule": ["constant", {"$float": "nan"}]}),
    ("beta_clone", 1e300),
    ("n_epochs", 10**9),
    ("n_policy_iterations", 10**15),
    ("aux_buffer_kwargs", {"capacity": 10**15}),
    ("aux_buffer_kwargs", {"storage": "mmap", "path": "/tmp"}),
    ("replay_kwargs", {"policy_rollouts": 10**15}),
    ("replay_kwargs", {"staleness": 10**15}),
    ("replay_kwargs", {"policy_rollouts": "3"}),
    ("seed", -1),
    ("seed", "x"),
    ("policy_kwargs", {"activation_fn": {"$class": "torch.optim.adam.Adam"}}),
    ("policy_kwargs", {"optimizer_class": {"$class": "torch.nn.modules.activation.ReLU"}}),
    ("rollout_buffer_kwargs", {"reward_normalizer": 5}),
]


@pytest.mark.parametrize(("argument", "value"), NONSENSE)
def test_arguments_that_nobody_means(copied, argument, value):
    change(copied, put("arguments", argument, value=value))
    names = f"{argument}|capacity|policy_rollouts|staleness"
    refused(copied, f"{names}|a schedule is made of|unexpected keyword argument")


# ---- messages ----


def test_what_a_file_says_does_not_command_the_terminal(copied):
    text = printable("\x1b[2J\r\n\x00\x7f\u202e\u2028\ud800 Zürich, 東京")
    assert text == r"\x1b[2J\r\n\x00\x7f\u202e\u2028\ud800 Zürich, 東京"
    assert len(printable("x" * 10**6)) < MAX_MESSAGE + 10
    for place in (("algorithm",), ("spaces", "observation"), ("format",), ("arguments", "policy_kwargs")):
        before = (copied / DESCRIPTION).read_bytes()
        change(copied, put(*place, value={"$custom": "\x1b]0;evil\x07\r\nuse --allow os.system\ud800"}))
        with pytest.raises(ModelFormatError) as error:
            from_pretrained(copied)
        assert str(error.value).isprintable()
        (copied / DESCRIPTION).write_bytes(before)
    change_arrays(copied, lambda arrays: arrays.update({"\x1b[2J": th.zeros(3)}))
    with pytest.raises(ModelFormatError, match=re.escape(r"\x1b[2J")):
        from_pretrained(copied)

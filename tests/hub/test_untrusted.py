"""Strangers' files, case by case: what is refused, with which words, and what is left as it was."""

import json
import os
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch as th
from gymnasium import spaces

from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from sb3_ppg.errors import MAX_MESSAGE, HubError, ModelFormatError, NonFiniteActionError, printable
from sb3_ppg.hub import from_pretrained, save_pretrained
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION
from sb3_ppg.hub.schema import CLASSES
from tests.helpers import SMALL, MaskedEnv, RandomEnv
from tests.hub.small_models import BOX, change, refused, small_model
from tests.hub.watch import watched
from tests.saving.small_models import same


def change_arrays(folder: Path, changes: Callable[[dict[str, th.Tensor]], Any]) -> None:
    arrays = safetensors.torch.load_file(folder / ARRAYS)
    changes(arrays)
    (folder / ARRAYS).write_bytes(safetensors.torch.save(arrays))


def replace_array(folder: Path, name: str, change_array: Callable[[th.Tensor], th.Tensor]) -> None:
    change_arrays(folder, lambda arrays: arrays.update({name: change_array(arrays[name])}))


# ---- damage ----


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS])
def test_truncated_and_missing_files(copied, name):
    original = (copied / name).read_bytes()
    for length in {0, 1, 7, len(original) // 2, len(original) - 1}:
        (copied / name).write_bytes(original[:length])
        refused(copied, "cannot be read|no model can be made")
    os.truncate(copied / name, 200 * 2**30)  # it takes no space on the disk
    with watched():
        refused(copied, "is larger than|no model can be made")
    (copied / name).unlink()
    refused(copied, f"holds no model: there is no {DESCRIPTION}|FileNotFoundError.*{ARRAYS}")


# ---- descriptions ----

KWARGS = "arguments.policy_kwargs"
BIG = 10**15
COIN = {"space": "Discrete", "n": 2}


def large(*shape: int) -> dict[str, Any]:
    return {"space": "Box", "shape": shape, "dtype": "uint8", "low": 0, "high": 255}


# Place in the description, another value there, complaint
MALICE: list[tuple[str, Any, str]] = [
    ("algorithm", {"$class": "os.system"}, "'os.system'} is not on the list"),
    ("algorithm", {"$class": "ReLU"}, "is not PPG"),
    ("policy", {"$class": "ReLU"}, "is not for PPG"),
    (f"{KWARGS}.activation_fn", {"$class": "x.y"}, "policy_kwargs.activation_fn: {'\\$class': 'x.y'} is not on"),
    (f"{KWARGS}.activation_fn", {"$class": "Adam"}, "no model can be made"),
    (KWARGS, "dict(net_arch=[1])", "no model can be made"),
    (f"{KWARGS}.optimizer_kwargs", {"eps": None}, "no model can be made"),
    (f"{KWARGS}.optimizer_kwargs", {"amsgrad": True}, "no array 'policy.optimizer.0.max_exp_avg_sq'"),
    (f"{KWARGS}.net_arch", [10**7, 10**8], r"has the shape \(4, 3\), the model needs \(10000000, 3\)"),
    (f"{KWARGS}.net_arch", [1] * 20_000, "too many layers"),
    (f"{KWARGS}.net_arch", [3], r"has the shape \(4, 3\), the model needs \(3, 3\)"),
    ("arguments.gamma", {"$reduce": "x"}, "a newer sb3_ppg may know it"),
    ("arguments.gamma", {"$custom": "mine"}, "custom_objects={'mine': ...}"),
    ("arguments.gamma", 7, "gamma"),
    ("arguments.clip_range", 1e39, r"<= 1e\+38"),
    ("arguments.tensorboard_log", "../../home", r"PPG has no \['tensorboard_log'\]"),  # a machine's
    ("arguments.aux_buffer_kwargs", {"path": "/tmp"}, r"PPG has no \['aux_buffer_kwargs'\]"),
    ("arguments.seed", -1, "seed"),
    ("arguments.learning_rate", {"$linear": [1, "1", 0]}, "^learning_rate "),
    ("arguments.ent_coef", {"$items": [[[], 1]]}, "^ent_coef .*unhashable"),
    ("arguments.n_steps", BIG, "n_steps"),
    ("n_envs", BIG, r"\$.n_envs"),
    ("counters._n_updates", -5, r"\$.counters._n_updates"),
    ("action_space", {"space": "Text"}, r"'Text' - at `\$.action_space.space`"),
    ("action_space.seed", 1, r"unknown field `seed` - at `\$.action_space`"),
    ("action_space.dtype", "O", r"\$.action_space.dtype"),
    ("action_space.n", 2**31, "claims|the model needs"),
    ("action_space", {"space": "MultiDiscrete", "nvec": [2] * 5000, "start": [], "shape": [5000]}, "length <= 1000"),
    ("action_space", {"space": "Box", "shape": [2], "dtype": "float32", "low": -1, "high": None}, "finite bounds"),
    ("action_space", {"space": "Tuple", "parts": []}, "has no actions"),
    ("action_space", reduce(lambda part, _: {"space": "Tuple", "parts": [part]}, range(300), COIN), "be read|has no array"),
    ("observation_space", {"space": "Dict", "parts": {str(key): COIN for key in range(20_000)}}, "length <= 1000"),
    ("observation_space", {"space": "Dict", "parts": {"a": {"space": "Dict", "parts": {"b": COIN}}}}, "no model can be made"),
    ("observation_space", large(*[10**6] * 4), "more than 4194304 numbers"),
    ("observation_space", large(0, *[2**22] * 15), "no model can be made"),
    ("observation_space", {"space": "Dict", "parts": {str(key): large(2**22) for key in range(100)}}, "more than 4194304"),
    ("observation_space", {"space": "Dict", "parts": {"\x1b[2J": COIN}}, "keys that cannot be printed"),
    ("schema_version", 0, r"\$.schema_version"),
    ("schema_version", BIG, r"written by a newer sb3_ppg \([\w.+]+\): its format has version 10+, this sb3_ppg reads 1\."),
    ("versions.sb3-ppg", "0.1.0\n", r"matching regex .* - at `\$.versions"),
    ("versions.sb3-ppg", "1" * 65, r"matching regex .* - at `\$.versions"),
    ("missing_rollouts", [-1, 0], r"\$.missing_rollouts"),
    ("unknown", [[]] * 100, "unknown field `unknown`"),
    ("unknown", "x" * 2**24, "is larger than"),
]


@pytest.mark.parametrize("place, value, complaint", MALICE)
def test_a_malicious_description(copied, place, value, complaint):
    change(copied, place, value)
    with watched():
        refused(copied, complaint)


def test_memories_and_rollouts_that_no_machine_holds(tmp_path):
    save_pretrained(RecurrentPPG("MlpLstmPolicy", RandomEnv(BOX, spaces.Discrete(2)), **SMALL), tmp_path / "lstm")
    save_pretrained(MaskablePPG("MlpPolicy", MaskedEnv(), **SMALL), tmp_path / "masks")
    for name, n_steps, n_envs in (("lstm", 10**7, 2**16), ("masks", 9_999_999, 8), ("masks", 1000, 2**16)):
        change(tmp_path / name, "arguments.n_steps", n_steps)
        change(tmp_path / name, "n_envs", n_envs)
        with watched():
            refused(tmp_path / name, "claims .* bytes of memory for a rollout")
    for name, complaint in (("lstm_hidden_size", "the model needs"), ("n_lstm_layers", "too many layers")):
        change(tmp_path / "lstm", KWARGS, {name: 10**6})
        with watched():
            refused(tmp_path / "lstm", complaint)


@pytest.mark.parametrize("total", [351, 352])
def test_a_rollout_is_read_where_the_machine_has_memory_for_it(copied, total, monkeypatch):
    """Each of its eight steps has an observation of 12 bytes, an action of 8, and six further numbers of 4."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=total))
    if total < 352:
        refused(copied, "n_steps=8 with n_envs=1 claims 3.5e\\+02 bytes of memory for a rollout")
    else:
        from_pretrained(copied)


def test_a_file_may_name_only_classes_that_build_something():
    """The list is of networks, optimizers, buffers and algorithms."""
    for name, cls in CLASSES.items():
        assert isinstance(cls, type) and name == cls.__name__
        assert re.match(r"(sb3_ppg|stable_baselines3|sb3_contrib|torch\.(nn|optim))\.", cls.__module__)


def test_errors_do_not_command_the_terminal(copied):
    assert str(HubError("\x1b[2J")) == r"\x1b[2J"
    text = printable("\x1b[2J\r\n\x00\x7f\u202e\u2028\ud800 Zürich, 東京")
    assert text == r"\x1b[2J\r\n\x00\x7f\u202e\u2028\ud800 Zürich, 東京"
    assert len(printable("x" * 10**6)) < MAX_MESSAGE + 10
    before = (copied / DESCRIPTION).read_bytes()
    for place in ("algorithm", "observation_space", "format", KWARGS):
        change(copied, place, {"$custom": "\x1b]0;evil\x07\r\nuse --allow os.system"})
        with pytest.raises(ModelFormatError) as error:
            from_pretrained(copied)
        assert str(error.value).isprintable()
        (copied / DESCRIPTION).write_bytes(before)
    change_arrays(copied, lambda arrays: arrays.update({"\x1b[2J": th.zeros(3)}))
    refused(copied, re.escape(r"\x1b[2J"))


# ---- arrays ----

MOMENT = "policy.optimizer.0.exp_avg"
STEP = "policy.optimizer.0.step"
CHANGED_ARRAYS: list[tuple[str, Callable[[th.Tensor], th.Tensor], str]] = [
    (MOMENT, lambda moment: th.zeros(()), r"has the shape \(\), the model needs \(4, 3\)"),
    (MOMENT, lambda moment: moment.long(), "is torch.int64, the model needs torch.float32"),
    (MOMENT, lambda moment: moment * np.nan, "numbers that are not finite"),
    (STEP, lambda step: th.ones(4, 3), r"has the shape \(4, 3\), the model needs \(\)"),
    ("policy.value_net.weight", lambda weight: weight * np.nan, "numbers that are not finite"),
]


@pytest.mark.parametrize(("name", "change_array", "complaint"), CHANGED_ARRAYS)
def test_arrays_that_do_not_fit(copied, name, change_array, complaint):
    """Torch's fused Adam would write past the end of the moments that it is given."""
    replace_array(copied, name, change_array)
    refused(copied, complaint)


def test_states_are_complete_and_nothing_else(copied):
    original = (copied / ARRAYS).read_bytes()
    change_arrays(copied, lambda arrays: arrays.pop(MOMENT))
    refused(copied, f"has no array '{MOMENT}'")
    for name in ("policy.trojan", "policy.optimizer.0.max_exp_avg_sq", "policy.optimizer.99.step"):
        (copied / ARRAYS).write_bytes(original)
        change_arrays(copied, lambda arrays: arrays.update({name: th.zeros(4, 3)}))  # noqa: B023
        refused(copied, rf"no part of the model is for: \['{name}'\]")


RELU: dict[str, Any] = dict(policy_kwargs=dict(net_arch=[4], activation_fn=th.nn.ReLU), **SMALL)
BOUNDLESS = spaces.Box(-np.inf, np.inf, (3,))


@pytest.mark.parametrize("net", ["action_net", "value_net", "aux_value_net"])
def test_networks_that_overflow_are_refused_or_say_so_when_they_play(tmp_path, net):
    """Loading evaluates one observation; others may still lead to numbers that are not finite."""
    save_pretrained(PPG("MlpPolicy", RandomEnv(BOUNDLESS, spaces.Box(-1, 1, (2,))), **RELU), tmp_path)
    change_arrays(tmp_path, lambda arrays: [array.fill_(1.0) for name, array in arrays.items() if "0.weight" in name])
    replace_array(tmp_path, f"policy.{net}.weight", lambda weight: weight * 0 + 3e38)
    change_arrays(tmp_path, lambda arrays: [array.fill_(-1e3) for name, array in arrays.items() if "0.bias" in name])
    loaded = from_pretrained(tmp_path, RandomEnv(BOUNDLESS, spaces.Box(-1, 1, (2,))))  # ReLUs give zeros
    if net == "action_net":
        with pytest.raises(NonFiniteActionError):
            loaded.predict(np.full(3, 1e6, np.float32))
    change_arrays(tmp_path, lambda arrays: [array.fill_(1e3) for name, array in arrays.items() if "0.bias" in name])
    refused(tmp_path, "not finite|NaN or infinite")


def claim(n_bytes: int, kind: str = "U8", start: int = 0) -> dict[str, Any]:
    """An entry of a header for numbers of four bytes, or of one."""
    shape = [n_bytes] if kind == "U8" else [5000, n_bytes // 20_000]
    return {"dtype": kind, "shape": shape, "data_offsets": [start, start + n_bytes]}


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({"a": claim(2**42)}, "no model can be made"),  # beyond the end of the file
        ({"a": claim(20_000, "PICKLE")}, "no model can be made"),
        ({"policy.trojan": claim(6 * 2**30)}, "has no array"),
        ({str(n): claim(0) for n in range(20_000)}, "its header has"),
        # They may not stand for weights while networks are made
        ({f"policy.{k}": claim(10**8, "F32", k * 10**8) for k in (0, 1)}, "has no array 'policy.mlp_extractor.policy_net.0"),
    ],
    ids=["beyond the end", "unknown type", "6 GiB", "many", "right shapes"],
)
def test_claims_of_large_arrays(copied, header, complaint):
    """Names, shapes and types are compared before a byte is read."""
    change(copied, KWARGS, {"net_arch": [5000, 5000]})
    text = json.dumps(header).encode()
    (copied / ARRAYS).write_bytes(len(text).to_bytes(8, "little") + text)
    size = max(entry["data_offsets"][1] for entry in header.values())
    os.truncate(copied / ARRAYS, 8 + len(text) + size % 2**40)  # zeros that take no space on the disk
    with watched():
        refused(copied, complaint)


@pytest.mark.parametrize("extractor", ["FlattenExtractor", "ImpalaCNN"])
def test_networks_for_large_observations_take_no_memory_before_weights_are_compared(copied, extractor):
    """The space takes some: its bounds, and a sample."""
    change(copied, "observation_space", large(3, 1180, 1180))
    change(copied, KWARGS, {"features_extractor_class": {"$class": extractor}, "net_arch": []})
    with watched(megabytes=300):
        refused(copied, "has no array|has the shape")


def test_later_changes_of_the_files_do_not_matter(copied):
    """A file that stays mapped into memory would change the model, or end the process."""
    loaded, again = from_pretrained(copied, device="cpu"), from_pretrained(copied, device="cpu")
    with (copied / ARRAYS).open("r+b") as file:
        file.write(bytes(4000))
        file.truncate(100)
    assert same(loaded, again) and loaded.env is None
    loaded.set_env(RandomEnv(BOX, spaces.Discrete(2)))
    loaded.learn(16)


# ---- files that are none ----


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS])
@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "device", "folder"])
def test_links_pipes_and_devices_are_not_opened(copied, tmp_path_factory, name, kind):
    outside = tmp_path_factory.mktemp("outside") / name
    (copied / name).rename(outside)
    if kind == "pipe":
        os.mkfifo(copied / name)  # opening it would wait for ever
    elif kind == "folder":
        (copied / name).mkdir()
    else:
        (copied / name).symlink_to({"link": outside, "loop": copied / name, "device": "/dev/zero"}[kind])
    refused(copied, f"{name} is not a regular file")


# ---- pickle ----


class Payload:
    """Pickled, it creates a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_pickles_are_not_opened(copied):
    model, ran = small_model(), copied / "ran"
    model.innocent = Payload(ran)  # type: ignore[attr-defined]
    model.save(copied / "model.zip")
    (copied / "vec_normalize.pkl").write_bytes((copied / "model.zip").read_bytes())
    from_pretrained(copied, RandomEnv(BOX, spaces.Discrete(2)))
    (copied / DESCRIPTION).unlink()
    for name in ("", "model.zip", "nowhere"):
        with pytest.raises(ModelFormatError, match=r"no model\.json.*runs whatever code its author put in.*PPG\.load"):
            from_pretrained(copied / name)
    assert not ran.exists()
    PPG.load(copied / "model.zip")
    assert ran.exists()  # so the payload was alive


# ---- what is left as it was ----


def test_a_file_does_not_start_a_compiler(copied):
    change(copied, "arguments.compile_updates", True)
    assert from_pretrained(copied, device="cpu").compile_updates is False

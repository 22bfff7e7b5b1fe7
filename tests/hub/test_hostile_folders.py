"""Shared models that are damaged or malicious: an error, or a model, and no harm."""

import copy
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch as th
from gymnasium import spaces

from sb3_ppg import PPG
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub import from_pretrained, save_pretrained
from sb3_ppg.hub.plain_data import CLASSES
from sb3_ppg.hub.pretrained import ARRAYS, CHECKSUMS, DESCRIPTION, write_checksums
from sb3_ppg.hub.untrusted import parse_json
from tests.helpers import RandomEnv
from tests.hub.small_models import BOX, SMALL, change, malicious_zip, nested, put, refused, small_model

pytestmark = pytest.mark.slow


# ---- damage ----


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS, CHECKSUMS])
@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_flipped_bytes(copied, name, mask):
    """Every range of 16 bytes in turn."""
    original = (copied / name).read_bytes()
    for start in range(0, len(original), 16):
        flipped = bytes(byte ^ mask for byte in original[start : start + 16])
        (copied / name).write_bytes(original[:start] + flipped + original[start + 16 :])
        refused(copied, "damaged")


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS])
def test_flipped_bytes_with_checksums_to_match(copied, name):
    """Whoever changes the files can change the checksums, too: a model or a clear error comes of it, never anything else."""
    original = (copied / name).read_bytes()
    generator = np.random.default_rng(0)
    outcomes = {"model": 0, "error": 0}
    for start in range(0, min(len(original), 10000), 40):
        changed = bytearray(original)
        changed[start + int(generator.integers(min(40, len(original) - start)))] ^= 1 << int(generator.integers(8))
        (copied / name).write_bytes(changed)
        write_checksums(copied, [DESCRIPTION, ARRAYS])
        try:
            assert isinstance(from_pretrained(copied, device="cpu"), PPG)
            outcomes["model"] += 1
        except ModelFormatError:
            outcomes["error"] += 1
    assert outcomes["error"] > 20


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS, CHECKSUMS])
def test_truncated_files(copied, name):
    original = (copied / name).read_bytes()
    for length in {0, 1, 7, len(original) // 2, len(original) - 1}:
        (copied / name).write_bytes(original[:length])
        refused(copied, "damaged")
        if name != CHECKSUMS:
            write_checksums(copied, [DESCRIPTION, ARRAYS])
            refused(copied)


@pytest.mark.parametrize("name", [ARRAYS, CHECKSUMS])
def test_missing_files(copied, name):
    (copied / name).unlink()
    refused(copied, f"{name} is missing")


def test_no_model_at_all(tmp_path):
    refused(tmp_path, "holds no model: there is no model.json")
    refused(tmp_path / "nowhere", "holds no model")
    refused(tmp_path / "nothing.zip", "holds no model")


# ---- malice ----


def test_what_is_too_deep_is_refused_whatever_the_recursion_limit():
    limit = sys.getrecursionlimit()
    for depth, raised in ((98, limit), (101, limit), (101, 5000), (900, 5000)):
        content = json.dumps(nested(depth)).encode()
        sys.setrecursionlimit(raised)
        try:
            if depth < 100:
                assert parse_json(content, "data.json") == nested(depth)
                continue
            with pytest.raises(ModelFormatError, match="nested more than 100 deep"):
                parse_json(content, "data.json")
        finally:
            sys.setrecursionlimit(limit)


MALICE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown class": (put("algorithm", value={"$class": "os.system"}), "'os.system' is not on the list"),
    "builtin": (put("policy", value={"$class": "builtins.eval"}), "'builtins.eval' is not on the list"),
    "class by import": (
        put("arguments", "policy_kwargs", value={"activation_fn": {"$class": "antigravity.geohash"}}),
        "policy_kwargs.activation_fn: the class 'antigravity.geohash' is not on the list",
    ),
    "another class of ours": (put("algorithm", value={"$class": "torch.nn.modules.activation.ReLU"}), "is not PPG"),
    "no policy": (put("policy", value={"$class": "torch.nn.modules.activation.ReLU"}), "no auxiliary value head"),
    "class that is no string": (put("algorithm", value={"$class": ["a"]}), "algorithm"),
    "string to evaluate": (put("arguments", "policy_kwargs", value="dict(net_arch=[1])"), "policy_kwargs"),
    "unknown kind": (put("arguments", "gamma", value={"$reduce": "x"}), "a newer sb3_ppg may know it"),
    "two kinds": (put("arguments", "gamma", value={"$float": "inf", "$class": "x"}), "is not known"),
    "custom object": (put("arguments", "gamma", value={"$custom": "mine"}), "custom_objects={'mine': ...}"),
    "unknown argument": (put("arguments", "shell", value="rm"), r"PPG has no \['shell'\]"),
    "argument of a machine": (put("arguments", "tensorboard_log", value="../../home"), r"PPG has no \['tensorboard_log'\]"),
    "argument out of range": (put("arguments", "gamma", value=7), "gamma"),
    "schedule": (put("arguments", "learning_rate", value={"$schedule": ["constant", "1"]}), "made of numbers"),
    "unknown schedule": (put("arguments", "learning_rate", value={"$schedule": ["eval", 1]}), "learning_rate"),
    "no number": (put("counters", "num_timesteps", value="many"), "num_timesteps: 'many' is not an integer"),
    "no space": (put("spaces", "action", value=3), "is not a space"),
    "unknown space": (put("spaces", "action", value={"$space": ["Text", {}]}), "spaces.action"),
    "space of a path": (
        put("spaces", "action", value={"$space": ["Discrete", {"n": 2, "start": 0, "seed": 1}]}),
        r"\['seed'\] are not known",
    ),
    "missing array": (put("spaces", "observation", "$space", 1, "low", value={"$array": "../../x"}), "no array '../../x'"),
    "rollout of a petabyte": (put("arguments", "n_steps", value=10**15), "claims"),
    "environments": (put("n_envs", value=10**15), "claims"),
    "network of a petabyte": (
        put("arguments", "policy_kwargs", value={"net_arch": [10**7, 10**8]}),
        "larger than its arrays",
    ),
    "actions": (
        put("spaces", "action", value={"$space": ["Discrete", {"n": 10**12, "start": 0}]}),
        "claims|larger than its arrays",
    ),
    "another network": (
        put("arguments", "policy_kwargs", value={"net_arch": [3]}),
        "is not a number for each of the parameter",
    ),
    "optimizer's missing array": (
        put("optimizers", "aux_optimizer", "state", "0", "exp_avg", value={"$array": "action_space.bias"}),
        "there is no array",
    ),
    "one array for two": (
        put("optimizers", "aux_optimizer", "state", "0", "exp_avg", value={"$array": "policy.action_net.bias"}),
        "is somebody else's, too",
    ),
    "one array for many": (
        put("arguments", "policy_kwargs", value={"x": [{"$array": "policy.log_std"}] * 1000}),
        "no array|somebody else's",
    ),
    "optimizer's class": (
        put("optimizers", "aux_optimizer", "state", "0", "step", value={"$class": "torch.optim.adam.Adam"}),
        r"in place of a dictionary of|are missing there",
    ),
    "too many states": (put("optimizers", "aux_optimizer", "state", "999", value={}), "it is for parameters 0 to"),
    "negative state": (put("optimizers", "aux_optimizer", "state", "-1", value={}), "it is for parameters 0 to"),
    "optimizer's option": (put("optimizers", "aux_optimizer", "groups", 0, "betas", value="x"), "'x' in place of"),
    "optimizer's parameters": (put("optimizers", "aux_optimizer", "groups", value=[]), "there have to be 1"),
    "negative counter": (put("counters", "num_timesteps", value=-5), "is not an integer of at least 0"),
    "broken counter": (put("counters", "_n_updates", value=1.5), "is not an integer of at least 0"),
    "schema that is no number": (put("schema_version", value=True), "schema version True"),
    "many layers": (put("arguments", "policy_kwargs", value={"net_arch": [1] * 20_000}), "larger than its arrays"),
    "newer schema": (put("schema_version", value=2), "schema version 2"),
    "no schema": (lambda description: description.pop("schema_version") and None, "schema version None"),
    "something else": (put("format", value="keras"), "is not a model of sb3_ppg"),
    "a list": (lambda description: [description], "is not a model of sb3_ppg"),
    "missing part": (lambda description: description.pop("counters") and None, r"\['counters'\] are missing"),
    "deep": (lambda description: {**description, "format": nested(900)}, "cannot be read|is not a model"),
    "large": (lambda description: {**description, "x": "x" * 2**24}, "is larger than"),
}


@pytest.mark.parametrize("name", MALICE)
def test_a_malicious_description(copied, name, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("it was run"))
    change_description, complaint = MALICE[name]
    change(copied, change_description)
    start = time.perf_counter()
    refused(copied, complaint)
    assert time.perf_counter() - start < 5


def test_json_that_is_none(copied):
    for text in (
        "{",
        "[" * 100_000,
        '{"format": NaN}',
        '{"format": Infinity}',
        "1" * 10_000,
        "\ud800".encode("utf-8", "surrogatepass"),
    ):
        (copied / DESCRIPTION).write_bytes(text if isinstance(text, bytes) else text.encode())
        write_checksums(copied, [DESCRIPTION, ARRAYS])
        refused(copied, "cannot be read")


@pytest.mark.parametrize(
    "header",
    [
        {"policy.action_net.bias": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [2**64 - 1, 0], "data_offsets": [0, 0]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**60]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"policy.action_net.bias": {"dtype": "PICKLE", "shape": [2], "data_offsets": [0, 8]}},
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
    ],
)
def test_arrays_that_claim_what_is_not_there(copied, header):
    text = json.dumps(header).encode()
    (copied / ARRAYS).write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, "cannot be read")


def test_states_of_another_shape(copied):
    arrays = safetensors.torch.load_file(copied / ARRAYS)
    arrays["aux_optimizer.state.0.exp_avg"] = th.zeros(3, 17)
    safetensors.torch.save_file(arrays, copied / ARRAYS)
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, "aux_optimizer.state.0.exp_avg is not a number for each of the parameter")


def test_a_file_of_zeros_without_end(copied):
    os.truncate(copied / DESCRIPTION, 200 * 2**30)  # it takes no space on the disk
    refused(copied, "is larger than")


def test_a_header_that_claims_to_be_huge(copied):
    (copied / ARRAYS).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, "cannot be read")


def test_arrays_that_nobody_asked_for(copied):
    arrays = safetensors.torch.load_file(copied / ARRAYS)
    safetensors.torch.save_file({**arrays, "policy.trojan": th.zeros(3)}, copied / ARRAYS)
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, r"nothing says what \['policy.trojan'\] is for")


def test_loading_writes_nothing(copied):
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    from_pretrained(copied)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


@pytest.mark.parametrize("name", ["", "model.zip"])
def test_an_sb3_zip_is_only_loaded_if_it_is_trusted(tmp_path, name):
    ran = malicious_zip(tmp_path)
    refused(tmp_path / name, "runs whatever code its author put in.*trust_pickle=True")
    assert not ran.exists()
    assert isinstance(from_pretrained(tmp_path / name, trust_pickle=True), PPG)
    assert ran.exists()  # so the payload was alive


def test_pickles_beside_a_model_are_not_opened(copied):
    ran = malicious_zip(copied)
    (copied / "vec_normalize.pkl").write_bytes((copied / "model.zip").read_bytes())
    from_pretrained(copied, RandomEnv(BOX, spaces.Discrete(2)), trust_pickle=True)
    assert not ran.exists()


def test_no_class_that_a_file_may_name_does_anything_when_made_but_build():
    """The list is of networks, optimizers, buffers and algorithms."""
    for name, cls in CLASSES.items():
        assert isinstance(cls, type) and name == cls.__name__
        assert re.match(r"(sb3_ppg|stable_baselines3|sb3_contrib|torch\.(nn|optim))\.", cls.__module__)


def test_numbers_that_json_has_not(tmp_path):
    model = small_model(target_kl=None)
    model.ent_coef = math.inf
    save_pretrained(model, tmp_path)
    refused(tmp_path, "ent_coef")  # read as infinity, and refused as that
    space = spaces.Box(-np.inf, np.inf, (3,))
    model = PPG("MlpPolicy", RandomEnv(space, spaces.Discrete(2)), **SMALL)
    model.observation_space = copy.deepcopy(space)
    save_pretrained(model, tmp_path)
    assert from_pretrained(tmp_path).observation_space == space

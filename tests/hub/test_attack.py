"""
Hostile files without number: each is refused with ``ModelFormatError``, or gives a model that predicts and trains.

Neither may do anything but read, see ``tests.hub.watch``. ``make test`` tries more than a hundred files, always the same;
``make attack`` many thousand, others each time.
"""

import copy
import gc
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch as th
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sb3_ppg import ArgumentError
from sb3_ppg.errors import ModelFormatError, NonFiniteError
from sb3_ppg.hub import from_pretrained
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION
from tests.hub import watch
from tests.hub.small_models import MODELS, Honest, honest, nested, write
from tests.hub.watch import watched

EXAMPLES = int(os.environ.get("ATTACK_EXAMPLES", 0))
settings.register_profile(
    "attack",
    max_examples=EXAMPLES or 50,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("attack")


def attempt(original: Honest, files: dict[str, bytes]) -> None:
    """Read changed files as a user would, and use the model if they are not refused."""
    repr(th.zeros(1))  # torch imports modules at the first use of something, also in errors that show numbers
    with tempfile.TemporaryDirectory() as folder:
        write({**original.files, **files}, Path(folder))
        env = original.make_env()
        try:
            with watched():
                model = from_pretrained(folder, env, "cpu")
        except ModelFormatError as error:
            assert str(error).isprintable() and len(str(error)) < 10_000
            return
    epochs = max(model.n_epochs, model.n_value_epochs or 0, model.n_aux_epochs)
    if model.n_steps <= 100 and epochs <= 20:  # worth waiting for
        with warnings.catch_warnings(action="ignore"):
            try:
                model.learn(2 * model.n_steps, reset_num_timesteps=False)
            except (ArgumentError, NonFiniteError):  # two arguments that do not fit, numbers that are too large: it says so
                assert all(parameter.isfinite().all() for parameter in model.policy.parameters())


# ---- changes ----


def places(data: Any, path: tuple = ()) -> list[tuple]:
    """Paths of everything in JSON, from the outside to the inside."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, part in items for place in places(part, (*path, key)))]


SIZES = [0, 1, -1, 2, 7, 2**31, 2**53 + 1, 10**15, -(10**15), 10**30]
REALS = [0.5, 1e-300, 1e39, 1e300, -0.0, float("inf"), float("nan")]
TEXTS = ["", "x", "auto", "../../etc/passwd", "\x1b[2Ja\r\nfake: --allow os.system", "\ud800", "\u202egnp", "a" * 10**5]
CLASSES = ["os.system", "Adam", "PPG", "ReLU", "RolloutBuffer", "PhasicActorCriticPolicy", 5, []]
LARGE = [[1] * 20_000, [[]] * 300_000, nested(90), {str(key): 0 for key in range(5000)}, [10**5] * 3]
numbers = st.sampled_from([*SIZES, *REALS]) | st.integers() | st.floats()
special = st.one_of(
    st.sampled_from(CLASSES).map(lambda name: {"$class": name}),
    st.lists(numbers, max_size=4).map(lambda items: {"$linear": items}),
    st.lists(numbers, max_size=3).map(lambda items: {"$tuple": items}),
    st.sampled_from([{"$custom": "x"}, {"$reward_normalizer": {}}, {"$reduce": 1}, {"$class": "ReLU", "x": 1}]),
    st.sampled_from(["Box", "Discrete", "Dict", "Text"]).map(lambda kind: {"space": kind, "n": 10**9, "shape": [10**6] * 2}),
)
scalars = st.none() | st.booleans() | numbers | st.sampled_from(TEXTS)
containers = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
values = scalars | special | containers | st.sampled_from(LARGE)


@st.composite
def changed_json(draw: Any, data: Any) -> bytes:
    """JSON with one or two changes: another value, a part removed, or there in addition."""
    changed = copy.deepcopy(data)
    for path in draw(st.lists(st.sampled_from(places(data)[1:]), min_size=1, max_size=2)):
        kind = draw(st.sampled_from(["replace", "replace", "replace", "scale", "remove", "add"]))
        value, factor = copy.deepcopy(draw(values)), draw(st.sampled_from([-1, 3, 1000, 0.3]))
        with suppress(LookupError, TypeError):  # the first change may have removed the place of the second
            change_at(changed, path, kind, value, factor)
    return json.dumps(changed).encode()


def change_at(data: Any, path: tuple, kind: str, value: Any, factor: float) -> None:
    for key in path[:-1]:
        data = data[key]
    before = data[path[-1]]
    if kind == "remove":
        del data[path[-1]]
    elif kind == "add":
        data.insert(0, value) if isinstance(data, list) else data.update(unknown=value)
    elif kind == "scale" and type(before) in (int, float):
        data[path[-1]] = before * factor
    else:
        data[path[-1]] = value


@st.composite
def changed_arrays(draw: Any, content: bytes) -> bytes:
    """Arrays of which one or two have other types, shapes, numbers or names, are missing or there in addition."""
    arrays = dict(safetensors.numpy.load(content))
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(arrays)))
        array = arrays.pop(name)
        kind = draw(st.sampled_from(["numbers", "numbers", "one number", "type", "shape", "remove", "rename", "add"]))
        if kind in ("numbers", "one number"):
            number = draw(st.sampled_from([np.nan, np.inf, -np.inf, 0, -1, 1e4, 1e-40, 1e15, 1e30, 3e38, -3e38]))
            array = array.copy()
            with np.errstate(all="ignore"):
                array.flat[0 if kind == "one number" and array.size else slice(None)] = np.array(number).astype(array.dtype)
        elif kind == "type":
            array = array.astype(draw(st.sampled_from(["float64", "float16", "int64", "uint8", "bool"])))
        elif kind == "shape":
            shapes = [(), (0,), (1,), (*array.shape, 1), (*array.shape, 0), array.shape[::-1], (array.size,), (3, 17)]
            array = np.resize(array, draw(st.sampled_from(shapes)))
        elif kind == "add":
            arrays[draw(st.sampled_from(["policy.trojan", "\x1b[2J", "aux_optimizer.0.x"]))] = np.zeros(3)
        if kind != "remove":
            arrays[f"{name}\x1b[2J" if kind == "rename" else name] = np.ascontiguousarray(array).reshape(array.shape)
    return safetensors.numpy.save(arrays)


@st.composite
def changed_bytes(draw: Any, content: bytes) -> bytes:
    """Bits flipped, most of them near the beginning, where headers are; a file cut, or longer than it was."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.one_of(st.integers(0, min(len(content), 3000) - 1), st.integers(0, len(content) - 1)))
        changed[place] ^= draw(st.integers(1, 255))
    kind, length = draw(st.sampled_from(["whole", "whole", "cut", "longer"])), draw(st.integers(0, len(content)))
    return bytes(changed[:length] if kind == "cut" else changed + bytes(length) if kind == "longer" else changed)


names = st.sampled_from(sorted(MODELS))


@given(names.flatmap(lambda name: st.tuples(st.just(name), changed_json(json.loads(honest(name).files[DESCRIPTION])))))
@example(("settings", b"[]"))
@example(("settings", b"[" * 2 * 10**6))
@example(("settings", b"9" * 3 * 10**6))
@example(("settings", b'{"format": "sb3_ppg", "x": "' + b"\\u0041" * 10**5))
@example(("settings", "\ufeff{}".encode("utf-16")))
def test_descriptions(changed):
    name, content = changed
    attempt(honest(name), {DESCRIPTION: content})


@given(names.flatmap(lambda name: st.tuples(st.just(name), changed_arrays(honest(name).files[ARRAYS]))))
def test_arrays(changed):
    name, content = changed
    attempt(honest(name), {ARRAYS: content})


@given(
    st.sampled_from([DESCRIPTION, ARRAYS]).flatmap(
        lambda file: st.tuples(st.just(file), changed_bytes(honest("settings").files[file]))
    )
)
@example((ARRAYS, (2**62).to_bytes(8, "little") + b"{}"))
@example((ARRAYS, (3).to_bytes(8, "little") + b"{}"))
def test_bytes(changed):
    file, content = changed
    attempt(honest("settings"), {file: content})


# ---- the watch itself ----

MISDEEDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is written": (lambda folder: (folder / "new").write_text("x"), "to write"),
    "a module is imported": (lambda folder: (sys.modules.pop("stringprep", None), __import__("stringprep")), "import"),
    "a process is started": (lambda folder: subprocess.run(["true"]), "subprocess.Popen"),
    "a socket is opened": (lambda folder: socket.socket().close(), "socket"),
    "code is evaluated": (lambda folder: eval("1 + 1"), "exec|compile"),
    "a generator is used": (lambda folder: random.random(), "generator has changed"),
    "much memory is taken": (lambda folder: np.ones(2**25).sum(), r"took \d+ MB"),
    "a print commands the terminal": (lambda folder: print("\x1b[2J"), "printed"),
    "much time is taken": (lambda folder: sum(range(3 * 10**6)), r"took [\d.]+ s"),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_the_watch_notices(name, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "SECONDS", 0.01 if "time" in name else 60.0)
    misdeed, complaint = MISDEEDS[name]
    gc.collect()  # what other tests have left must not be freed within, where it would hide what is taken
    with pytest.raises(AssertionError, match=complaint), watched(megabytes=30):
        misdeed(tmp_path)

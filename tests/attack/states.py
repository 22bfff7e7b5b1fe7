"""Attacks on the files that ``save_aux_buffer`` and ``save`` write: npz and zip archives."""

import io
import json
import os
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_ppg import PPG, MaskablePPG, ModelFormatError, RecurrentPPG
from sb3_ppg.environments.watched import statistics
from sb3_ppg.errors import NonFiniteError
from sb3_ppg.saving.model_file import checked_model_file
from tests.attack.harness import Attack, Finding
from tests.attack.mutations import Change, changed_array, changed_json, encoded, places
from tests.helpers import MaskedEnv, RandomEnv, image_space

BOX = spaces.Box(-2, 2, (3,), np.float32)
DICT = spaces.Dict({"zebra": BOX, "ant": image_space(3, 36, 36), "mouse": spaces.Discrete(4), "a/b": spaces.MultiBinary(2)})
N_FLIPS = 1500  # of bits, in each file
BUFFER, MODEL = "model.aux_buffer.npz", "model.zip"


class Base(NamedTuple):
    """A training in progress, as files."""

    model: bytes
    buffer: bytes
    algorithm: type[PPG]
    make_env: Callable[[], VecEnv]


def _random(observations: spaces.Space, **normalization: Any) -> VecEnv:
    env = DummyVecEnv([lambda: RandomEnv(observations, spaces.Discrete(3), episode_length=5)] * 2)
    return VecNormalize(env, **normalization) if normalization else env


def _models() -> Iterator[tuple[str, Callable[[], VecEnv], PPG]]:
    tiny: dict[str, Any] = dict(net_arch=[4])
    small: dict[str, Any] = dict(
        n_steps=8, batch_size=8, n_epochs=1, n_policy_iterations=3, n_aux_epochs=1, seed=0, device="cpu"
    )
    make_env = partial(_random, BOX, gamma=0.9)
    yield "ppg", make_env, PPG("MlpPolicy", make_env(), **small, policy_kwargs=tiny)
    make_env = partial(_random, DICT, norm_obs_keys=["zebra"])
    kwargs = dict(tiny, features_extractor_kwargs=dict(cnn_output_dim=2))
    yield "dictionary", make_env, PPG("MultiInputPolicy", make_env(), **small, policy_kwargs=kwargs)
    make_env = partial(_random, spaces.MultiDiscrete([3, 4]))
    kwargs = dict(tiny, lstm_hidden_size=4)
    yield "lstm", make_env, RecurrentPPG("MlpLstmPolicy", make_env(), **small, policy_kwargs=kwargs)
    make_env = partial(DummyVecEnv, [partial(MaskedEnv, BOX, "MultiDiscrete")] * 2)
    replay = dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2))
    yield "masks", make_env, MaskablePPG("MlpPolicy", make_env(), **small, **replay, policy_kwargs=tiny)


def _bases() -> dict[str, Base]:
    bases = {}
    for name, make_env, model in _models():
        with warnings.catch_warnings(action="ignore"):  # of a budget that ends within a phase, as it is to
            model.learn(2 * 8 * 2)
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / MODEL)
            model.save_aux_buffer(Path(folder) / BUFFER)
            files = [(Path(folder) / file).read_bytes() for file in (MODEL, BUFFER)]
        bases[name] = Base(files[0], files[1], type(model), make_env)
    return bases


# ---- what a user does ----

_models_at_hand: dict[str, PPG] = {}  # which no file has changed


def _model(kind: str, base: Base) -> PPG:
    if kind not in _models_at_hand:
        _models_at_hand[kind] = base.algorithm.load(io.BytesIO(base.model), env=base.make_env(), device="cpu")
    return _models_at_hand[kind]


def _write(kind: str, base: Base, content: Callable[[], bytes], folder: Path) -> None:
    _model(kind, base)  # unpickled before anybody watches
    (folder / BUFFER).write_bytes(content())


def _contents(model: PPG) -> Any:
    """All that a file could change."""
    normalizer = model.get_vec_normalize_env()
    numbers = [] if normalizer is None else [(id(rms.mean), id(rms.var), rms.count) for rms in statistics(normalizer).values()]
    return id(model.aux_buffer), len(model.aux_buffer), numbers, model.num_timesteps


def _load(kind: str, folder: Path) -> PPG:
    model = _models_at_hand[kind]
    before = _contents(model)
    try:
        model.load_aux_buffer(folder / BUFFER)
    except ModelFormatError:
        if _contents(model) != before:
            raise Finding("was refused, but changed the model") from None
        raise
    return _models_at_hand.pop(kind)


def _use(model: PPG) -> None:
    """Train to the end of the phase. (Numbers may be too large for it: it says so, and keeps its weights.)"""
    try:
        model.learn(8 * 2, reset_num_timesteps=False)
    except NonFiniteError:
        assert all(parameter.isfinite().all() for parameter in model.policy.parameters())


def _check(folder: Path) -> Path:
    """Up to what unpickles: whoever loads a model's zip file trusts it."""
    with checked_model_file(folder / MODEL, PPG):
        return folder / MODEL


def _train(base: Base, path: Path) -> None:
    PPG.load(path, env=base.make_env(), device="cpu").learn(8 * 2, reset_num_timesteps=False)


# ---- archives ----


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _archive(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", method) as archive,
        warnings.catch_warnings(action="ignore"),
    ):  # of a name that is there twice
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype == object)
    return file.getvalue()


def _array(npy: bytes) -> np.ndarray:
    return np.load(io.BytesIO(npy))


def _with_header(npy: bytes, header: str, version: bytes = b"\x01\x00") -> bytes:
    length = int.from_bytes(npy[8:10], "little")
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text + npy[10 + length :]


def _changed_npy(npy: bytes) -> Iterator[Change]:
    """What no array is."""
    array = _array(npy)
    header = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    for claimed in (10**6, 10**12, 10**18, -1):
        yield (
            f"claims {claimed}",
            lambda claimed=claimed: _with_header(npy, header.replace("'shape': (", f"'shape': ({claimed}, ")),
        )
    for what, text in {
        "object dtype": header.replace(array.dtype.str, "|O"),
        "structured dtype": header.replace(repr(array.dtype.str), "[('a', '<f4')]"),
        "deep header": "[" * 3000,
        "code in the header": "__import__('os').system('true')",
        "other order": header.replace("False", "True"),
        "other bytes first": header.replace("<", ">"),
        "long header": header + " " * 60_000,
    }.items():
        yield what, lambda text=text: _with_header(npy, text)
    yield "version 2", lambda: _with_header(npy, header, b"\x02\x00")
    yield "pickled", lambda: _npy(np.array([1, "x", None], dtype=object))
    for length in (0, 5, 9, 64, len(npy) - 1):
        yield f"only {length} bytes", lambda length=length: npy[:length]
    yield "more bytes", lambda: npy + b"x"
    yield "all ones", lambda: npy[: -array.nbytes] + b"\xff" * array.nbytes


def _changed_members(content: bytes, changes: Callable[[bytes], Iterator[Change]]) -> Iterator[Change]:
    """
    :param content: of an archive
    :param changes: of a member's content
    """
    members = _members(content)

    def others(name: str) -> list[tuple[str, bytes]]:
        return [(other, one) for other, one in members.items() if other != name]

    for name, one in members.items():
        yield f"{name} removed", lambda name=name: _archive(others(name))
        yield f"{name} twice", lambda name=name, one=one: _archive([(name, one), *members.items()])
        for new in (
            name.removesuffix(".npy"),
            f"../{name}",
            f"{name}\x1b[2J",
            name.upper(),
            f"\ud800{name}".encode("utf-8", "replace").decode(),
        ):
            if new != name:
                yield f"{name} renamed {new!r}", lambda name=name, one=one, new=new: _archive([*others(name), (new, one)])
        for change, changed in changes(one):
            yield f"{name} {change}", lambda name=name, changed=changed: _archive([*others(name), (name, changed())])


def _changed_archives(content: bytes) -> Iterator[Change]:
    """As wholes."""
    members = _members(content)
    first = next(iter(members))
    for method in ("ZIP_DEFLATED", "ZIP_BZIP2", "ZIP_LZMA"):
        yield f"by {method}", lambda method=method: _archive([*members.items()], getattr(zipfile, method))
        for size in (10**7, 6 * 10**8):
            for name in (first, "another.npy", "data"):
                yield f"{name} a bomb of {size} by {method}", partial(_bomb, members, name, size, method)
    for name in {first, list(members)[-1], "data"} & members.keys():
        yield f"{name} longer than it claims", partial(_longer_than_it_claims, members, name, members[name])
    yield "many members", lambda: _archive([*members.items(), *((f"{number}.npy", b"") for number in range(20_000))])
    yield "bytes before", lambda: b"x" * 1000 + content
    yield "bytes after", lambda: content + b"x" * 1000
    yield "a long comment", lambda: content[:-2] + struct.pack("<H", 60_000) + b"x" * 60_000
    for bit in range(16):
        yield f"flag {bit}", partial(_with_flag, content, 1 << bit)
    for length in np.linspace(0, len(content) - 1, 50).astype(int):
        yield f"only {length} bytes", lambda length=length: content[:length]
    rng = np.random.default_rng(0)
    directory = content.index(b"PK\x01\x02")
    for number in range(N_FLIPS):
        place = int(rng.integers(directory if number % 2 else 0, len(content)))
        bit = 1 << int(rng.integers(8))
        yield (
            f"bit {bit} of byte {place}",
            lambda place=place, bit=bit: content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :],
        )


def _bomb(members: dict[str, bytes], name: str, size: int, method: str) -> bytes:
    """Zeros, compressed a thousand times and more."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", getattr(zipfile, method), compresslevel=1) as archive:
        for other, content in members.items():
            if other != name:
                archive.writestr(other, content)
        with archive.open(name, "w", force_zip64=True) as member:
            zeros = bytes(2**20)
            for _ in range(size // len(zeros) if method == "ZIP_DEFLATED" else 10):
                member.write(zeros)
    return file.getvalue()


def _longer_than_it_claims(members: dict[str, bytes], name: str, content: bytes) -> bytes:
    """A member of which the directory says as much as is expected, and whose stream goes on with zeros."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for other, one in members.items():
            if other != name:
                archive.writestr(other, one)
        with archive.open(name, "w", force_zip64=True) as member:
            for part in [content, *[bytes(2**20)] * 600]:
                member.write(part)
        archive.getinfo(name).file_size, archive.getinfo(name).CRC = len(content), zlib.crc32(content)
    return file.getvalue()


def _with_flag(content: bytes, flag: int) -> bytes:
    """Set in each header, of the members and of the directory."""
    changed = bytearray(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        places = [info.header_offset + 6 for info in archive.infolist()]
        place = archive.start_dir
        for info in archive.infolist():
            places.append(place + 8)
            place += 46 + len(info.filename.encode()) + len(info.extra)
    for place in places:
        changed[place : place + 2] = (int.from_bytes(changed[place : place + 2], "little") | flag).to_bytes(2, "little")
    return bytes(changed)


# ---- auxiliary buffers ----


def _changed_descriptions(content: bytes) -> Iterator[Change]:
    members = _members(content)
    description = json.loads(_array(members["description.npy"]).tobytes())

    def with_text(text: bytes) -> bytes:
        npy = _npy(np.frombuffer(text, dtype=np.uint8))
        return _archive(
            [*((name, one) for name, one in members.items() if name != "description.npy"), ("description.npy", npy)]
        )

    for path in places(description):
        if path[:2] != ("python", 1) or path[2:] in ((), (0,), (623,), (624,)):
            for change, changed in changed_json(description, path):
                yield change, lambda changed=changed: with_text(changed())
    for position in (625, 10**9, -1, 2**32):
        python = [*description["python"][1][:-1], position]
        yield (
            f"position {position} of Python",
            lambda python=python: with_text(encoded({**description, "python": [3, python, None]})),
        )
    zeros = {**description, "python": [3, [0] * 624 + [624], None]}
    yield "zeros for Python", lambda: with_text(encoded(zeros))
    yield "no JSON", lambda: with_text(b"\xff\xfe{")
    yield "sixteen megabytes of lists", lambda: with_text(b"[" + b"[]," * 5_000_000 + b"[]]")


def _changed_generators(content: bytes) -> Iterator[Change]:
    members = _members(content)

    def changed(name: str, array: np.ndarray) -> bytes:
        return _archive([*((other, one) for other, one in members.items() if other != name), (name, _npy(array))])

    for rest in (
        [1e8, 0, 0],
        [700, 0, 0],
        [625, 0, 0],
        [624, 0, 0],
        [-1, 0, 0],
        [0.5, 0, 0],
        [np.nan] * 3,
        [0, 2, 0],
        [0, 1, np.inf],
    ):
        yield f"numpy/rest {rest}", lambda rest=rest: changed("numpy/rest.npy", np.array(rest, dtype=np.float64))
    state = _array(members["torch/cpu.npy"])
    for place, length in ((8, 4), (12, 4), (16, 8)):  # how many are left, whether it is seeded, the position
        for number in (0, 1, 2, 300, 623, 624, 625, 10**6, 2**31 - 1):
            other = state.copy()
            other[place : place + length] = np.frombuffer(number.to_bytes(length, "little"), dtype=np.uint8)
            yield f"torch/cpu {number} at {place}", lambda other=other: changed("torch/cpu.npy", other)
    for place in range(0, len(state), 64):
        other = state.copy()
        other[place : place + 8] = 255
        yield f"torch/cpu ones at {place}", lambda other=other: changed("torch/cpu.npy", other)
    for name in ("torch/cuda/0", "torch/cuda/999", "torch/cuda/x", "torch/cuda/0001"):
        for array in (np.zeros(16, np.uint8), np.full(16, 255, np.uint8), np.zeros(10**5, np.uint8), np.zeros(16)):
            yield (
                f"{name} {array.dtype} {array.shape}",
                lambda name=name, array=array: _archive([*members.items(), (f"{name}.npy", _npy(array))]),
            )


def _changed_numbers(npy: bytes) -> Iterator[Change]:
    return ((change, lambda changed=changed: _npy(changed())) for change, changed in changed_array(_array(npy)))


# ---- models ----


def _changed_models(content: bytes) -> Iterator[Change]:
    members = _members(content)
    data = json.loads(members["data"])

    def with_data(text: bytes) -> bytes:
        return _archive([(name, text if name == "data" else one) for name, one in members.items()])

    for path in places(data):
        if path[:1] in ((), ("_saved_by",)):
            for change, changed in changed_json(data, path):
                yield change, lambda changed=changed: with_data(changed())
    yield "sixteen megabytes of lists", lambda: with_data(b"[" + b"[]," * 5_000_000 + b"[]]")
    yield "deep", lambda: with_data(b"[" * 10**6)
    for method in ("ZIP_DEFLATED", "ZIP_LZMA"):
        pth = partial(_bomb, _members(members["policy.pth"]), "archive/data/0", 6 * 10**8, method)
        yield (
            f"a bomb in policy.pth by {method}",
            lambda pth=pth: _archive([*((n, c) for n, c in members.items() if n != "policy.pth"), ("policy.pth", pth())]),
        )


FILE_CHANGES: dict[str, Callable[[Path], Any]] = {
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "6 GiB of nothing": lambda path: (path.touch(), os.truncate(path, 6 * 2**30)),
    "empty": Path.touch,
}


def _make(kind: str, base: Base, name: str, make: Callable[[Path], Any], folder: Path) -> None:
    _model(kind, base)
    make(folder / name)


def _write_model(content: Callable[[], bytes], folder: Path) -> None:
    (folder / MODEL).write_bytes(content())


def attacks() -> Iterator[Attack]:
    """Changed archives, members, descriptions and generators of each algorithm's training."""
    bases = _bases()
    for kind, base in bases.items():
        families: dict[str, Iterator[Change]] = {
            "buffer": iter([("nothing changed", lambda base=base: base.buffer)]),
            "buffer, description": _changed_descriptions(base.buffer),
            "buffer, numbers": _changed_members(base.buffer, _changed_numbers),
            "buffer, npy": _changed_members(base.buffer, _changed_npy),
        }
        if kind == "ppg":  # what is the same for all
            families["buffer, generators"] = _changed_generators(base.buffer)
            families["buffer, archive"] = _changed_archives(base.buffer)
        for family, changes in families.items():
            for change, content in changes:
                name = f"{kind}, {family}: {change}"
                yield Attack(name, partial(_write, kind, base, content), partial(_load, kind), _use, sets_generators=True)
    base = bases["ppg"]
    models = {
        "zip": iter([("nothing changed", lambda: base.model)]),
        "zip, archive": _changed_archives(base.model),
        "zip, members": _changed_members(base.model, lambda one: iter([("cut", lambda: one[:-1]), ("empty", lambda: b"")])),
        "zip, description": _changed_models(base.model),
    }
    for family, changes in models.items():
        for change, content in changes:
            yield Attack(f"{family}: {change}", partial(_write_model, content), _check, partial(_train, base))
    for change, make in FILE_CHANGES.items():
        yield Attack(f"files: the buffer is {change}", partial(_make, "ppg", base, BUFFER, make), partial(_load, "ppg"))
        yield Attack(f"files: the model is {change}", partial(_make, "ppg", base, MODEL, make), _check)

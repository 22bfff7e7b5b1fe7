"""Attacks on the folders that ``save_pretrained`` writes."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_ppg import PPG, MaskablePPG, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer
from sb3_ppg.family import FAMILY, with_preset
from sb3_ppg.hub import from_pretrained, load_vec_normalize, save_pretrained
from sb3_ppg.hub.pretrained import ARRAYS, CHECKSUMS, DESCRIPTION, write_checksums
from tests.attack.harness import Attack
from tests.attack.mutations import Change, changed_array, changed_json, encoded, places
from tests.helpers import MaskedEnv, RandomEnv, image_space

BOX = spaces.Box(-2, 2, (3,), np.float32)
DICT = spaces.Dict({"zebra": BOX, "ant": image_space(3, 36, 36), "mouse": spaces.Discrete(4)})
ACTIONS = spaces.Box(np.array([-1, -2], np.float32), np.array([1, 5], np.float32))
SMALL: dict[str, Any] = dict(n_steps=8, batch_size=8, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")
UNCHANGED = "nothing changed"  # which has to work, or else the changes would be refused for nothing
LITTLE = 64  # steps: two phases of two environments
TRAINABLE_SAMPLES, TRAINABLE_EPOCHS = 2000, 20  # the largest rollout, and the most epochs, that are worth waiting for


class Base(NamedTuple):
    """A model that is well, as files and in memory."""

    files: dict[str, bytes]
    make_env: Callable[[], VecEnv]


def _two(make: Callable[[], Any]) -> VecEnv:
    return DummyVecEnv([make] * 2)


def _random(observations: spaces.Space, actions: spaces.Space) -> Callable[[], VecEnv]:
    return lambda: _two(lambda: RandomEnv(observations, actions))


def _masked() -> VecEnv:
    return _two(lambda: MaskedEnv(BOX, "MultiDiscrete"))


def _models() -> Iterator[tuple[str, PPG, Callable[[], VecEnv]]]:
    """Of each algorithm, and together with each kind of setting."""
    tiny = dict(net_arch=[4])
    make = _random(BOX, spaces.Discrete(2))
    arguments: dict[str, Any] = dict(learning_rate=LinearSchedule(1e-3, 1e-5, 0.5), n_value_epochs=1, target_kl=5.0)
    yield "plain", PPG("MlpPolicy", VecNormalize(make()), **SMALL, **arguments, policy_kwargs=tiny), make
    make = _random(BOX, ACTIONS)
    kwargs = dict(tiny, squash_output=True, optimizer_class=th.optim.AdamW, optimizer_kwargs=dict(amsgrad=True))
    yield "continuous", PPG("MlpPolicy", make(), **SMALL, use_sde=True, policy_kwargs=kwargs), make
    make = _random(BOX, spaces.Discrete(3))
    kwargs = dict(tiny, lstm_hidden_size=4, n_lstm_layers=2)
    yield "lstm", RecurrentPPG("MlpLstmPolicy", make(), **SMALL, policy_kwargs=kwargs), make
    yield "masks", MaskablePPG("MlpPolicy", _masked(), **SMALL, policy_kwargs=tiny), _masked
    make = _random(DICT, spaces.MultiBinary(2))
    kwargs = dict(tiny, features_extractor_kwargs=dict(cnn_output_dim=2), optimizer_class=th.optim.SGD)
    kwargs["optimizer_kwargs"] = dict(momentum=0.5)
    venv = VecNormalize(make(), norm_obs_keys=["zebra"])
    yield "dictionary", PPG("MultiInputPolicy", venv, **SMALL, policy_kwargs=kwargs), make
    make = _random(spaces.MultiDiscrete([3, 4]), spaces.Box(-1, 1, (2,)))
    kwargs = dict(tiny, architecture="shared", optimizer_class=th.optim.RMSprop)
    kwargs["optimizer_kwargs"] = dict(momentum=0.5, centered=True)
    arguments = dict(rollout_buffer_class=NormalizedRewardRolloutBuffer)
    arguments["rollout_buffer_kwargs"] = dict(reward_normalizer=RewardNormalizer())
    yield "rewards", PPG("MlpPolicy", make(), **SMALL, **arguments, policy_kwargs=kwargs), make
    make = _random(BOX, spaces.Discrete(3))
    for name in ("ppg_ewma", "ppg_replay", "ddcpg", "idaac", "dna"):
        arguments = {**SMALL, "policy_kwargs": tiny}
        if name in ("ddcpg", "idaac"):
            arguments["objective_kwargs"] = dict(hidden_size=4)
        if name == "ddcpg":
            arguments["aux_buffer_kwargs"] = dict(capacity=3)
        if name == "idaac":
            arguments["n_aux_epochs"] = 0
        yield name, PPG("MlpPolicy", make(), **with_preset(name, arguments)), make


def _bases() -> dict[str, Base]:
    bases = {}
    for name, model, make_env in _models():
        model.learn(LITTLE)
        with tempfile.TemporaryDirectory() as folder:
            save_pretrained(model, folder)
            bases[name] = Base({file.name: file.read_bytes() for file in Path(folder).iterdir()}, make_env)
    return bases


# ---- what a user does ----


def _load(make_env: Callable[[], VecEnv] | None, folder: Path) -> PPG:
    return from_pretrained(folder, None if make_env is None else make_env(), "cpu")


def _use(model: PPG) -> None:
    """Predict; and learn, if there is an environment and a phase is short."""
    env = model.get_env()
    space = model.observation_space
    space.seed(0)
    observations: Any = space.sample() if env is None else env.reset()
    model.predict(observations)
    epochs = max(model.n_epochs, model.n_value_epochs or 0, model.n_aux_epochs)
    kept = max(model.n_policy_iterations, model.aux_buffer.capacity or 0, model.replay.capacity)
    fits = kept <= 10**6  # else this machine may not have the memory of a phase, which `learn` says
    short = model.n_steps * model.n_envs <= TRAINABLE_SAMPLES and epochs <= TRAINABLE_EPOCHS
    if env is not None and fits and short:
        model.learn(max(LITTLE, model.n_steps * model.n_envs), reset_num_timesteps=False)
        model.predict(env.reset())


def _normalize(loaded: VecNormalize) -> None:
    loaded.normalize_obs(loaded.venv.observation_space.sample())


# ---- what strangers do ----


def _write(base: Base, name: str, content: Callable[[], bytes] | None, folder: Path) -> None:
    """The files with another content for one of them, and checksums to match."""
    for file, before in base.files.items():
        (folder / file).write_bytes(content() if content is not None and file == name else before)
    write_checksums(folder, [DESCRIPTION, ARRAYS])


def _is_worth_it(path: tuple[str | int, ...]) -> bool:
    """One of the many states of an optimizer stands for all, and the third optimizer for the second."""
    optimizer = path[1:2] if path[:1] == ("optimizers",) else ()
    return optimizer != ("value_optimizer",) and not (path[2:3] == ("state",) and path[3:4] not in ((), ("0",)))


def _changed_descriptions(base: Base) -> Iterator[tuple[tuple[str | int, ...], Change]]:
    """With the place of the change."""
    description = json.loads(base.files[DESCRIPTION])
    yield (), (UNCHANGED, lambda: encoded(description))
    for path in filter(_is_worth_it, places(description)):
        for change in changed_json(description, path):
            yield path, change


def _changed_arrays(base: Base) -> Iterator[Change]:
    arrays = safetensors.numpy.load(base.files[ARRAYS])

    def others(name: str) -> dict[str, np.ndarray]:
        return {other: value for other, value in arrays.items() if other != name}

    for name, array in arrays.items():
        for change, changed in changed_array(array):
            yield f"{name} {change}", lambda name=name, changed=changed: _saved({**arrays, name: changed()})
        yield f"{name} removed", lambda name=name: _saved(others(name))
        yield f"{name} renamed", lambda name=name, array=array: _saved({**others(name), f"{name}\x1b[2J": array})
    yield UNCHANGED, lambda: _saved(arrays)
    yield "another array", lambda: _saved({**arrays, "policy.trojan": np.zeros(3)})
    yield "many arrays", lambda: _saved({str(number): np.zeros(0) for number in range(50_000)})


def _saved(arrays: dict[str, np.ndarray]) -> bytes:
    return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def _with_header(content: bytes, header: bytes, length: int | None = None) -> bytes:
    """Arrays with another header, and another claim of its length."""
    before = int.from_bytes(content[:8], "little")
    header += b" " * (-len(header) % 8)
    return (len(header) if length is None else length).to_bytes(8, "little") + header + content[8 + before :]


def _changed_headers(base: Base) -> Iterator[Change]:
    content = base.files[ARRAYS]
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    yield UNCHANGED, lambda: _with_header(content, encoded(header))
    first = min(header, key=lambda name: header[name]["data_offsets"])
    for path in [(), (first,), *[(first, key) for key in header[first]], (first, "data_offsets", 1)]:
        for change, changed in changed_json(header, path):
            yield change, lambda changed=changed: _with_header(content, changed())
    for claimed in (0, 1, 7, 8, length - 1, length + 1, len(content), 2**31, 2**62, 2**64 - 1):
        yield f"length {claimed}", lambda claimed=claimed: _with_header(content, content[8 : 8 + length], claimed)


TEXTS = ["[" * 10**7, "[]," * 10**6, "9" * 10**7, "0." + "1" * 10**7, '{"":0,' * 10**5, '"' + "\\u0041" * 10**6, "[[]" * 10**6]


def _changed_descriptions_bytes(content: bytes) -> Iterator[Change]:
    yield from _changed_bytes(content)
    for text in TEXTS:
        yield f"{text[:10]} and so on", text.encode
    yield "in another encoding", lambda: content.decode().encode("utf-16")


def _changed_arrays_bytes(content: bytes) -> Iterator[Change]:
    yield from _changed_bytes(content)
    for text in TEXTS:
        yield f"{text[:10]} and so on", lambda text=text: _with_header(content, text.encode())


def _changed_bytes(content: bytes) -> Iterator[Change]:
    generator = np.random.default_rng(0)
    for length in (0, 1, 7, 8, 100, len(content) // 2, len(content) - 1):
        yield f"cut at {length}", lambda length=length: content[:length]
    yield "longer", lambda: content + b"\0"
    for place in generator.integers(min(len(content), 8000), size=300):
        bit = 1 << int(generator.integers(8))
        changed = bytes([content[place] ^ bit])
        yield (
            f"bit {bit} of byte {place}",
            lambda place=place, changed=changed: content[:place] + changed + content[place + 1 :],
        )


def _claims(base: Base) -> Iterator[Change]:
    """Descriptions of very much, in few bytes."""

    def described(**changes: Any) -> Callable[[], bytes]:
        changed = json.loads(base.files[DESCRIPTION])
        changed["arguments"].update({name: value for name, value in changes.items() if name in changed["arguments"]})
        changed.update({name: value for name, value in changes.items() if name in changed})
        return lambda: encoded(changed)

    for power in range(3, 19):
        yield f"rollout of 10^{power}", described(n_steps=10**power, batch_size=10**power)
        yield f"rollout of 10^{power} - 1", described(n_steps=10**power - 1, batch_size=10**power // 2)
        yield f"10^{power} environments", described(n_envs=10**power)
    description = json.loads(base.files[DESCRIPTION])
    kwargs = description["arguments"]["policy_kwargs"]
    for size in ([10**7, 10**8], [1] * 10_000, [3000, 3000], [20_000], [1] * 300, {"pi": [1] * 5000, "vf": []}):
        yield f"net_arch {str(size)[:20]} of {len(size)}", described(policy_kwargs={**kwargs, "net_arch": size})
    for name, value in (("lstm_hidden_size", 10**5), ("n_lstm_layers", 10**6), ("lstm_hidden_size", 600)):
        yield f"{name} {value}", described(policy_kwargs={**kwargs, name: value})

    def with_keys(n_keys: int) -> bytes:
        keys = [[str(key), {"$space": ["Discrete", {"n": 2, "start": 0}]}] for key in range(n_keys)]
        return described(spaces={**description["spaces"], "observation": {"$space": ["Dict", keys]}})()

    for n_keys in (100, 3000, 30_000, 200_000):
        yield f"{n_keys} keys", partial(with_keys, n_keys)


# ---- files that are none ----


def _replace_by_link(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _replace_by(make: Callable[[Path], Any], path: Path) -> None:
    path.unlink()
    make(path)


def _sparse_arrays(path: Path) -> None:
    """Arrays of 6 GiB of zeros, in a few kilobytes on the disk."""
    header = json.dumps({"policy.log_std": {"dtype": "F32", "shape": [3 * 2**29], "data_offsets": [0, 6 * 2**30]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 6 * 2**30)


FILE_CHANGES: dict[str, Callable[[Path], Any]] = {
    "a link": _replace_by_link,
    "a link to a device": partial(_replace_by, lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": partial(_replace_by, lambda path: path.symlink_to(path)),
    "a pipe": partial(_replace_by, os.mkfifo),
    "a folder": partial(_replace_by, Path.mkdir),
    "not there": Path.unlink,
    "6 GiB of nothing": lambda path: os.truncate(path, 6 * 2**30),
    "6 GiB of zeros": _sparse_arrays,
}


def _write_and_change(base: Base, name: str, change: Callable[[Path], Any], folder: Path) -> None:
    _write(base, name, None, folder)
    change(folder / name)


def attacks() -> Iterator[Attack]:
    """Changed descriptions, arrays, bytes and files of each model; of the family, what PPG's models do not have."""
    for kind, base in _bases().items():
        for attack in _attacks_on(kind, base):
            own = any(word in attack.name for word in ("objective", "objective", "adversary", UNCHANGED))
            if own or kind not in FAMILY:
                yield attack


def _attacks_on(kind: str, base: Base) -> Iterator[Attack]:
    load_with_env, load_alone = partial(_load, base.make_env), partial(_load, None)
    yield Attack(f"{kind}: {UNCHANGED}", partial(_write, base, "", None), load_with_env, _use)
    for path, (change, content) in _changed_descriptions(base):
        write = partial(_write, base, DESCRIPTION, content)
        load = load_alone if path[:1] in (("spaces",), ("n_envs",)) else load_with_env
        yield Attack(f"{kind}, description: {change}", write, load, _use)
        if path[:1] == ("vec_normalize",):
            yield Attack(f"{kind}, load_vec_normalize: {change}", write, load_vec_normalize, _normalize)
    changes: dict[str, tuple[str, Iterator[Change]]] = {
        "arrays": (ARRAYS, _changed_arrays(base)),
        "claims": (DESCRIPTION, _claims(base)),  # alone: an environment would say how many there are, and what is seen
    }
    if kind == "plain":  # what is the same for all
        changes["header"] = (ARRAYS, _changed_headers(base))
        changes["bytes of the arrays"] = (ARRAYS, _changed_arrays_bytes(base.files[ARRAYS]))
        changes["bytes of the description"] = (DESCRIPTION, _changed_descriptions_bytes(base.files[DESCRIPTION]))
    for family, (file, changed) in changes.items():
        for change, content in changed:
            load = load_alone if family == "claims" else load_with_env
            yield Attack(f"{kind}, {family}: {change}", partial(_write, base, file, content), load, _use)
    for name in (DESCRIPTION, ARRAYS, CHECKSUMS):
        for change, change_file in FILE_CHANGES.items():
            write = partial(_write_and_change, base, name, change_file)
            yield Attack(f"{kind}, files: {name} is {change}", write, load_alone)

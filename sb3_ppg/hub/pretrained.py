"""
Models as plain data in a folder, without pickle.

``model.json`` holds the class, its arguments, the spaces, counters, optimizer settings, ``VecNormalize``'s settings and the
versions; ``model.safetensors`` all arrays; ``SHA256SUMS`` what the files have to be, as ``sha256sum`` writes it. Reading them
never unpickles, imports or evaluates what they say, starts no compiler, and writes nothing. What is read takes no more time
and memory than a model of that description needs, and leaves the global random generators as they were.
"""

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from safetensors.torch import save
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces, get_device
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, unwrap_vec_normalize

from sb3_ppg.arguments import argument_names, is_number
from sb3_ppg.buffers.checks import check_auxiliary_batches
from sb3_ppg.environments.watched import only_normalizer
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.family import ALGORITHMS
from sb3_ppg.hub.array_file import ArrayFile
from sb3_ppg.hub.plain_data import Decoder, Encoder, exactly, set_statistics
from sb3_ppg.hub.plausibility import (
    SETTINGS,
    AllocationLimit,
    check_action_space,
    check_plausible,
    check_rollout_size,
    policy_kwargs,
    try_out,
)
from sb3_ppg.hub.saved_optimizers import describe_optimizer, load_optimizer, read_optimizer
from sb3_ppg.hub.untrusted import MAX_TEXT_BYTES, parse_json, read_bytes, regular_file
from sb3_ppg.objectives import objective_name
from sb3_ppg.ppg import PPG
from sb3_ppg.saving.files import atomic_writes
from sb3_ppg.saving.generators import generators_kept
from sb3_ppg.saving.model_file import saved_by

SCHEMA_VERSION = 1
DESCRIPTION, ARRAYS, CHECKSUMS = "model.json", "model.safetensors", "SHA256SUMS"
MAX_SUMS_BYTES = 2**18
PARTS = {
    "format",
    "schema_version",
    "versions",
    "algorithm",
    "policy",
    "arguments",
    "spaces",
    "n_envs",
    "counters",
    "optimizers",
    "vec_normalize",
}

# Arguments of the algorithm that belong to a machine or a run, not to the model; of ``aux_buffer_kwargs`` all but the capacity
NOT_SHARED = {
    "policy",
    "env",
    "device",
    "verbose",
    "tensorboard_log",
    "stats_window_size",
    "_init_setup_model",
}
COUNTERS = [
    "num_timesteps",
    "_total_timesteps",
    "_num_timesteps_at_start",
    "_current_progress_remaining",
    "_episode_num",
    "_n_updates",
    "_n_aux_phases",
    "_n_stored_rollouts",
]
LATER_COUNTERS = ["_n_rollouts", "_n_replayed_rollouts"]  # 0 in the first files
NETWORKS = ("policy", "objective")  # attributes whose weights are shared: the policy, and what its objective owns
VEC_NORMALIZE = ["training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon", "norm_obs_keys"]


def save_pretrained(model: PPG, folder: str | Path, custom_objects: Mapping[str, Any] | None = None) -> None:
    """
    Write a model as plain data: predictions and the continued training of what is read again are the same, bit for bit.
    As in SB3's zip files, the rollouts of an incomplete phase are not in it.

    Example::

        from sb3_ppg import PPG, hub

        hub.save_pretrained(PPG("MlpPolicy", "CartPole-v1").learn(10_000), "my_model")
        model = hub.from_pretrained("my_model", env="CartPole-v1").learn(10_000)

    :param model: what to write
    :param folder: made if it is not there; ``model.json``, ``model.safetensors`` and ``SHA256SUMS`` are written there, and
        take the place of those before when they are complete
    :param custom_objects: what is not plain data, such as a features extractor of yours, by name; readers have to give it, too
    :raises ModelFormatError: if something else of it is not plain data, or beyond what readers accept
    :raises ArgumentError: if several ``VecNormalize`` are around its environments
    :raises OSError: if they cannot be written; the files that were there are left as they were
    """
    encoder = Encoder(custom_objects)
    check_plausible(model)
    check_rollout_size(model)
    description = {
        "format": "sb3_ppg",
        "schema_version": SCHEMA_VERSION,
        "versions": _versions(),
        "algorithm": encoder.encode(type(model), "algorithm"),
        "policy": encoder.encode(model.policy_class, "policy"),
        "arguments": {name: encoder.encode(_argument(model, name), name) for name in _arguments(type(model))},
        "spaces": {
            "observation": encoder.encode(model.observation_space, "observation_space"),
            "action": encoder.encode(model.action_space, "action_space"),
        },
        "n_envs": model.n_envs,
        "counters": {name: encoder.encode(getattr(model, name), name) for name in (*COUNTERS, *LATER_COUNTERS)},
        "optimizers": {name: describe_optimizer(recursive_getattr(model, name), encoder, name) for name in _optimizers(model)},
        "vec_normalize": _describe_vec_normalize(only_normalizer(model.env), encoder),
    }
    text = json.dumps(description, indent=1, allow_nan=False)
    parse_json(text.encode(), "What describes this model")  # readers have limits
    for name, tensor in _weights(model).items():
        encoder.encode(tensor, name)  # known by their names, they need no place in the description

    folder = Path(folder)
    together = [folder / name for name in (DESCRIPTION, ARRAYS, CHECKSUMS)]
    with atomic_writes(together) as (new_text, new_arrays, new_sums):
        new_text.write_bytes(text.encode())
        new_arrays.write_bytes(save(encoder.arrays))  # safetensors' own errors would not be OSErrors
        new_sums.write_bytes(_checksums({DESCRIPTION: new_text, ARRAYS: new_arrays}))


def from_pretrained(
    folder: str | Path,
    env: GymEnv | str | None = None,
    device: th.device | str = "auto",
    *,
    custom_objects: Mapping[str, Any] | None = None,
    compile_mode: str | None = None,
    trust_pickle: bool = False,
) -> PPG:
    """
    Read a model that ``save_pretrained`` has written. Nothing that the files say is imported, evaluated or unpickled.

    :param folder: where its files are, or an SB3 zip file. Links are refused, but for those of the Hub's client
    :param env: to go on training, or to predict for; or its name. If the model was trained under ``VecNormalize`` and this has
        none, it is put under one with the saved statistics: ``model.get_env()`` is what to step
    :param device: where to put it
    :param custom_objects: what is not plain data, by the names that its author gave
    :param compile_mode: of the policy, see ``PhasicActorCriticPolicy``. What the author used is ignored: a file does not
        decide that a compiler runs
    :param trust_pickle: whether an SB3 zip file may be loaded if there is nothing else. It can run any code of its author's
    :return: the model
    :raises ModelFormatError: if the files are damaged, not what this version knows, or need what was not given
    """
    folder, on = Path(folder), get_device(device)
    with generators_kept():  # which vectorised environments draw seeds from
        venv = None if env is None else _as_vec_env(env)
    if not os.path.lexists(folder / DESCRIPTION):
        return _from_sb3_zip(folder, venv, on, custom_objects, trust_pickle)
    return read_model(folder, venv, on, custom_objects, compile_mode)[0]


def load_vec_normalize(
    folder: str | Path, venv: VecEnv | None = None, *, custom_objects: Mapping[str, Any] | None = None
) -> VecNormalize:
    """
    The normalisation under which a model was trained, for what ``from_pretrained`` cannot do: put it inside other wrappers, or
    ``normalize_obs()`` alone.

    :param folder: where the model's files are
    :param venv: the environments to normalise. None: some that have spaces, but cannot be stepped
    :param custom_objects: see ``from_pretrained``
    :return: them, with the saved statistics
    :raises ModelFormatError: if the files are damaged, the model was trained without, or the observations differ
    """
    model, saved = read_model(Path(folder), custom_objects=custom_objects)
    if saved is None:
        raise ModelFormatError(f"{folder}: this model was trained without VecNormalize")
    with _distrust(Path(folder)):
        return vec_normalize_of(model, saved, venv)


def read_model(
    folder: Path,
    venv: VecEnv | None = None,
    device: th.device | str = "cpu",
    custom_objects: Mapping[str, Any] | None = None,
    compile_mode: str | None = None,
) -> tuple[PPG, dict[str, Any] | None]:
    """
    :param folder: where the model's files are
    :param venv: see ``from_pretrained``
    :param device: where to put it
    :param custom_objects: see ``from_pretrained``
    :param compile_mode: see ``from_pretrained``
    :return: the model; what the file says of ``VecNormalize``, if there was one
    :raises ModelFormatError: see ``from_pretrained``
    """
    device = get_device(device)
    sums = read_sums(folder)
    with _distrust(folder), generators_kept(), regular_file(folder / ARRAYS) as file:
        description = _described(
            parse_json(read_checked(folder, DESCRIPTION, sums), folder / DESCRIPTION), folder / DESCRIPTION
        )
        decoder = Decoder(ArrayFile(folder / ARRAYS, file, _sum_of(ARRAYS, sums, folder)), custom_objects)
        vec_normalize = _vec_normalize(decoder, description["vec_normalize"])
        model = _build(description, decoder, venv, vec_normalize, device, compile_mode)
        _load_weights(model, description, decoder)
        try_out(model)
        if venv is not None and model.seed is not None:
            venv.seed(model.seed)  # as SB3
    return model, vec_normalize


def vec_normalize_of(model: PPG, saved: dict[str, Any], venv: VecEnv | None = None) -> VecNormalize:
    """
    :param model: that was read
    :param saved: what the file says of ``VecNormalize``, as ``read_model`` returns it
    :param venv: see ``load_vec_normalize``
    :return: the environments, with the saved statistics
    :raises ModelFormatError: if the statistics are not for them
    """
    if venv is None:
        venv = DummyVecEnv([lambda: _SpacesOnly(saved["observation_space"], model.action_space)])
    return _wrap_in_vec_normalize(venv, saved)


class _SpacesOnly(gym.Env):
    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space


# ---- checksums ----


def write_checksums(folder: Path, names: list[str]) -> None:
    """
    Write ``SHA256SUMS``.

    :param folder: where it will be
    :param names: of files there
    """
    (folder / CHECKSUMS).write_bytes(_checksums({name: folder / name for name in names}))


def _checksums(files: Mapping[str, Path]) -> bytes:
    """As ``sha256sum`` writes it, of files that are to have these names."""
    return "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files)).encode()


def read_checked(folder: Path, name: str, sums: Mapping[str, str], limit: int = MAX_TEXT_BYTES) -> bytes:
    """
    :param folder: where the files are
    :param name: of the file
    :param sums: as ``read_sums`` returns them
    :param limit: the most bytes that it may have
    :return: its content, once it is what ``SHA256SUMS`` says
    :raises ModelFormatError: if it is not, is missing, too large or no regular file
    """
    content = read_bytes(folder / name, limit)
    if hashlib.sha256(content).hexdigest() != _sum_of(name, sums, folder):
        raise ModelFormatError(f"{folder / name} is damaged, or {CHECKSUMS} is: they do not agree")
    return content


def read_sums(folder: Path) -> dict[str, str]:
    """
    :param folder: where ``SHA256SUMS`` is
    :return: checksums by name of the file
    :raises ModelFormatError: if it is damaged, missing, too large or no regular file
    """
    sums = {}
    for line in read_bytes(folder / CHECKSUMS, MAX_SUMS_BYTES).splitlines(keepends=True):
        match = re.fullmatch(rb"([0-9a-f]{64})  ([^\n]+)\n", line)
        if match is None:
            raise ModelFormatError(f"{folder / CHECKSUMS} is damaged")
        sums[match[2].decode("utf-8", "replace")] = match[1].decode()
    return sums


def _sum_of(name: str, sums: Mapping[str, str], folder: Path) -> str:
    if name not in sums:
        raise ModelFormatError(f"{folder / CHECKSUMS} is damaged: it says nothing of {name}")
    return sums[name]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# ---- writing ----


def _arguments(cls: type[PPG]) -> list[str]:
    return [name for name in argument_names(cls) if name not in NOT_SHARED]


def _argument(model: PPG, name: str) -> Any:
    if name == "objective":
        return objective_name(model.objective_class)
    if not hasattr(model, name):
        raise ModelFormatError(f"{type(model).__name__} has no attribute {name!r}, which would say what its argument was")
    if name == "aux_buffer_kwargs":
        return {key: value for key, value in (model.aux_buffer_kwargs or {}).items() if key == "capacity"} or None
    return getattr(model, name)


def _optimizers(model: PPG) -> list[str]:
    return [name for name in model._get_torch_save_params()[0] if name not in NETWORKS]


def _weights(model: PPG) -> dict[str, th.Tensor]:
    """Parameters and buffers of all networks."""
    networks = {name: getattr(model, name) for name in NETWORKS}
    return {f"{name}.{key}": tensor for name, network in networks.items() for key, tensor in network.state_dict().items()}


def _versions() -> dict[str, str]:
    packages = ("sb3-ppg", "stable-baselines3", "torch", "gymnasium", "numpy")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def _describe_vec_normalize(env: VecNormalize | None, encoder: Encoder) -> Any:
    if env is None:
        return None
    return encoder.encode(
        {
            "settings": {name: getattr(env, name) for name in VEC_NORMALIZE},
            "observation_space": env.venv.observation_space,
            "statistics": [
                [key, {"mean": np.asarray(rms.mean), "var": np.asarray(rms.var), "count": float(rms.count)}]
                for key, rms in _statistics(env)
            ],
        },
        "vec_normalize",
    )


def _statistics(env: VecNormalize) -> list[tuple[str | None, RunningMeanStd]]:
    """Of the returns, then of the observations, with the keys of a dictionary."""
    observations = env.obs_rms if env.norm_obs else {}
    pairs = observations.items() if isinstance(observations, dict) else [(None, observations)]
    return [(None, env.ret_rms), *pairs]


# ---- reading ----


@contextmanager
def _distrust(folder: Path) -> Iterator[None]:
    """Whatever a stranger thought of ends in one error."""
    try:
        yield
    except ModelFormatError:
        raise
    except Exception as error:
        raise ModelFormatError(f"{folder}: no model can be made of it ({type(error).__name__}: {error})") from error


def _described(description: Any, file: Path) -> dict[str, Any]:
    """The description, if it is one and of this version."""
    if not isinstance(description, dict) or description.get("format") != "sb3_ppg":
        raise ModelFormatError(f"{file} is not a model of sb3_ppg")
    if type(description.get("schema_version")) is not int or description["schema_version"] != SCHEMA_VERSION:
        raise ModelFormatError(
            f"{file} has schema version {description.get('schema_version')!r}, this sb3_ppg "
            f"({version('sb3-ppg')}) knows {SCHEMA_VERSION}: install the version that wrote it, {description.get('versions')}"
        )
    exactly(description, PARTS, str(file))
    versions = description["versions"]
    if not isinstance(versions, dict) or not all(isinstance(one, str) for one in versions.values()):
        raise ModelFormatError(f"{file}: its versions are not named")
    return description


def _build(
    description: dict[str, Any],
    decoder: Decoder,
    venv: VecEnv | None,
    vec_normalize: dict[str, Any] | None,
    device: th.device,
    compile_mode: str | None,
) -> PPG:
    """The model, with fresh weights, as its constructor makes it."""
    own_objects = list(decoder.custom_objects.values())
    cls = decoder.decode(description["algorithm"], "algorithm")
    policy_class = decoder.decode(description["policy"], "policy")
    if not (isinstance(cls, type) and issubclass(cls, PPG)):
        raise ModelFormatError(f"algorithm: {cls} is not PPG")
    arguments = {name: decoder.decode(value, name) for name, value in description["arguments"].items()}
    if unknown := arguments.keys() - set(_arguments(cls)):
        raise ModelFormatError(f"arguments: {cls.__name__} has no {sorted(unknown)}")
    if not (arguments.get("aux_buffer_kwargs") or {}).keys() <= {"capacity"}:
        raise ModelFormatError("aux_buffer_kwargs: where rollouts are kept is not the file's choice")
    arguments["policy_kwargs"] = policy_kwargs(arguments.get("policy_kwargs", {}), own_objects, compile_mode)
    model = cls(policy_class, None, device=device, _init_setup_model=False, **arguments)  # type: ignore[arg-type]
    described_spaces = exactly(description["spaces"], {"observation", "action"}, "spaces")
    model.observation_space = decoder.space(described_spaces["observation"], "spaces.observation")
    model.action_space = decoder.space(described_spaces["action"], "spaces.action")
    check_action_space(model.action_space, cls)
    model.n_envs = _count(description, "n_envs")
    check_plausible(model)
    check_rollout_size(model)
    model.check_arguments()
    if venv is not None:
        _set_env(model, venv, vec_normalize)
        check_rollout_size(model)  # it may have more environments
    # A caller's own classes may allocate what they like
    own_classes = any(isinstance(custom, type) for custom in own_objects)
    seed, model.seed = model.seed, None  # for nothing to be seeded
    with nullcontext() if own_classes else AllocationLimit(decoder.arrays):
        model._setup_model()
    model.seed = seed
    check_auxiliary_batches(model, description["n_envs"])
    _set_counters(model, description["counters"])
    return model


def _set_counters(model: PPG, described: dict[str, Any]) -> None:
    """How far the training was; what the model is to have stored has to fit."""
    counters = {**dict.fromkeys(LATER_COUNTERS, 0), **described}
    exactly(counters, {*COUNTERS, *LATER_COUNTERS}, "counters")
    most = max(model.n_policy_iterations, model.aux_buffer.capacity or 0)
    if isinstance(counters["_n_stored_rollouts"], int) and counters["_n_stored_rollouts"] > most:
        raise ModelFormatError(f"_n_stored_rollouts: {most} rollouts are stored at most")
    if _count(counters, "_n_replayed_rollouts") > model.replay.capacity:
        raise ModelFormatError(f"_n_replayed_rollouts: {model.replay.capacity} rollouts are replayed at most")
    for name in (*COUNTERS, *LATER_COUNTERS):
        setattr(model, name, _progress(counters, name) if name == "_current_progress_remaining" else _count(counters, name))


MAX_COUNT = 2**53


def _count(data: dict[str, Any], name: str) -> int:
    if type(data[name]) is not int or not 0 <= data[name] <= MAX_COUNT:
        raise ModelFormatError(f"{name}: {data[name]!r} is not an integer of at least 0, or too large")
    return data[name]


def _progress(data: dict[str, Any], name: str) -> float:
    if not (is_number(data[name]) and 0 <= data[name] <= 1):
        raise ModelFormatError(f"{name}: {data[name]!r} is not a number from 0 to 1")
    return data[name]


def _load_weights(model: PPG, description: dict[str, Any], decoder: Decoder) -> None:
    """All is read, and compared with its checksum, before the model gets any of it."""
    weights = {name: decoder.expected_array({"$array": name}, name, fresh) for name, fresh in _weights(model).items()}
    names = _optimizers(model)
    optimizers = {name: recursive_getattr(model, name) for name in names}
    described = exactly(description["optimizers"], set(names), "optimizers")
    states = {name: read_optimizer(optimizers[name], described[name], decoder, name) for name in names}
    if decoder.unread:
        raise ModelFormatError(f"{ARRAYS}: nothing says what {sorted(decoder.unread)} is for")
    decoder.arrays.check()
    for network in NETWORKS:
        own = {name.removeprefix(f"{network}."): array for name, array in weights.items() if name.startswith(f"{network}.")}
        getattr(model, network).load_state_dict(own)
    for name in names:
        schedule = model.aux_lr_schedule if name == "aux_optimizer" else model.lr_schedule
        load_optimizer(optimizers[name], states[name], max(schedule(1.0), schedule(0.0)), name)
    if model.use_sde:
        model.policy.reset_noise()  # on the right device, as SB3 does


# ---- VecNormalize ----


def _vec_normalize(decoder: Decoder, data: Any) -> dict[str, Any] | None:
    """What ``_describe_vec_normalize`` wrote. Its statistics are checked where the environment says of what they are."""
    saved = decoder.decode(data, "vec_normalize")
    if saved is None:
        return None
    exactly(saved, {"settings", "observation_space", "statistics"}, "vec_normalize")
    for name, value in exactly(saved["settings"], set(VEC_NORMALIZE), "vec_normalize.settings").items():
        if not SETTINGS[name](value):
            raise ModelFormatError(f"vec_normalize.settings.{name}: {value!r} cannot work")
    space = saved["observation_space"]
    if not isinstance(space, spaces.Space):
        raise ModelFormatError(f"vec_normalize.observation_space: {space!r} is not a space")
    return saved


def _set_env(model: PPG, venv: VecEnv, vec_normalize: dict[str, Any] | None) -> None:
    """As SB3's ``load``."""
    if vec_normalize is not None and unwrap_vec_normalize(venv) is None:
        if venv.observation_space != vec_normalize["observation_space"]:
            venv = model._wrap_env(venv, verbose=0)  # images may have been transposed inside
        venv = _wrap_in_vec_normalize(venv, vec_normalize)
    venv = model._wrap_env(venv, verbose=0)
    try:
        check_for_correct_spaces(venv, model.observation_space, model.action_space)
    except ValueError as error:
        raise ModelFormatError(f"`env` is not what the model was trained in: {error}") from error
    model.env, model.n_envs = venv, venv.num_envs
    model._vec_normalize_env = unwrap_vec_normalize(venv)


def _as_vec_env(env: GymEnv | str) -> VecEnv:
    return env if isinstance(env, VecEnv) else make_vec_env(env if isinstance(env, str) else lambda: env)


def _wrap_in_vec_normalize(venv: VecEnv, saved: dict[str, Any]) -> VecNormalize:
    settings = saved["settings"]
    if settings["norm_obs"] and venv.observation_space != saved["observation_space"]:
        raise ModelFormatError(
            f"the model's VecNormalize was around observations {saved['observation_space']}, these are "
            f"{venv.observation_space}: give an environment with all its wrappers, this one by `load_vec_normalize`"
        )
    env = VecNormalize(venv, **settings)
    for (key, rms), (saved_key, values) in zip(_statistics(env), saved["statistics"], strict=True):
        where = f"vec_normalize.statistics of {saved_key}"
        exactly(values, {"mean", "var", "count"}, where)
        if key != saved_key:
            raise ModelFormatError(f"{where}: those of {key} belong there")
        set_statistics(rms, values["mean"].numpy(), values["var"].numpy(), values["count"], where)
    return env


# ---- SB3's zip files ----


def _from_sb3_zip(
    path: Path, venv: VecEnv | None, device: th.device, custom_objects: Mapping[str, Any] | None, trust_pickle: bool
) -> PPG:
    archives = [path] if path.suffix == ".zip" else sorted(path.glob("*.zip"))
    if len(archives) != 1 or not archives[0].is_file():
        raise ModelFormatError(f"{path} holds no model: there is no {DESCRIPTION}")
    if not trust_pickle:
        raise ModelFormatError(why_not_pickle(str(archives[0])))
    statistics = archives[0].parent / "vec_normalize.pkl"
    if venv is not None and statistics.exists():
        venv = VecNormalize.load(str(statistics), venv)
    cls = ALGORITHMS.get(saved_by(archives[0]), PPG)
    return cls.load(archives[0], env=venv, device=device, custom_objects=dict(custom_objects or {}))


def why_not_pickle(archive: str) -> str:
    """
    :param archive: an SB3 zip file
    :return: why it is not loaded, and what to do
    """
    return (
        f"{archive} is an SB3 zip file and was not loaded: it is made with pickle, and loading it runs whatever code its "
        "author put in, with your rights. Ask for the model as sb3_ppg.hub.push shares it, or, if you trust its author and "
        "where you got it, load it with trust_pickle=True"
    )

"""
Models as plain data in a folder, without pickle.

``model.json`` holds the class, its arguments, the spaces, counters, optimizer settings, ``VecNormalize``'s settings and the
versions; ``model.safetensors`` all arrays; ``SHA256SUMS`` what the files have to be, as ``sha256sum`` writes it. Reading them
never unpickles, imports or evaluates what they say, and writes nothing.
"""

import hashlib
import json
import math
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import torch as th
from gymnasium import spaces
from safetensors.torch import load_file, save
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import check_for_correct_spaces, get_device
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, unwrap_vec_normalize
from torch.overrides import TorchFunctionMode

from sb3_ppg.arguments import argument_names
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.files import replaced_together
from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.model_file import saved_by
from sb3_ppg.plain_data import Decoder, Encoder
from sb3_ppg.ppg import PPG
from sb3_ppg.recurrent import RecurrentPPG

SCHEMA_VERSION = 1
DESCRIPTION, ARRAYS, CHECKSUMS = "model.json", "model.safetensors", "SHA256SUMS"
MAX_TEXT_BYTES = 2**24
MAX_DEPTH = 100

# Arguments of the algorithm that belong to a machine or a run, not to the model
NOT_SHARED = {
    *("policy", "env", "device", "verbose", "tensorboard_log", "stats_window_size", "aux_buffer_kwargs"),
    "_init_setup_model",
}
COUNTERS = [
    *("num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_current_progress_remaining", "_episode_num"),
    *("_n_updates", "_n_aux_phases", "_n_stored_rollouts"),
]
VEC_NORMALIZE = ["training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon", "norm_obs_keys"]


def save_pretrained(model: PPG, folder: str | Path, custom_objects: Mapping[str, Any] | None = None) -> None:
    """
    Write a model as plain data: predictions and the continued training of what is read again are the same, bit for bit.
    As in SB3's zip files, the rollouts of an incomplete phase are not in it.

    :param model: what to write
    :param folder: made if it is not there; ``model.json``, ``model.safetensors`` and ``SHA256SUMS`` are written there, and
        take the place of those before when they are complete
    :param custom_objects: what is not plain data, such as a features extractor of yours, by name; readers have to give it, too
    :raises ModelFormatError: if something else of it is not plain data
    :raises OSError: if they cannot be written; the files that were there are left as they were
    """
    encoder = Encoder(custom_objects)
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
        "counters": {name: encoder.encode(getattr(model, name), name) for name in COUNTERS},
        "optimizers": {
            name: _describe_optimizer(recursive_getattr(model, name), encoder, name) for name in _optimizers(model)
        },
        "vec_normalize": _describe_vec_normalize(model.get_vec_normalize_env(), encoder),
    }
    text = json.dumps(description, indent=1, allow_nan=False)
    for name, tensor in model.policy.state_dict().items():
        encoder.encode(tensor, f"policy.{name}")  # known by their names, they need no place in the description

    folder = Path(folder)
    together = [folder / name for name in (DESCRIPTION, ARRAYS, CHECKSUMS)]
    with replaced_together(together) as (new_text, new_arrays, new_sums):
        new_text.write_text(text, encoding="utf-8")
        new_arrays.write_bytes(save(encoder.arrays))  # safetensors' own errors would not be OSErrors
        new_sums.write_text(_checksums({DESCRIPTION: new_text, ARRAYS: new_arrays}), encoding="utf-8")


def from_pretrained(
    folder: str | Path,
    env: GymEnv | str | None = None,
    device: th.device | str = "auto",
    *,
    custom_objects: Mapping[str, Any] | None = None,
    trust_pickle: bool = False,
) -> PPG:
    """
    Read a model that ``save_pretrained`` has written. Nothing that the files say is imported, evaluated or unpickled.

    :param folder: where its files are, or an SB3 zip file
    :param env: to go on training, or to predict for; or its name. If the model was trained under ``VecNormalize`` and this has
        none, it is put under one with the saved statistics: ``model.get_env()`` is what to step
    :param device: where to put it
    :param custom_objects: what is not plain data, by the names that its author gave
    :param trust_pickle: whether an SB3 zip file may be loaded if there is nothing else. It can run any code of its author's
    :return: the model
    :raises ModelFormatError: if the files are damaged, not what this version knows, or need what was not given
    """
    folder, on = Path(folder), get_device(device)
    venv = None if env is None else _as_vec_env(env)
    if not (folder / DESCRIPTION).exists():
        return _from_sb3_zip(folder, venv, on, custom_objects, trust_pickle)
    description, arrays = _read(folder)
    decoder = Decoder(arrays, custom_objects)
    with _distrust(folder):
        model = _build(description, decoder, venv, on)
        _load_weights(model, description, decoder)
        if decoder.unread:
            raise ModelFormatError(f"{folder / ARRAYS}: nothing says what {sorted(decoder.unread)} is for")
        return model


def load_vec_normalize(folder: str | Path, venv: VecEnv | None = None) -> VecNormalize:
    """
    The normalisation under which a model was trained, for what ``from_pretrained`` cannot do: put it inside other wrappers, or
    ``normalize_obs()`` alone.

    :param folder: where the model's files are
    :param venv: the environments to normalise. None: some that have spaces, but cannot be stepped
    :return: them, with the saved statistics
    :raises ModelFormatError: if the files are damaged, the model was trained without, or the observations differ
    """
    description, arrays = _read(Path(folder))
    decoder = Decoder(arrays)
    with _distrust(Path(folder)):
        saved = decoder.decode(description["vec_normalize"], "vec_normalize")
        if saved is None:
            raise ModelFormatError(f"{folder}: this model was trained without VecNormalize")
        if venv is None:
            action_space = _space(decoder, description["spaces"], "action")
            venv = DummyVecEnv([lambda: _SpacesOnly(saved["observation_space"], action_space)])
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
    (folder / CHECKSUMS).write_text(_checksums({name: folder / name for name in names}), encoding="utf-8")


def _checksums(files: Mapping[str, Path]) -> str:
    """As ``sha256sum`` writes it, of files that are to have these names."""
    return "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files))


def check_sums(folder: Path, names: list[str]) -> None:
    """
    :param folder: where the files are
    :param names: of those that are needed
    :raises ModelFormatError: if one of them is missing, or not what ``SHA256SUMS`` says
    """
    for name in (*names, CHECKSUMS):
        if not (folder / name).is_file():
            raise ModelFormatError(f"{folder}: {name} is missing")
        if not name.endswith(".safetensors") and (folder / name).stat().st_size > MAX_TEXT_BYTES:
            raise ModelFormatError(f"{folder / name} is larger than {MAX_TEXT_BYTES} bytes")
    lines = (folder / CHECKSUMS).read_bytes().splitlines(keepends=True)
    for name in names:
        if f"{_sha256(folder / name)}  {name}\n".encode() not in lines:
            raise ModelFormatError(f"{folder / name} is damaged, or {CHECKSUMS} is: they do not agree")
    if not all(re.fullmatch(rb"[0-9a-f]{64}  [^\n]+\n", line) for line in lines):
        raise ModelFormatError(f"{folder / CHECKSUMS} is damaged")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# ---- writing ----


def _arguments(cls: type[PPG]) -> list[str]:
    return [name for name in argument_names(cls) if name not in NOT_SHARED]


def _argument(model: PPG, name: str) -> Any:
    if not hasattr(model, name):
        raise ModelFormatError(f"{type(model).__name__} has no attribute {name!r}, which would say what its argument was")
    return getattr(model, name)


def _optimizers(model: PPG) -> list[str]:
    return [name for name in model._get_torch_save_params()[0] if name != "policy"]


def _versions() -> dict[str, str]:
    packages = ("sb3-ppg", "stable-baselines3", "torch", "gymnasium", "numpy")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def _describe_optimizer(optimizer: th.optim.Optimizer, encoder: Encoder, name: str) -> dict[str, Any]:
    state = optimizer.state_dict()
    return {
        "groups": [
            encoder.encode({key: value for key, value in group.items() if key != "params"}, f"{name}.groups[{index}]")
            for index, group in enumerate(state["param_groups"])
        ],
        "state": encoder.encode({str(index): values for index, values in state["state"].items()}, f"{name}.state"),
    }


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


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, th.Tensor]]:
    """The two files, if they are what the third says."""
    check_sums(folder, [DESCRIPTION, ARRAYS])
    description = read_json(folder / DESCRIPTION)
    try:
        arrays = load_file(folder / ARRAYS)
    except Exception as error:
        raise ModelFormatError(f"{folder / ARRAYS} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(description, dict) or description.get("format") != "sb3_ppg":
        raise ModelFormatError(f"{folder / DESCRIPTION} is not a model of sb3_ppg")
    if type(description.get("schema_version")) is not int or description["schema_version"] != SCHEMA_VERSION:
        raise ModelFormatError(
            f"{folder / DESCRIPTION} has schema version {description.get('schema_version')!r}, this sb3_ppg "
            f"({version('sb3-ppg')}) knows {SCHEMA_VERSION}: install the version that wrote it, {description.get('versions')}"
        )
    return description, arrays


@contextmanager
def _distrust(folder: Path) -> Iterator[None]:
    """Whatever a stranger thought of ends in one error."""
    try:
        yield
    except ModelFormatError:
        raise
    except Exception as error:
        raise ModelFormatError(f"{folder}: no model can be made of it ({type(error).__name__}: {error})") from error


def read_json(file: Path) -> Any:
    """
    :param file: of a stranger's
    :return: what is in it
    :raises ModelFormatError: if that is not JSON, or too much
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_constant)
        _check_depth(data)
        return data
    except (ValueError, RecursionError, OSError) as error:
        raise ModelFormatError(f"{file} cannot be read ({type(error).__name__}: {error})") from error


def _check_depth(data: Any) -> None:
    """Not left to Python's recursion limit, which other packages raise (torch's compiler does)."""
    level = [data]
    for _ in range(MAX_DEPTH):
        level = [
            part for one in level if isinstance(one, (dict, list)) for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _build(description: dict[str, Any], decoder: Decoder, venv: VecEnv | None, device: th.device) -> PPG:
    """The model, with fresh weights, as its constructor makes it."""
    cls = decoder.decode(description["algorithm"], "algorithm")
    policy_class = decoder.decode(description["policy"], "policy")
    if not (isinstance(cls, type) and issubclass(cls, PPG)):
        raise ModelFormatError(f"algorithm: {cls} is not PPG")
    arguments = {name: decoder.decode(value, name) for name, value in description["arguments"].items()}
    if unknown := arguments.keys() - set(_arguments(cls)):
        raise ModelFormatError(f"arguments: {cls.__name__} has no {sorted(unknown)}")
    model = cls(policy_class, None, device=device, _init_setup_model=False, **arguments)  # type: ignore[arg-type]
    model.observation_space = _space(decoder, description["spaces"], "observation")
    model.action_space = _space(decoder, description["spaces"], "action")
    model.n_envs = _count(description, "n_envs")
    model._check_arguments()
    vec_normalize = decoder.decode(description["vec_normalize"], "vec_normalize")
    if venv is not None:
        _set_env(model, venv, vec_normalize)
    _check_rollout_size(model)
    # A caller's own classes may allocate what they like
    with nullcontext() if decoder.custom_objects else _Allowance(decoder.arrays):
        model._setup_model()
    for name in COUNTERS:
        read = _number if name == "_current_progress_remaining" else _count
        setattr(model, name, read(description["counters"], name))
    return model


def _set_env(model: PPG, venv: VecEnv, vec_normalize: dict[str, Any] | None) -> None:
    """As SB3's ``load``."""
    if vec_normalize is not None and unwrap_vec_normalize(venv) is None:
        if venv.observation_space != vec_normalize["observation_space"]:
            venv = model._wrap_env(venv, verbose=0)  # images may have been transposed inside
        venv = _wrap_in_vec_normalize(venv, vec_normalize)
    venv = model._wrap_env(venv, verbose=0)
    check_for_correct_spaces(venv, model.observation_space, model.action_space)
    model.env, model.n_envs = venv, venv.num_envs
    model._vec_normalize_env = unwrap_vec_normalize(venv)


def _as_vec_env(env: GymEnv | str) -> VecEnv:
    return env if isinstance(env, VecEnv) else make_vec_env(env if isinstance(env, str) else lambda: env)


def _wrap_in_vec_normalize(venv: VecEnv, saved: dict[str, Any]) -> VecNormalize:
    settings = saved["settings"]
    for name, value in settings.items():
        if not (isinstance(value, (bool, int, float)) or name == "norm_obs_keys"):
            raise ModelFormatError(f"vec_normalize.settings.{name}: {value!r} cannot work")
    if settings["norm_obs"] and venv.observation_space != saved["observation_space"]:
        raise ModelFormatError(
            f"the model's VecNormalize was around observations {saved['observation_space']}, these are "
            f"{venv.observation_space}: give an environment with all its wrappers, this one by `load_vec_normalize`"
        )
    env = VecNormalize(venv, **settings)
    for (key, rms), (saved_key, values) in zip(_statistics(env), saved["statistics"], strict=True):
        shapes = [np.shape(rms.mean), tuple(values["mean"].shape), tuple(values["var"].shape)]
        if key != saved_key or len(set(shapes)) > 1:
            raise ModelFormatError(f"vec_normalize: statistics of {saved_key} {shapes[1:]} where {key} {shapes[0]} belong")
        rms.mean, rms.var, rms.count = values["mean"].numpy(), values["var"].numpy(), _number(values, "count")
    return env


def _space(decoder: Decoder, data: dict[str, Any], name: str) -> spaces.Space:
    space = decoder.decode(data[name], f"spaces.{name}")
    if not isinstance(space, spaces.Space):
        raise ModelFormatError(f"spaces.{name}: {space!r} is not a space")
    return space


def _number(data: dict[str, Any], name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ModelFormatError(f"{name}: {value!r} is not a finite number")
    return value


def _count(data: dict[str, Any], name: str) -> int:
    if type(data[name]) is not int or data[name] < 0:
        raise ModelFormatError(f"{name}: {data[name]!r} is not an integer of at least 0")
    return data[name]


def _check_rollout_size(model: PPG) -> None:
    """
    :raises ModelFormatError: if the description claims more than any rollout here could take
    """
    numbers = spaces.utils.flatdim(model.observation_space) + spaces.utils.flatdim(model.action_space) + 6
    claimed = 4 * numbers * model.n_steps * model.n_envs
    if claimed > 4 * psutil.virtual_memory().total:
        raise ModelFormatError(f"n_steps={model.n_steps} with n_envs={model.n_envs} claims {claimed:.1e} bytes of memory")


PER_TENSOR = 1000  # what a tensor costs besides its numbers


class _Allowance(TorchFunctionMode):
    """
    Networks do not get many more tensors and numbers than the file's arrays have (some are made and replaced): a description
    cannot claim memory that is not backed by data.

    :param arrays: of the file
    """

    def __init__(self, arrays: Mapping[str, th.Tensor]) -> None:
        super().__init__()
        self.left = 10**6 + 2 * sum(PER_TENSOR + array.numel() for array in arrays.values())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (th.empty, th.zeros, th.ones):
            size = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else (args or kwargs["size"])
            self.left -= PER_TENSOR + math.prod(size)
            if self.left < 0:
                raise ModelFormatError("it describes networks that are larger than its arrays")
        return func(*args, **(kwargs or {}))


def _load_weights(model: PPG, description: dict[str, Any], decoder: Decoder) -> None:
    weights = {name: decoder.decode({"$array": f"policy.{name}"}, name) for name in model.policy.state_dict()}
    model.policy.load_state_dict(weights)
    for name in _optimizers(model):
        _load_optimizer(recursive_getattr(model, name), description["optimizers"][name], decoder, name)
    if model.use_sde:
        model.policy.reset_noise()  # on the right device, as SB3 does


def _load_optimizer(optimizer: th.optim.Optimizer, data: dict[str, Any], decoder: Decoder, name: str) -> None:
    groups = optimizer.state_dict()["param_groups"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {int(index): values for index, values in decoder.decode(data["state"], f"{name}.state").items()}
    for index, values in state.items():
        if not 0 <= index < len(parameters):
            raise ModelFormatError(f"{name}.state: there is no parameter {index}")
        for key, value in values.items():
            fits = value.shape in ((), parameters[index].shape) if isinstance(value, th.Tensor) else _is_like(value, 0.0)
            if not fits:
                raise ModelFormatError(f"{name}.state.{index}.{key} is not a number for each of the parameter")
    for number, (group, described) in enumerate(zip(groups, data["groups"], strict=True)):
        options = decoder.decode(described, f"{name}.groups[{number}]")
        for key in options.keys() & group.keys() - {"params"}:
            if not _is_like(options[key], group[key]):
                raise ModelFormatError(f"{name}.groups[{number}].{key}: {options[key]!r} in place of {group[key]!r}")
            group[key] = options[key]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _is_like(value: Any, example: Any) -> bool:
    """Whether an optimizer's option may be this, where a fresh one has the example."""
    if isinstance(example, tuple):
        return isinstance(value, tuple) and len(value) == len(example) and all(map(_is_like, value, example))
    if example is None or isinstance(example, bool):
        return value is None or isinstance(value, bool)
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


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
    algorithms: dict[str, type[PPG]] = {"MaskablePPG": MaskablePPG, "RecurrentPPG": RecurrentPPG}
    cls = algorithms.get(saved_by(archives[0]), PPG)
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

"""What of a training in progress is not in the model's zip file: written, read as the file of a stranger, put in place."""

import glob
import json
import math
import warnings
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.checks import check_room
from sb3_ppg.buffers.replay import END, KINDS, Kind, Rollout, RolloutReplay
from sb3_ppg.checks import is_count, is_within
from sb3_ppg.distributed.collectives import rank_and_size
from sb3_ppg.environments.watched import normalizers, statistics
from sb3_ppg.errors import ArgumentError, ModelFormatError, NonFiniteError
from sb3_ppg.model import PhasicModel
from sb3_ppg.saving import generators
from sb3_ppg.saving.files import atomic_write, opened
from sb3_ppg.saving.npz import NpzReader

FORMAT = "sb3_ppg auxiliary buffer"
STATE_FORMAT_VERSION = 1
LARGEST_DESCRIPTION = 2**16  # bytes; the state of Python's generator takes most of them
BYTES_PER_MEMBER = 2**12  # at most, beside an array's content: headers and names
SPARE_MEMBERS = 2**8  # states of GPUs, for instance
Specification = tuple[tuple[int, ...], np.dtype]  # shape and type of an array


def file_of_process(path: Path) -> Path:
    """
    :param path: of a file that a single process would have
    :return: this process's own: "model.aux_buffer.npz" is "model.aux_buffer.0_of_2.npz" for the first one of two
    """
    number, size = rank_and_size()
    return path if size == 1 else path.with_name(f"{path.stem}.{number}_of_{size}{path.suffix}")


def files_of_processes(path: Path) -> list[Path]:
    """
    :param path: of a file that a single process would have
    :return: those of all processes that are there, of whatever number of processes
    """
    several = path.parent.glob(f"{glob.escape(path.stem)}.*_of_*{path.suffix}")
    return sorted(one for one in (path, *several) if one.exists())


# ---- writing ----


def save_training_state(model: PhasicModel, path: Path) -> None:
    """
    :param model: between two iterations
    :param path: of the file, NumPy's npz: arrays and a text in JSON, no pickle
    :raises ArgumentError: if the model came from a file, and what belongs to it was not loaded; no file is written then
    :raises NonFiniteError: if a number of the training's state is NaN or infinite; likewise
    """
    if (model._n_stored_rollouts, model._n_replayed_rollouts) != (len(model.aux_buffer), model.replay.n_stored):
        raise ArgumentError(
            f"This model was saved amid a phase, and its rollouts ({model._n_stored_rollouts}, and "
            f"{model._n_replayed_rollouts} that the policy learns from again) are not here: use `load_aux_buffer` before, or "
            "`learn`, which starts anew"
        )
    check_state_is_finite(model)
    with atomic_write(file_of_process(path)) as temporary:
        write_training_state(model, temporary)


def write_training_state(model: PhasicModel, path: Path) -> None:
    """As ``save_training_state``, unchecked, into a file that may end up half-written."""
    arrays = {**_rollouts(model.aux_buffer), **_replayed(model.replay), **_normalization(model.env)}
    arrays |= generators.array_states()
    description = {
        "format": FORMAT,
        "version": STATE_FORMAT_VERSION,
        **_identity(model),
        "checkpoint": model._checkpoint,
        **_phase(model),
        "python": generators.python_state(),
    }
    arrays["description"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def check_state_is_finite(model: PhasicModel) -> None:
    """
    :param model: between two iterations
    :raises NonFiniteError: if a number in weights, optimizers, statistics or stored rollouts is NaN or infinite
    """
    networks = {"policy": model.policy, "objective": model.objective}
    numbers: dict[str, Any] = {
        f"the {owner}'s {name}": tensor
        for owner, network in networks.items()
        for name, tensor in (*network.named_parameters(), *network.named_buffers())
    }
    for name, parameters in model.get_parameters().items():
        for index, state in parameters.get("state", {}).items() if "optim" in name else ():
            tensors = {key: value for key, value in state.items() if isinstance(value, th.Tensor)}
            numbers |= {f"{key} of parameter {index} in the {name}": value for key, value in tensors.items()}
    numbers |= _rollouts(model.aux_buffer) | _replayed(model.replay) | _normalization(model.env)
    reward_normalizer = getattr(model.rollout_buffer, "reward_normalizer", None)
    if reward_normalizer is not None:
        numbers["the reward normaliser's variance"] = np.asarray(reward_normalizer.return_rms.var)
    for name, array in numbers.items():
        finite = th.isfinite(array) if isinstance(array, th.Tensor) else np.isfinite(array)
        if not finite.all():
            raise NonFiniteError(f"{name} is not finite")


def _identity(model: PhasicModel) -> dict[str, Any]:
    """What a file and the model that it belongs to have in common."""
    return {
        "algorithm": type(model).__name__,
        "n_envs": int(model.n_envs),  # somebody's may be NumPy's
        "n_steps": int(model.n_steps),
        "num_timesteps": int(model.num_timesteps),
        "n_aux_phases": model._n_aux_phases,
        "n_stored_rollouts": model._n_stored_rollouts,
        **({} if rank_and_size() == (0, 1) else {"process": list(rank_and_size())}),
    }


# The arguments with which a description says so
SAID_BY = {"n_new_rollouts": "aux_buffer_kwargs", "replay_uses": "replay_kwargs"}


def _phase(model: PhasicModel) -> dict[str, Any]:
    """Where it is, if the stored rollouts do not tell: some may be of former phases, or replayed."""
    n_new = {} if model.aux_buffer.capacity is None else {"n_new_rollouts": model.aux_buffer.n_new}
    uses = [[rollout.uses[kind] for kind in KINDS] for rollout in model.replay.rollouts]
    return {**n_new, **({"replay_uses": uses} if model.replay.capacity > 1 else {})}


def _rollouts(buffer: AuxBuffer) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for index, observations in enumerate(buffer.observations):
        by_key = observations if isinstance(observations, dict) else {"": observations}
        arrays |= {f"observations/{index}/{key}": array for key, array in by_key.items()}
        arrays |= {f"context/{index}/{name}": array for name, array in buffer.context[index].items()}
        arrays[f"value_targets/{index}"] = buffer.value_targets[index]
    return arrays


def _replayed(replay: RolloutReplay) -> dict[str, np.ndarray]:
    return {
        f"replay/{index}/{name}": array
        for index, rollout in enumerate(replay.rollouts[: replay.n_stored])
        for name, array in rollout.arrays().items()
    }


def _statistics(env: VecEnv | None) -> dict[str, RunningMeanStd]:
    """Those of each ``VecNormalize`` among the wrappers, by their names in the file."""
    return {
        f"normalize{f'.{index}' if index > 0 else ''}/{name}": rms  # most have one
        for index, normalizer in enumerate(normalizers(env))
        for name, rms in statistics(normalizer).items()
    }


def _normalization(env: VecEnv | None) -> dict[str, np.ndarray]:
    return {
        f"{name}/{part}": np.asarray(getattr(rms, part), dtype=np.float64)
        for name, rms in _statistics(env).items()
        for part in ("mean", "var", "count")
    }


# ---- reading ----


class TrainingState(NamedTuple):
    """
    What a file holds, once all of it has been read and checked.

    :param aux_buffer: the rollouts of the phase
    :param replayed: those of the replay
    :param normalization: statistics of ``VecNormalize``, and the mean, variance and count that they are to have
    :param python: the state of Python's generator. None: all generators stay as they are
    :param arrays: those of NumPy's and torch's
    """

    aux_buffer: AuxBuffer
    replayed: list[Rollout]
    normalization: list[tuple[RunningMeanStd, np.ndarray, np.ndarray, float]]
    python: list[Any] | None
    arrays: dict[str, np.ndarray]

    def apply(self, model: PhasicModel) -> None:
        """It cannot fail: everything was checked."""
        model.aux_buffer = self.aux_buffer
        model.replay.rollouts = self.replayed
        model._n_stored_rollouts, model._n_replayed_rollouts = len(self.aux_buffer), len(self.replayed)
        for rms, mean, var, count in self.normalization:
            rms.mean, rms.var, rms.count = mean, var, count
        if self.python is not None:
            generators.restore(self.python, self.arrays)


def load_training_state(model: PhasicModel, path: Path) -> None:
    """
    :param model: loaded from the zip file that was saved together with this one
    :param path: as given to ``save_training_state``
    :raises FileNotFoundError: if there is none
    :raises ArgumentError: if the machine cannot hold the rollouts
    :raises ModelFormatError: if the file is damaged, too new, or another model's
    """
    own, there = file_of_process(path), files_of_processes(path)
    _, size = rank_and_size()
    present = {path} if size == 1 else {one for one in there if one.stem.endswith(f"_of_{size}")}
    is_other_group = bool(there) and not present & set(there)
    if is_other_group:
        own = there[0]
        warnings.warn(f"{own.name} is from another number of processes: the phase starts anew", stacklevel=3)
    read = _read_of_another_group if is_other_group else _read
    with opened(own) as file:
        try:
            state = read(model, file)
        except (ArgumentError, MemoryError):
            raise
        except ModelFormatError as error:
            raise ModelFormatError(f"{own} {error}") from error
        except Exception as error:  # whatever zipfile, zlib, json and NumPy make of a wrong byte
            raise ModelFormatError(f"{own} is damaged, or no auxiliary buffer of this model: {error}") from error
    state.apply(model)


def _read(model: PhasicModel, file: BinaryIO) -> TrainingState:
    rollouts = _rollout_specifications(model)
    rollout_template = model.rollout_template() if model._n_replayed_rollouts else None
    replayed = _replay_specifications(model._n_replayed_rollouts, rollout_template)
    normalization = _normalization(model.env)
    others = {
        name: (array.shape, array.dtype)
        for name, array in {**generators.array_states(), **normalization}.items()
        if not generators.is_cuda_state(name)  # the machine may have other devices
    }
    expected = {name: specification for part in [*rollouts, *replayed, others] for name, specification in part.items()}
    _check_size(file, expected)
    reader = NpzReader(file)
    description = json.loads(reader.bytes("description", LARGEST_DESCRIPTION))
    python = _check_description(model, description)
    n_new = description.get("n_new_rollouts", len(rollouts))
    if not is_count(n_new, at_least=0) or n_new > len(rollouts):
        raise ValueError(f"it has {n_new!r:.100} new rollouts of {len(rollouts)}")
    cuda = {name: ((generators.CUDA_BYTES,), np.dtype(np.uint8)) for name in reader.names if generators.is_cuda_state(name)}
    if strange := reader.names - expected.keys() - cuda.keys() - {"description"}:
        hint = ". Was its environment in VecNormalize?" if any(name.startswith("normalize") for name in strange) else ""
        raise ValueError(f"it has {min(strange)!r:.100}, which this model does not need{hint}")
    arrays = {name: reader.array(name, *specification) for name, specification in {**others, **cuda}.items()}
    generators.check(python, arrays)
    check_room(model, len(rollouts))
    aux_buffer = model.aux_buffer.emptied()
    for index, specifications in enumerate(rollouts):  # one after the other: only a disk may have room for all
        _keep_rollout(model, aux_buffer, index, {name: reader.array(name, *one) for name, one in specifications.items()})
    aux_buffer.n_new = n_new
    contents = ({name: reader.array(name, *one) for name, one in specifications.items()} for specifications in replayed)
    old = [
        _checked_rollout(model, rollout_template, f"replay/{index}/", uses, arrays)
        for index, (uses, arrays) in enumerate(zip(_checked_uses(model, description), contents, strict=True))
    ]
    return TrainingState(aux_buffer, old, _checked_normalization(model, arrays), python, arrays)


def _read_of_another_group(model: PhasicModel, file: BinaryIO) -> TrainingState:
    """What all of its processes had in common: the statistics of ``VecNormalize``."""
    reader = NpzReader(file)
    description = json.loads(reader.bytes("description", LARGEST_DESCRIPTION))
    _check_format(description)
    common = {name: _identity(model)[name] for name in ("algorithm", "num_timesteps", "n_aux_phases")}
    _check_values(description, {**common, "checkpoint": model._checkpoint})
    arrays = {name: reader.array(name, one.shape, one.dtype) for name, one in _normalization(model.env).items()}
    return TrainingState(model.aux_buffer.emptied(), [], _checked_normalization(model, arrays), None, {})


def _rollout_specifications(model: PhasicModel) -> list[dict[str, Specification]]:
    """Of each rollout's arrays, by their names."""
    buffer, sizes, context = model.rollout_buffer, (model.n_envs, model.n_steps), model.aux_data()
    arrays: Any = buffer.observations if isinstance(buffer.observations, dict) else {"": buffer.observations}
    shapes: Any = buffer.obs_shape if isinstance(buffer.obs_shape, dict) else {"": buffer.obs_shape}
    return [
        {f"value_targets/{index}": (sizes, buffer.returns.dtype)}
        | {f"observations/{index}/{key}": ((*sizes, *shapes[key]), arrays[key].dtype) for key in shapes}
        | {f"context/{index}/{name}": (array.shape, array.dtype) for name, array in context.items()}
        for index in range(model._n_stored_rollouts)
    ]


def _replay_specifications(n_rollouts: int, rollout_template: Rollout | None) -> list[dict[str, Specification]]:
    """Likewise, of those that the replay has."""
    arrays = {} if rollout_template is None else rollout_template.arrays()
    return [
        {f"replay/{index}/{name}": (array.shape, array.dtype) for name, array in arrays.items()} for index in range(n_rollouts)
    ]


def _check_size(file: BinaryIO, expected: dict[str, Specification]) -> None:
    """
    :raises ValueError: if the file is larger than these arrays and their names can make it
    """
    size = file.seek(0, 2)
    file.seek(0)
    content = sum(math.prod(shape) * dtype.itemsize for shape, dtype in expected.values())
    largest = content + LARGEST_DESCRIPTION + BYTES_PER_MEMBER * (len(expected) + SPARE_MEMBERS)
    if size > largest:
        raise ValueError(f"it has {size:,} bytes, where this model needs {largest:,} at most")


def _check_description(model: PhasicModel, description: Any) -> list[Any]:
    """
    :param description: any value of JSON
    :return: the state of Python's generator, unchecked
    :raises ModelFormatError: if the file is another model's, too new, or says too much or too little
    """
    _check_format(description)
    wanted = _identity(model)
    if "checkpoint" in description:  # which the first files did not have
        wanted["checkpoint"] = model._checkpoint
    if strange := description.keys() ^ {"format", "version", "python", *wanted, *_phase(model)}:
        for name in strange & SAID_BY.keys():
            raise ModelFormatError(f"is of a training with other `{SAID_BY[name]}`: use those of its training")
        raise ModelFormatError(f"is damaged: its description has too much or too little, {min(strange)!r:.100}")
    _check_values(description, wanted)
    return description["python"]


def _check_format(description: Any) -> None:
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelFormatError("is no auxiliary buffer of sb3_ppg")
    if description.get("version") != STATE_FORMAT_VERSION:
        raise ModelFormatError(
            f"has version {description.get('version')!r:.100} of its format, this sb3_ppg reads "
            f"{STATE_FORMAT_VERSION}: use the one that wrote it"
        )


def _check_values(description: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        found = description.get(name)
        if type(found) is not type(value) or found != value:
            raise ModelFormatError(
                f"does not belong to this model: its {name.replace('_', ' ')} is {found!r:.100}, the model's {value!r}"
            )


def _keep_rollout(model: PhasicModel, aux_buffer: AuxBuffer, index: int, arrays: dict[str, np.ndarray]) -> None:
    """
    :param aux_buffer: which gets the rollout
    :param index: of the rollout
    :param arrays: of the rollout, by their names in the file
    :raises ValueError: if a number in it is none that this model can have collected
    """

    def part(name: str) -> dict[str, np.ndarray]:
        prefix = f"{name}/{index}/"
        return {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}

    observations, context, value_targets = part("observations"), part("context"), arrays[f"value_targets/{index}"]
    space = model.observation_space
    for key, array in observations.items():
        _require(is_within(space[key] if isinstance(space, spaces.Dict) else space, array), f"observations/{index}/{key}")
    for name, array in {"value_targets": value_targets, **context}.items():
        _require(bool(np.isfinite(array).all()), f"{name} of rollout {index}")
    _require(model.is_valid_aux_data(context), f"context/{index}")
    aux_buffer.keep(observations if isinstance(space, spaces.Dict) else observations[""], context, value_targets)


def _checked_uses(model: PhasicModel, description: dict[str, Any]) -> list[dict[Kind, int]]:
    """How many epochs have gone through each rollout of the replay."""
    uses = description.get("replay_uses", [])
    if model._n_replayed_rollouts > model.replay.capacity:
        raise ModelFormatError(
            f"has {model._n_replayed_rollouts} rollouts that the policy phase is to learn from again, this model keeps "
            f"{model.replay.capacity}: use the `replay_kwargs` of its training"
        )
    is_possible = isinstance(uses, list) and len(uses) == model._n_replayed_rollouts
    if not is_possible or not all(
        isinstance(one, list) and len(one) == len(KINDS) and all(is_count(number, at_least=0) for number in one)
        for one in uses
    ):
        raise ValueError(f"its replay_uses, {uses!r:.100}, cannot be")
    return [dict(zip(KINDS, one, strict=True)) for one in uses]


def _checked_rollout(
    model: PhasicModel, rollout_template: Rollout | None, prefix: str, uses: dict[Kind, int], arrays: dict[str, np.ndarray]
) -> Rollout:
    """
    :param rollout_template: of the model
    :param prefix: of the names in the file
    :param uses: of the rollout
    :param arrays: of the rollout, by their names in the file
    :raises ValueError: if a number in it is none that this model can have collected
    """
    assert rollout_template is not None
    arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    for name, array in arrays.items():
        part, _, key = name.partition("/")
        space = {"actions": model.action_space, "observations": model.observation_space}.get(part.removeprefix(END))
        space = space[key] if isinstance(space, spaces.Dict) else space
        _require(bool(np.isfinite(array).all()) and (space is None or is_within(space, array)), f"{prefix}{name}")
    _require(bool(np.isin(arrays["episode_starts"], (0, 1)).all()) and model.is_context(arrays), f"{prefix}episode_starts")
    return rollout_template.with_arrays(arrays, uses)


def _checked_normalization(
    model: PhasicModel, arrays: dict[str, np.ndarray]
) -> list[tuple[RunningMeanStd, np.ndarray, np.ndarray, float]]:
    checked = []
    for name, rms in _statistics(model.env).items():
        mean, var, count = (arrays[f"{name}/{part}"] for part in ("mean", "var", "count"))
        is_possible = np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all() and 0 < count < np.inf
        _require(bool(is_possible), name)
        checked.append((rms, mean, var, float(count)))
    return checked


def _require(condition: bool, name: str) -> None:
    if not condition:
        raise ValueError(f"{name} has numbers that cannot be")

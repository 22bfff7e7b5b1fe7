"""The part of a run in progress that is not in the model's zip file: rollouts, normalization, random generators."""

import copy
import glob
import json
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd

from sb3_ppg.buffers.replay import KINDS
from sb3_ppg.buffers.rollout_buffers import NormalizedRewardRolloutBuffer
from sb3_ppg.buffers.rollouts import Rollout
from sb3_ppg.distributed import n_processes, rank
from sb3_ppg.environments.watched import all_statistics
from sb3_ppg.errors import ArgumentError, ModelFormatError, NonFiniteError, raised_as, warn
from sb3_ppg.phasic_interface import COUNTERS, PhasicInterface
from sb3_ppg.saving.files import WRITTEN_BY, atomic_writes, check_version, package_version

FORMAT_VERSION = 1
MOMENTS = ("mean", "var", "count")
_lock = threading.RLock()


def file_of_process(path: Path) -> Path:
    """Return this process's own file: "model.aux_buffer.npz" is "model.aux_buffer.0_of_2.npz" for the first one of two."""
    own = f"{path.stem}.{rank()}_of_{n_processes()}{path.suffix}"
    return path if n_processes() == 1 else path.with_name(own)


def files_of_processes(path: Path, n: int | None = None) -> list[Path]:
    """Return the existing files that ``n`` processes have written for this path; None: any number of processes."""
    alone = [path] if n in (None, 1) else []
    several = path.parent.glob(f"{glob.escape(path.stem)}.*_of_{'*' if n is None else n}{path.suffix}")
    return sorted(file for file in (*alone, *several) if file.exists())


# ---- writing ----


def save_training_state(model: PhasicInterface, path: Path) -> None:
    """Write a file of arrays and a text in JSON, with the arguments and errors of ``PPG.save_aux_buffer``."""
    n_stored, n_replayed = model.n_kept_rollouts()
    if (n_stored, n_replayed) != (len(model.aux_buffer), model.replay.n_stored):
        raise ArgumentError(
            f"This model was saved in the middle of a phase, and its rollouts ({n_stored}, and {n_replayed} that the policy "
            "learns from again) are not here: call `load_aux_buffer` first, or `learn`, which starts the phase over"
        )
    if (error := first_non_finite(model)) is not None:
        raise NonFiniteError(f"{path} is not written: {error}")
    with atomic_writes(file_of_process(path)) as (temporary,):
        write_training_state(model, temporary)


def write_training_state(model: PhasicInterface, path: Path) -> None:
    """Write the file of ``save_training_state`` without its checks; an error leaves it half-written."""
    description = {
        "version": FORMAT_VERSION,
        WRITTEN_BY: package_version(),
        "identity": identity(model),
        "progress_of_rollouts": model.aux_buffer.progress,
        "replay_uses": [[rollout.uses[kind] for kind in KINDS] for rollout in model.replay.rollouts[: model.replay.n_stored]],
        "generators": generator_states(),
    }
    text = json.dumps(description, default=lambda array: array.tolist())
    with path.open("wb") as file:
        np.savez(file, description=np.frombuffer(text.encode(), dtype=np.uint8), **_arrays(model))  # type: ignore[arg-type]


def first_non_finite(model: PhasicInterface) -> str | None:
    """Return a message if a number in weights, optimizers, statistics or stored rollouts is NaN or infinite."""
    numbers = {**_flat(model.get_parameters()), **_arrays(model)}
    if model.allow_nonfinite_observations:
        numbers = {name: value for name, value in numbers.items() if "observations" not in name}
    if isinstance(model.rollout_buffer, NormalizedRewardRolloutBuffer):
        numbers["the reward normalizer's variance"] = np.asarray(model.rollout_buffer.reward_normalizer.return_rms.var)
    return next((f"{name} is not finite" for name, value in numbers.items() if not _is_finite(value)), None)


def _is_finite(value: Any) -> bool:
    if isinstance(value, th.Tensor):
        return bool(th.isfinite(value).all())
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.isfinite(value).all())


def identity(model: PhasicInterface, same_processes: bool = True) -> dict[str, Any]:
    """Return the properties in which file and model must agree; fewer if another number of processes wrote the file."""
    sizes = {"n_envs": int(model.n_envs), "n_steps": int(model.n_steps), "process": [rank(), n_processes()]}  # may be NumPy's
    return {
        "algorithm": type(model).__name__,
        "observation_space": str(model.observation_space),
        "action_space": str(model.action_space),
        "memory": {name: list(array.shape[1:]) for name, array in model.memory.items()},
        "checkpoint": model._checkpoint,
        **(sizes if same_processes else {}),
        **{name.removeprefix("_"): int(getattr(model, name)) for name in COUNTERS},
        "n_kept_rollouts": list(model.n_kept_rollouts()),
        "VecNormalize": list(all_statistics(model.env)),
    }


def _arrays(model: PhasicInterface) -> dict[str, np.ndarray]:
    """Arrays of the file, by name."""
    buffer, replay = model.aux_buffer, model.replay
    return _flat(
        {
            "rollouts": {index: rollout.arrays for index, rollout in enumerate(buffer.rollouts)},
            "replay": {index: rollout.arrays for index, rollout in enumerate(replay.rollouts[: replay.n_stored])},
            "normalize": {name: moments_of(rms) for name, rms in all_statistics(model.env).items()},
        }
    )


def moments_of(rms: RunningMeanStd) -> dict[str, np.ndarray]:
    """Return mean, variance and count by the names of their attributes."""
    return {part: np.asarray(getattr(rms, part), dtype=np.float64) for part in MOMENTS}


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
    """Leaves of nested dictionaries, by the keys that lead to them."""
    if not isinstance(tree, dict):
        return {name: tree}
    return {leaf: value for key, part in tree.items() for leaf, value in _flat(part, f"{name}/{key}" if name else key).items()}


# ---- reading ----


def load_training_state(model: PhasicInterface, path: Path) -> None:
    """
    Restore what ``save_training_state`` wrote, with the arguments and errors of ``PPG.load_aux_buffer``: read and check
    everything, then put it in place. From files of another number of processes, restore only the statistics.
    """
    own, there = file_of_process(path), files_of_processes(path)
    same_processes = not there or bool(files_of_processes(path, n_processes()))
    if not same_processes:
        own = there[0]
        warn(f"{own.name} is from another number of processes: the phase starts over")
    damaged = f"{own} is damaged, or no auxiliary buffer of this model"
    with own.open("rb") as file, raised_as(ModelFormatError, damaged, ArgumentError, MemoryError):
        archive = np.load(file, allow_pickle=False)
        description = json.loads(archive["description"].tobytes())
        check_version(own, description["version"], FORMAT_VERSION, description[WRITTEN_BY])
        for name, value in identity(model, same_processes).items():
            if (found := description["identity"].get(name)) != value:
                difference = f"its {name.replace('_', ' ')} is {found!r}, the model's {value!r}"
                raise ModelFormatError(f"{own} does not belong to this model: {difference}")
        running = all_statistics(model.env)
        normalization = {name: {part: archive[f"normalize/{name}/{part}"] for part in MOMENTS} for name in running}
        aux_buffer = copy.copy(model.aux_buffer)
        aux_buffer.reset()
        replayed: list[Rollout] = []  # the next update drops the oldest, if this model replays fewer
        if same_processes:
            n_stored, _ = model.n_kept_rollouts()
            aux_buffer.check_room(model.rollout_buffer, model.stored_keys, n_stored, model.policy.state_keys)
            for index in range(n_stored):  # one after the other: only a disk may have room for all
                aux_buffer.add(_read_rollout(archive, f"rollouts/{index}", model, model.stored_keys).select(model.stored_keys))
            aux_buffer.progress = description["progress_of_rollouts"]
            for index, numbers in enumerate(description["replay_uses"]):
                replayed.append(_read_rollout(archive, f"replay/{index}", model, model.minibatch_keys))
                replayed[-1].uses.update(dict(zip(KINDS, numbers, strict=True)))
            restore_generators(description["generators"])
    # Everything is checked: nothing below can fail
    model.aux_buffer, model.replay.rollouts = aux_buffer, replayed
    model._missing_rollouts = None
    for name, rms in running.items():
        vars(rms).update(normalization[name])


def _read_rollout(archive: Any, name: str, model: PhasicInterface, keys: Iterable[str]) -> Rollout:
    """Read a rollout, in which arrays with these names have to be there."""
    arrays: dict[str, Any] = {}
    for file in archive.files:
        if file.startswith(f"{name}/"):
            key, _, part = file.removeprefix(f"{name}/").partition("/")
            arrays[key] = {**arrays.get(key, {}), part: archive[file]} if part else archive[file]
    rollout = Rollout(arrays, model.policy.state_keys)
    rollout.select(keys)
    return rollout


# ---- random generators ----


def generator_states() -> dict[str, Any]:
    """Return the state of each global generator in tuples, dictionaries, arrays, tensors; CUDA's once torch has used it."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if th.cuda.is_initialized() else [],
    }


def restore_generators(states: dict[str, Any]) -> None:
    """
    Restore the states of the global generators that ``generator_states`` returned; tuples, arrays and tensors may be lists, as
    they are after JSON. States of GPUs that this machine does not have are skipped. Torch comes first, because it may refuse
    another version's state.
    """
    th.set_rng_state(th.as_tensor(states["torch"], dtype=th.uint8))
    n_gpus = th.cuda.device_count() if th.cuda.is_available() else 0
    for index, state in enumerate(states["cuda"][:n_gpus]):
        th.cuda.set_rng_state(th.as_tensor(state, dtype=th.uint8), index)
    np.random.set_state(states["numpy"])
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))


@contextmanager
def generators_kept() -> Iterator[None]:
    """
    Leave the global generators as they were before the block, even if it seeds them. Only one thread at a time is in such a
    block: two would restore each other's states.
    """
    with _lock:
        before, seed = generator_states(), th.initial_seed()
        try:
            yield
        finally:
            restore_generators(before)
            if not before["cuda"]:
                th.cuda.manual_seed_all(seed)  # takes effect when a GPU is first used, and replaces a seed from the block

"""Exact resume: what of a training in progress is not in the model's zip file, and a callback that saves all of it."""

import json
import random
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg.aux_buffer import AuxBuffer
from sb3_ppg.errors import ArgumentError, ModelFormatError
from sb3_ppg.files import replaced

if TYPE_CHECKING:
    from sb3_ppg.ppg import PPG

FORMAT = "sb3_ppg auxiliary buffer"
FORMAT_VERSION = 1
SUFFIX = ".aux_buffer.npz"


def aux_buffer_path(model_path: str | Path) -> Path:
    """
    :param model_path: of a model's zip file, with or without ".zip"
    :return: where its auxiliary buffer is kept, beside it: ``model.zip`` has ``model.aux_buffer.npz``
    """
    path = Path(model_path)
    return path.with_name(path.name.removesuffix(".zip") + SUFFIX)


def save_training_state(model: "PPG", path: Path) -> None:
    """
    :param model: between two iterations
    :param path: of the file, NumPy's npz: arrays and a text in JSON, no pickle
    """
    arrays = {
        **_rollouts(model.aux_buffer),
        **_generator_states(),
        **_normalization(model.get_vec_normalize_env()),
    }
    description = {"format": FORMAT, "version": FORMAT_VERSION, **_identity(model), "python": random.getstate()}
    arrays["description"] = np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)
    with replaced(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_training_state(model: "PPG", path: Path) -> None:
    """
    :param model: loaded from the zip file that was saved together with this one
    :param path: as given to ``save_training_state``
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if the file is damaged, too new, or another model's; the model is then as before
    """
    description, arrays = _read(path)
    wanted = _identity(model)
    for name, expected in wanted.items():
        if description.get(name) != expected:
            raise ModelFormatError(
                f"{path} does not belong to this model: its {name.replace('_', ' ')} is {description.get(name)!r}, the "
                f"model's {expected!r}"
            )
    normalizer = model.get_vec_normalize_env()
    _check(model, normalizer, arrays, path)
    names = list(model._context())
    model.aux_buffer.reset()
    for index in range(description["n_stored_rollouts"]):
        observations = {key: arrays[f"observations/{index}/{key}"] for key in _keys(model)}
        model.aux_buffer.observations.append(observations if "" not in observations else observations[""])
        model.aux_buffer.value_targets.append(arrays[f"value_targets/{index}"])
        model.aux_buffer.context.append({name: arrays[f"context/{index}/{name}"] for name in names})
    _restore_normalization(normalizer, arrays)
    version, state, gauss = description["python"]
    random.setstate((version, tuple(state), gauss))
    _restore_generators(arrays)


# ---- what is in the file ----


def _identity(model: "PPG") -> dict[str, Any]:
    """What a file and the model that it belongs to have in common."""
    return {
        "algorithm": type(model).__name__,
        "n_envs": model.n_envs,
        "n_steps": model.n_steps,
        "num_timesteps": model.num_timesteps,
        "n_aux_phases": model._n_aux_phases,
        "n_stored_rollouts": model._n_stored_rollouts,
    }


def _keys(model: "PPG") -> list[str]:
    """Of dictionary observations; others have the key ""."""
    shape = model.rollout_buffer.obs_shape
    return list(shape) if isinstance(shape, dict) else [""]


def _rollouts(buffer: AuxBuffer) -> dict[str, np.ndarray]:
    arrays = {f"value_targets/{index}": targets for index, targets in enumerate(buffer.value_targets)}
    for index, observations in enumerate(buffer.observations):
        for key, array in (observations if isinstance(observations, dict) else {"": observations}).items():
            arrays[f"observations/{index}/{key}"] = array
        arrays |= {f"context/{index}/{name}": array for name, array in buffer.context[index].items()}
    return arrays


def _generator_states() -> dict[str, np.ndarray]:
    """Of NumPy's and torch's global generators, for the CPU and each GPU."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    arrays = {"numpy/keys": np.asarray(keys), "numpy/rest": np.array([position, has_gauss, gauss], dtype=np.float64)}
    arrays["torch/cpu"] = th.get_rng_state().numpy()
    for index, state in enumerate(th.cuda.get_rng_state_all() if th.cuda.is_available() else []):
        arrays[f"torch/cuda/{index}"] = state.numpy()
    return arrays


def _restore_generators(arrays: dict[str, np.ndarray]) -> None:
    position, has_gauss, gauss = arrays["numpy/rest"]
    np.random.set_state(("MT19937", arrays["numpy/keys"], int(position), int(has_gauss), gauss))
    th.set_rng_state(th.from_numpy(arrays["torch/cpu"]))
    n_devices = th.cuda.device_count() if th.cuda.is_available() else 0
    for index in range(n_devices):
        if f"torch/cuda/{index}" in arrays:
            th.cuda.set_rng_state(th.from_numpy(arrays[f"torch/cuda/{index}"]), index)


def _statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    statistics = {"ret_rms": normalizer.ret_rms}
    if normalizer.norm_obs:
        obs_rms = normalizer.obs_rms
        statistics |= {f"obs_rms/{k}": v for k, v in obs_rms.items()} if isinstance(obs_rms, dict) else {"obs_rms": obs_rms}
    return statistics


def _normalization(normalizer: VecNormalize | None) -> dict[str, np.ndarray]:
    if normalizer is None:
        return {}
    return {
        f"normalize/{name}/{part}": np.asarray(getattr(rms, part))
        for name, rms in _statistics(normalizer).items()
        for part in ("mean", "var", "count")
    }


def _restore_normalization(normalizer: VecNormalize | None, arrays: dict[str, np.ndarray]) -> None:
    for name, rms in _statistics(normalizer).items() if normalizer is not None else ():
        rms.mean, rms.var = arrays[f"normalize/{name}/mean"], arrays[f"normalize/{name}/var"]
        rms.count = float(arrays[f"normalize/{name}/count"])


# ---- reading ----


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        description = json.loads(arrays.pop("description").tobytes())
    except FileNotFoundError:
        raise
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ModelFormatError(f"{path} is damaged, or no auxiliary buffer: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelFormatError(f"{path} is no auxiliary buffer of sb3_ppg")
    if description.get("version") != FORMAT_VERSION:
        raise ModelFormatError(
            f"{path} has version {description.get('version')} of its format, this sb3_ppg reads {FORMAT_VERSION}: use the one "
            "that wrote it"
        )
    return description, arrays


def _check(model: "PPG", normalizer: VecNormalize | None, arrays: dict[str, np.ndarray], path: Path) -> None:
    """Each array that the model needs is there, in its shape and type."""
    buffer = model.rollout_buffer
    sizes, context = (model.n_envs, model.n_steps), model._context()
    expected: dict[str, tuple[tuple[int, ...], np.dtype | type]] = {}
    for index in range(model._n_stored_rollouts):
        expected[f"value_targets/{index}"] = (sizes, np.float32)
        for key in _keys(model):
            array = buffer.observations[key] if isinstance(buffer.observations, dict) else buffer.observations
            shape = buffer.obs_shape[key] if isinstance(buffer.obs_shape, dict) else buffer.obs_shape
            expected[f"observations/{index}/{key}"] = ((*sizes, *shape), array.dtype)
        for name, array in context.items():
            expected[f"context/{index}/{name}"] = (array.shape, array.dtype)
    for name, array in {**_generator_states(), **_normalization(normalizer)}.items():
        if not name.startswith("torch/cuda/"):  # the machine may have other devices
            expected[name] = (array.shape, array.dtype)
    for name, (shape, dtype) in expected.items():
        if name not in arrays:
            raise ModelFormatError(f"{path} does not belong to this model: it has no {name}")
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            found = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ModelFormatError(f"{path} does not belong to this model: {name} is {found}, not {np.dtype(dtype)} {shape}")


# ---- the callback ----


class PhasicCheckpointCallback(BaseCallback):
    """
    Saves, after every ``save_freq``-th iteration (a rollout with its update) and at the end of training, all that it takes to
    go on as if nothing had happened: the model in ``<name_prefix>_<steps>_steps.zip``; beside it, in
    ``<name_prefix>_<steps>_steps.aux_buffer.npz``, the rollouts of the phase, ``VecNormalize``'s statistics and the
    generators::

        checkpoint = latest_checkpoint("checkpoints")
        model = PPG.load(checkpoint, env=env)
        model.load_aux_buffer(aux_buffer_path(checkpoint))
        model.learn(total_timesteps - model.num_timesteps, reset_num_timesteps=False)

    The model's file comes last and at once: where it is, the checkpoint is complete.

    :param save_freq: in iterations
    :param save_path: the folder; made if it is not there
    :param name_prefix: of the files
    :param keep: how many checkpoints, the latest; None: all
    :param verbose: 2: say when a checkpoint is saved
    :raises ArgumentError: for numbers that cannot work
    """

    def __init__(
        self, save_freq: int, save_path: str | Path, name_prefix: str = "ppg_model", keep: int | None = None, verbose: int = 0
    ):
        super().__init__(verbose)
        if save_freq < 1 or (keep is not None and keep < 1):
            raise ArgumentError(f"`{save_freq=}`, `{keep=}` cannot work: use integers of at least 1, or None to keep all")
        self.save_freq = save_freq
        self.save_path = Path(save_path)
        self.name_prefix = name_prefix
        self.keep = keep
        self._n_rollouts = 0
        self._saved_at: int | None = None

    def _on_training_start(self) -> None:
        self._n_rollouts = 0
        self._saved_at = self.num_timesteps if self.num_timesteps > 0 else None

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        """The iteration before it is over, its update included."""
        if self._n_rollouts > 0 and self._n_rollouts % self.save_freq == 0:
            self.save()
        self._n_rollouts += 1

    def _on_training_end(self) -> None:
        self.save()

    def save(self) -> None:
        """A checkpoint of now, unless there is one."""
        if self._saved_at == self.num_timesteps:
            return
        path = self.save_path / f"{self.name_prefix}_{self.num_timesteps}_steps.zip"
        self.model.save_aux_buffer(aux_buffer_path(path))  # type: ignore[attr-defined]
        self.model.save(path)
        self._saved_at = self.num_timesteps
        if self.verbose >= 2:
            print(f"Saving model checkpoint to {path}")
        if self.keep is not None:
            for old in _checkpoints(self.save_path, self.name_prefix)[: -self.keep]:
                old.unlink()  # the model first: what has none is no checkpoint
                aux_buffer_path(old).unlink(missing_ok=True)


def latest_checkpoint(save_path: str | Path, name_prefix: str = "ppg_model") -> Path:
    """
    :param save_path: the folder of a ``PhasicCheckpointCallback``
    :param name_prefix: its
    :return: the model's file of the latest complete checkpoint
    :raises FileNotFoundError: if there is none
    """
    checkpoints = _checkpoints(Path(save_path), name_prefix)
    if not checkpoints:
        raise FileNotFoundError(f"There is no checkpoint named {name_prefix}_..._steps.zip in {save_path}")
    return checkpoints[-1]


def _checkpoints(folder: Path, name_prefix: str) -> list[Path]:
    """The models' files, by steps."""
    name = re.compile(rf"{re.escape(name_prefix)}_(\d+)_steps\.zip")
    found = [(int(match[1]), path) for path in folder.glob("*.zip") if (match := name.fullmatch(path.name))]
    return [path for _, path in sorted(found)]

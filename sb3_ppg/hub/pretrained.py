"""
Models as plain data in a folder, without pickle.

``model.json`` holds what ``hub.schema`` describes, ``model.safetensors`` holds all arrays. Reading them unpickles, imports,
evaluates, compiles and writes nothing, and leaves the global random generators as they were.
"""

import copy
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import torch as th
from gymnasium.vector import VectorEnv
from safetensors.torch import save
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, VecTransposeImage, unwrap_vec_normalize

from sb3_ppg import prior
from sb3_ppg.actions import moderate
from sb3_ppg.arguments import LOCAL_ARGUMENTS, argument_names, without_numpy
from sb3_ppg.environments.watched import only_normalizer, statistics
from sb3_ppg.errors import ModelFormatError, missing_extras_named, raised_as, warn
from sb3_ppg.hub.files import Arrays, all_arrays, check_sizes, decode_json, load_arrays, read_json
from sb3_ppg.hub.schema import (
    MAX_COUNT,
    SCHEMA_VERSION,
    Bounded,
    Counters,
    Description,
    Header,
    Normalization,
    decode,
    encode,
    make_space,
    space_struct,
)
from sb3_ppg.objectives import objective_name
from sb3_ppg.policies.mlp import KNOWN_INPUTS
from sb3_ppg.ppg import PPG
from sb3_ppg.saving.files import atomic_writes, check_version, package_version
from sb3_ppg.saving.training_state import generators_kept, moments_of

DESCRIPTION, ARRAYS = "model.json", "model.safetensors"
VEC_NORMALIZE = [name for name in Normalization.__struct_fields__ if name != "observation_space"]
PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")


def save_pretrained(model: PPG, folder: str | Path, custom_objects: Mapping[str, Any] | None = None) -> None:
    """
    Write a model as plain data. The model that ``from_pretrained`` reads makes the same predictions and continues training
    exactly. As in SB3's zip files, the rollouts of an incomplete phase are not included: that phase starts over, with a
    warning.

    Example::

        from sb3_ppg import PPG, hub

        hub.save_pretrained(PPG("MlpPolicy", "CartPole-v1").learn(20_000), "my_model")
        model = hub.from_pretrained("my_model", env="CartPole-v1").learn(20_000)

    :param model: model to write
    :param folder: made if it does not exist; ``model.json`` and ``model.safetensors`` are written there, and replace earlier
        ones when they are complete
    :param custom_objects: objects that are not plain data, such as a features extractor of yours, by name; whoever loads the
        model must pass the same
    :raises ModelFormatError: if another part of the model is not plain data, or exceeds the limits of ``from_pretrained``
    :raises ArgumentError: if the model's environment has several ``VecNormalize``
    :raises OSError: if the files cannot be written; earlier ones are left as they were
    """
    custom = custom_objects or {}
    normalizer = only_normalizer(model.env) or model.get_vec_normalize_env()
    if normalizer is None and model._last_original_obs is not None:
        remedy = "load it with `env=VecNormalize.load(...)` first, or whoever loads it gets none"
        warn(f"This model was trained in a VecNormalize, whose statistics are not here: {remedy}")
    arrays = all_arrays(model)
    for name, rms in {} if normalizer is None else statistics(normalizer).items():
        arrays |= {f"vec_normalize.{name}.{part}": th.as_tensor(array) for part, array in moments_of(rms).items()}
    versions = {"python": platform.python_version(), "sb3-ppg": package_version()} | {name: version(name) for name in PACKAGES}
    counters = {name: without_numpy(getattr(model, name)) for name in Counters.__struct_fields__}
    counters["_total_timesteps"] = int(min(counters["_total_timesteps"], MAX_COUNT))  # `learn` takes floats, too, and infinity
    with raised_as(ModelFormatError, "A model that nobody could load"):
        description = Description(
            format="sb3_ppg",
            schema_version=SCHEMA_VERSION,
            versions=versions,
            algorithm=encode(type(model), "algorithm", custom),
            policy=encode(model.policy_class, "policy", custom),
            arguments={name: encode(_argument(model, name), name, custom) for name in _arguments(type(model))},
            observation_space=space_struct(model.observation_space, "observation_space"),
            action_space=space_struct(model.action_space, "action_space"),
            n_envs=int(model.n_envs),
            counters=Counters(**counters),
            vec_normalize=None
            if normalizer is None
            else Normalization(
                observation_space=space_struct(normalizer.venv.observation_space, "vec_normalize.observation_space"),
                **{name: without_numpy(getattr(normalizer, name)) for name in VEC_NORMALIZE},
            ),
            missing_rollouts=model.n_kept_rollouts(),
        )
        text = msgspec.json.format(msgspec.json.encode(description), indent=1)
        decode_json(text, f"A model that nobody could load: {DESCRIPTION}", Description)
    folder = Path(folder)
    with atomic_writes(folder / DESCRIPTION, folder / ARRAYS) as (new_text, new_arrays):
        new_text.write_bytes(text)
        # safetensors' own errors of writing would not be OSErrors
        new_arrays.write_bytes(save({name: array.detach().cpu().contiguous().clone() for name, array in arrays.items()}))
        with raised_as(ModelFormatError, "A model that nobody could load"):
            _read(new_text, new_arrays, th.device("cpu"), custom)


def from_pretrained(
    folder: str | Path,
    env: GymEnv | VectorEnv | str | None = None,
    device: th.device | str = "auto",
    *,
    custom_objects: Mapping[str, Any] | None = None,
) -> PPG:
    """
    Read a model that ``save_pretrained`` has written. Nothing in its files is imported, evaluated or unpickled.

    :param folder: folder of the files. Links are refused, except those of the Hub's client
    :param env: an environment to play or to continue training in, or its ID. If the model was trained with ``VecNormalize``
        and ``env`` has none, it is wrapped in one with the saved statistics: step ``model.get_env()``. A new ``VecNormalize``
        in ``env``, which may be inside of other wrappers, gets them, too, with the saved discount and limits; one that has
        statistics keeps its own
    :param device: device of the model
    :param custom_objects: objects that are not plain data, by the names that the author gave; and values in place of the
        model's arguments, by their names, as in SB3's ``load``
    :return: the model
    :raises ModelFormatError: if the files are damaged, not supported by this version, or need an object that was not passed
    """
    with generators_kept(), missing_extras_named():  # vectorized environments draw seeds
        venv: Any = None if env is None else PPG._wrap_env(env)
        model, saved = read_model(Path(folder), device, custom_objects, None if venv is None else venv.num_envs)
        if venv is None:
            model._vec_normalize_env = saved  # to be shared again
            return model
        with raised_as(ModelFormatError, "`env` is not what the model was trained in"):
            given = unwrap_vec_normalize(venv)
            if saved is not None and given is not None and all(rms.count < 1 for rms in statistics(given).values()):
                _fill(given, saved)
            if saved is not None and given is None:
                shape, saved_shape = (get_obs_shape(each.observation_space) for each in (venv, saved.venv))
                if isinstance(venv, VecTransposeImage) and shape != saved_shape:
                    venv = venv.venv  # the images were transposed outside of it
                venv = _wrap_in_vec_normalize(venv, saved)
            model.set_env(venv)
        model.set_random_seed(model.seed)  # as SB3's `load`
    return model


def read_model(
    folder: Path, device: th.device | str = "cpu", custom_objects: Mapping[str, Any] | None = None, n_envs: int | None = None
) -> tuple[PPG, VecNormalize | None]:
    """
    Read a model as ``from_pretrained`` does, but for ``n_envs`` environments (None: as many as it had). Also return its
    ``VecNormalize``, around environments that cannot be stepped, or None if it was trained without one.
    """
    if not os.path.lexists(folder / DESCRIPTION):
        raise ModelFormatError(
            f"{folder} holds no model: there is no {DESCRIPTION}. hub.load fetches a model from the Hub. An SB3 zip file is "
            "not read, because loading one runs whatever code its author put in; PPG.load loads one whose author you trust"
        )
    device = get_device(device)
    with raised_as(ModelFormatError, f"{folder}: no model can be made of it"):
        return _read(folder / DESCRIPTION, folder / ARRAYS, device, custom_objects or {}, n_envs)


def _read(
    text: Path, tensors: Path, device: th.device, custom: Mapping[str, Any], n_envs: int | None = None
) -> tuple[PPG, VecNormalize | None]:
    with generators_kept():
        header = read_json(text, Header)
        check_version(text, header.schema_version, SCHEMA_VERSION, header.versions.get("sb3-ppg"))
        description, arrays = read_json(text, Description), Arrays(tensors)
        normalizer = _make_vec_normalize(description, arrays)
        cls = decode(description.algorithm, "algorithm", custom)
        if not (isinstance(cls, type) and issubclass(cls, PPG)):
            raise ModelFormatError(f"algorithm: {cls} is not PPG")
        arguments = {
            name: custom[name] if name in custom else decode(value, name, custom)  # as in SB3's `load`
            for name, value in description.arguments.items()
        }
        if unknown := arguments.keys() - set(_arguments(cls)):
            raise ModelFormatError(f"arguments: {cls.__name__} has no {sorted(unknown)}")
        msgspec.convert({name: value for name, value in arguments.items() if name not in custom}, Bounded)
        # A file decides neither that a compiler runs, nor where arrays are kept
        arguments["compile_updates"] = custom.get("compile_updates", False)
        arguments["aux_buffer_kwargs"] = custom.get("aux_buffer_kwargs")
        policy = decode(description.policy, "policy", custom)
        model = cls(policy, None, device=device, _init_setup_model=False, **arguments)  # type: ignore[arg-type]
        model.observation_space = make_space(description.observation_space)
        model.action_space = make_space(description.action_space)
        model.n_envs = n_envs or description.n_envs
        model.check_arguments()
        seed, model.seed = model.seed, None  # nothing is seeded
        if not any(isinstance(value, type) for value in custom.values()):  # a caller's classes may not work without numbers
            check_sizes(model, arrays)
        model._setup_model()
        model.seed = seed
        vars(model).update(msgspec.structs.asdict(description.counters), _missing_rollouts=description.missing_rollouts)
        load_arrays(model, arrays)
        if model.use_sde:
            model.policy.reset_noise()  # on the right device, as SB3 does
        _check_outputs(model)
    return model, normalizer


@th.no_grad()
def _check_outputs(model: PPG) -> None:
    """Evaluate the networks for one observation, and raise an error if a result is not finite."""
    space = moderate(model.observation_space)
    space.seed(0)
    observation = space.sample()
    policy = model.policy
    policy.set_training_mode(False)
    if tuple(policy.input_keys) in KNOWN_INPUTS:
        model.predict(observation)
    tensors, _ = policy.obs_to_tensor(observation)
    batch = policy.step_batch(tensors, np.ones(1, dtype=bool), policy.initial_memory(1))
    _, latent_pi, latent_vf, _ = policy.evaluate_batch(batch, auxiliary=True)
    if not th.cat([policy.aux_value_net(latent_pi), policy.value_net(latent_vf)]).isfinite().all():
        raise ModelFormatError("its networks give values that are not finite")


def _arguments(cls: type[PPG]) -> list[str]:
    left_out = LOCAL_ARGUMENTS | {"stats_window_size"}  # which is about the log
    return [name for name in argument_names(cls) if name not in left_out]


def _argument(model: PPG, name: str) -> Any:
    if name == "objective":
        return objective_name(model.objective_class)
    if name == "prior" and isinstance(model.prior, prior.Prior):
        return prior.PRIOR_LEFT_OUT
    return getattr(model, name)


# ---- VecNormalize ----


def _make_vec_normalize(description: Description, arrays: Arrays) -> VecNormalize | None:
    """Make the normalization of a file, around environments that cannot be stepped."""
    saved = description.vec_normalize
    if saved is None:
        return None
    spaces_only: gym.Env = gym.Env()
    spaces_only.observation_space = make_space(saved.observation_space)
    spaces_only.action_space = make_space(description.action_space)
    settings = {name: getattr(saved, name) for name in VEC_NORMALIZE}
    settings |= {name: math.inf for name in ("clip_obs", "clip_reward") if settings[name] is None}
    env = VecNormalize(DummyVecEnv([lambda: spaces_only]), **settings)
    for name, rms in statistics(env).items():
        for part, array in moments_of(rms).items():
            setattr(rms, part, arrays.take(f"vec_normalize.{name}.{part}", th.as_tensor(array)).numpy())
    return env


def _wrap_in_vec_normalize(venv: VecEnv, saved: VecNormalize) -> VecNormalize:
    space = venv.observation_space
    venv.observation_space = copy.deepcopy(space)  # of a Dict, SB3 2.9.2 replaces the spaces of images, also those of `saved`
    env = VecNormalize(venv, **{name: getattr(saved, name) for name in VEC_NORMALIZE})
    if saved.norm_obs and env.observation_space != saved.observation_space:
        venv.observation_space = space
        raise ModelFormatError(
            f"the model's VecNormalize was around observations {saved.venv.observation_space}, these are {space}: give an "
            "environment with all its wrappers, and a new VecNormalize among them"
        )
    _fill(env, saved)
    return env


def _fill(env: VecNormalize, saved: VecNormalize) -> None:
    """Give a new ``VecNormalize`` the statistics, discount and limits of a saved one, which normalizes the same parts."""
    ours, theirs = statistics(env), statistics(saved)
    shapes = [{name: np.shape(rms.mean) for name, rms in each.items()} for each in (ours, theirs)]
    if shapes[0] != shapes[1]:
        remedy = f"make it with norm_obs={saved.norm_obs}, norm_obs_keys={saved.norm_obs_keys}"
        raise ModelFormatError(f"its VecNormalize has statistics of shapes {shapes[0]}, the model's of {shapes[1]}: {remedy}")
    vars(env).update({name: getattr(saved, name) for name in ("gamma", "epsilon", "clip_obs", "clip_reward")})
    for name, rms in ours.items():
        vars(rms).update(copy.deepcopy(vars(theirs[name])))

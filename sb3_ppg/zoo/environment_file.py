"""``zoo.json``: the part of a shared model that says how RL Zoo makes its environment."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.files import read_json
from sb3_ppg.hub.schema import Plain

ZOO = "zoo.json"
MAX_BYTES = 2**14
# The wrappers that a shared model may name, by module
WRAPPERS_OF = {
    "stable_baselines3.common.atari_wrappers": """
        AtariWrapper ClipRewardEnv EpisodicLifeEnv FireResetEnv MaxAndSkipEnv NoopResetEnv StickyActionEnv WarpFrame""",
    "rl_zoo3.wrappers": """
        ActionNoiseWrapper ActionSmoothingWrapper DelayedRewardWrapper FrameSkip HistoryWrapper HistoryWrapperObsDict
        MaskVelocityWrapper TimeFeatureWrapper YAMLCompatResizeObservation""",
    "gymnasium.wrappers": """
        ClipAction FlattenObservation FrameStackObservation GrayscaleObservation RescaleAction RescaleObservation
        ResizeObservation TimeAwareObservation TimeLimit""",
    "gymnasium.wrappers.transform_observation": "GrayscaleObservation ResizeObservation",
    "minigrid.wrappers": """
        FlatObsWrapper FullyObsWrapper ImgObsWrapper OneHotPartialObsWrapper RGBImgObsWrapper RGBImgPartialObsWrapper""",
}
WRAPPERS = {f"{module}.{name}" for module, names in WRAPPERS_OF.items() for name in names.split()}

# A wrapper as hyperparameter files have it: a name, or a name with its arguments
Wrapper = str | Annotated[dict[str, dict[str, Plain]], Meta(min_length=1, max_length=1)]
Wrappers = Wrapper | list[Wrapper] | None


class Settings(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hyperparameters that the environment needs, and the length of the training."""

    n_timesteps: Annotated[float, Meta(ge=0, le=2**53)] = 0.0
    frame_stack: Annotated[int, Meta(ge=1, le=1000)] | None = None
    env_wrapper: Wrappers = None
    vec_env_wrapper: Wrappers = None


class Environment(msgspec.Struct, forbid_unknown_fields=True):
    """An environment of RL Zoo."""

    env_id: str
    env_kwargs: dict[str, Plain]
    config: Settings

    @property
    def wrappers(self) -> list[str]:
        """Names of all wrappers."""
        settings = (self.config.env_wrapper, self.config.vec_env_wrapper)
        entries = [entry for one in settings for entry in (one if isinstance(one, list) else [one]) if entry]
        return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def environment_of(env_id: str, hyperparams: dict[str, Any], env_kwargs: dict[str, Any]) -> Environment:
    """
    :param env_id: environment
    :param hyperparams: as the Zoo saves them
    :param env_kwargs: options of the environment
    :return: description of the environment
    :raises ModelFormatError: if part of it is not plain data
    """
    config = {name: hyperparams[name] for name in Settings.__struct_fields__ if name in hyperparams}
    try:
        return msgspec.convert({"env_id": env_id, "env_kwargs": env_kwargs, "config": config}, Environment)
    except msgspec.ValidationError as error:
        raise ModelFormatError(f"the environment cannot be shared: {error} (of {config} and {env_kwargs})") from error


def read_environment(file: Path) -> Environment:
    """
    Read a stranger's file.

    :raises ModelFormatError: if it is anything but such a description
    """
    return read_json(file, Environment, MAX_BYTES)

"""``zoo.json``: the part of a shared model that says how RL Zoo makes its environment."""

import json
import math
import re
from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sb3_ppg.errors import ModelFormatError
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

MAX_NUMBER = 1000  # larger arguments could take much memory or time
MAX_FRAMES = 64  # of all stacks together
WORD = re.compile(r"[\w-]{1,40}", re.ASCII)  # no path, no XML, no expression

# A wrapper as hyperparameter files have it: a name, or a name with its arguments
Wrapper = str | Annotated[dict[str, dict[str, Plain]], Meta(min_length=1, max_length=1)]
Wrappers = Wrapper | list[Wrapper] | None


class Settings(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hyperparameters that the environment needs, and the length of the run."""

    n_timesteps: Annotated[float, Meta(ge=0, le=2**53)] = 0.0
    frame_stack: Annotated[int, Meta(ge=1, le=1000)] | None = None
    env_wrapper: Wrappers = None
    vec_env_wrapper: Wrappers = None


class Environment(msgspec.Struct, forbid_unknown_fields=True):
    """An environment of RL Zoo."""

    env_id: str
    env_kwargs: dict[str, Plain]
    config: Settings

    def check(self, allowed: Collection[str]) -> None:
        """
        :param allowed: names that the environment may have in addition to the well-known wrappers and arguments
        :raises ModelFormatError: if it has others, or arguments that could name a file or take much memory
        """
        values = dict(self.arguments)
        for name in self.to_allow:
            if name not in allowed:
                what = f"argument {name!r} with {values[name]!r}" if name in values else f"wrapper {name!r}"
                raise ModelFormatError(
                    f"the model's environment has the {what}, which is not one of the well-known ones, or not a usual value: "
                    f"if you know what it does, load the model with --allow {name}"
                )
        for name, value in self.arguments:
            if not all(WORD.fullmatch(text) for text in re.findall(r'"(.*?)"', json.dumps(value))):
                raise ModelFormatError(
                    f"the model's environment has the argument {name!r} with {value!r}, a text in which could name a file"
                )
        n_frames: Any = self.config.frame_stack or 1
        for name, arguments in self.wrappers:
            stacked = arguments.get("stack_size", arguments.get("horizon", 2 if "HistoryWrapper" in name else 1))
            n_frames *= max(1, stacked) if isinstance(stacked, int | float) else math.inf
        if n_frames > MAX_FRAMES:
            raise ModelFormatError(f"the model's environment stacks {n_frames} observations; at most {MAX_FRAMES} are allowed")

    @property
    def wrappers(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and arguments of all wrappers."""
        settings = (self.config.env_wrapper, self.config.vec_env_wrapper)
        entries = [entry for one in settings for entry in (one if isinstance(one, list) else [one]) if entry]
        return [(entry, {}) if isinstance(entry, str) else next(iter(entry.items())) for entry in entries]

    @property
    def arguments(self) -> list[tuple[str, Any]]:
        """Arguments of the environment and of all wrappers."""
        return [*self.env_kwargs.items(), *(item for _, arguments in self.wrappers for item in arguments.items())]

    @property
    def to_allow(self) -> list[str]:
        """Names of the wrappers and arguments that need the user's consent."""
        wrappers = [name for name, _ in self.wrappers if name not in WRAPPERS]
        return [*wrappers, *(name for name, value in self.arguments if not _is_usual(value))]


def _is_usual(value: Any) -> bool:
    """Return whether an argument is a boolean, a number in the usual range, or a list of a few of them."""
    if isinstance(value, list):
        return len(value) <= 8 and all(_is_usual(one) and not isinstance(one, list) for one in value)
    # A negative whole number could remove a limit
    return isinstance(value, int | float) and abs(value) <= MAX_NUMBER and (value >= 0 or value % 1 != 0)


def environment_of(env_id: str, hyperparams: dict[str, Any], env_kwargs: dict[str, Any]) -> Environment:
    """Describe an environment by its options and the hyperparameters that the Zoo saves, which must be plain data."""
    config = {name: hyperparams[name] for name in Settings.__struct_fields__ if name in hyperparams}
    try:
        return msgspec.convert({"env_id": env_id, "env_kwargs": env_kwargs, "config": config}, Environment)
    except msgspec.ValidationError as error:
        raise ModelFormatError(f"the environment cannot be shared: {error} (of {config} and {env_kwargs})") from error

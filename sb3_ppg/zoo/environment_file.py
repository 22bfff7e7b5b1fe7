"""``zoo.json``: the part of a shared model that says how RL Zoo makes its environment."""

import math
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any

import gymnasium
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

# Arguments that a shared model may give, apart from those of `--allow`: numbers and booleans that name no file, take no memory
# and make no other environment; by the module of the environment, and for all wrappers together
OPTIONS_OF = {
    "gymnasium.envs.classic_control": "sutton_barto_reward g goal_velocity",
    "gymnasium.envs.box2d": """
        continuous gravity enable_wind wind_power turbulence_power hardcore lap_complete_percent domain_randomize""",
    "gymnasium.envs.toy_text": """
        is_slippery success_rate reward_schedule natural sab is_rainy fickle_passenger rainy_probability
        fickle_probability""",
    "gymnasium.envs.mujoco": """
        frame_skip forward_reward_weight ctrl_cost_weight contact_cost_weight contact_cost_range contact_force_range
        impact_cost_weight impact_cost_range uph_cost_weight reward_near_weight reward_dist_weight reward_control_weight
        healthy_reward healthy_state_range healthy_z_range healthy_angle_range terminate_when_unhealthy reset_noise_scale
        use_contact_forces exclude_current_positions_from_observation include_cinert_in_observation
        include_cvel_in_observation include_qfrc_actuator_in_observation include_cfrc_ext_in_observation""",
    "ale_py": """
        mode difficulty frameskip repeat_action_probability full_action_space continuous continuous_action_threshold
        max_num_frames_per_episode""",
    "minigrid": "size room_size agent_view_size max_steps see_through_walls num_crossings n_obstacles random_length",
    "sb3_ppg.environments": """
        num_levels start_level use_sequential_levels center_agent use_backgrounds use_monochrome_assets restrict_themes
        use_generated_assets paint_vel_info use_easy_jump""",
    "sb3_ppg.zoo.environments": "sticky_action_prob difficulty_ramping",
}
ALWAYS = "max_episode_steps"
WRAPPER_OPTIONS = """
    action_repeat_probability clip_reward delay flatten frame_skip height horizon keep_dim max_action max_episode_steps
    max_obs max_steps maxStrLen min_action min_obs noise_std noop_max normalize_time screen_size shape skip
    smoothing_coef stack_size terminal_on_life_loss test_mode tile_size width""".split()
LARGEST = {
    **dict.fromkeys(("size", "room_size", "agent_view_size", "tile_size", "stack_size", "horizon", "num_crossings"), 32),
    **dict.fromkeys(("n_obstacles", "frame_skip", "frameskip", "skip"), 100),
    **dict.fromkeys(("screen_size", "shape", "width", "height", "maxStrLen"), 512),
    **dict.fromkeys(("num_levels", "start_level", "max_episode_steps", "max_steps", "delay"), 2**31 - 1),
}  # and 0 is the smallest
LARGEST_OF_OTHERS = 10_000  # in both directions
MOST_FRAMES = 64  # of all stacks together
WORD = re.compile(r"[\w-]{1,40}", re.ASCII)  # no path, no XML, no expression

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

    def check(self, allowed: Collection[str]) -> None:
        """
        :param allowed: names that the environment may have in addition to the well-known wrappers and arguments
        :raises ModelFormatError: if it has others, or arguments that could name a file or take much memory
        """
        values = dict(self.arguments)
        for name in self.to_allow:
            if name not in allowed and name not in values:
                raise ModelFormatError(
                    f"the model's environment has the wrapper {name!r}, which is not one of the well-known ones: if you trust "
                    f"the module of that name that you have installed, load it with --allow {name}"
                )
            if name not in allowed:
                raise ModelFormatError(
                    f"the model's environment has the argument {name!r} with {values[name]!r}, which is not one of the "
                    f"well-known ones, or not a usual value: if you know what it does, load it with --allow {name}"
                )
        for name, value in self.arguments:
            for text in _texts(value):
                if not WORD.fullmatch(text):
                    raise ModelFormatError(
                        f"the model's environment has the argument {name!r} with the text {text!r}, which could name a file"
                    )
        n_frames: Any = self.config.frame_stack or 1
        for name, arguments in self.wrappers:
            stacked = arguments.get("stack_size", arguments.get("horizon", 2 if "HistoryWrapper" in name else 1))
            n_frames *= max(1, stacked) if isinstance(stacked, int | float) else math.inf
        if n_frames > MOST_FRAMES:
            raise ModelFormatError(
                f"the model's environment stacks {n_frames} observations; at most {MOST_FRAMES} are allowed"
            )

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
        spec = gymnasium.registry.get(self.env_id)
        known = {ALWAYS}
        for module, names in OPTIONS_OF.items():
            if spec is not None and f"{spec.entry_point}".startswith((f"{module}.", f"{module}:")):
                known |= {*names.split()}
        unusual = [name for name, value in self.env_kwargs.items() if name not in known or not _is_small(name, value)]
        for wrapper, arguments in self.wrappers:
            unusual += [] if wrapper in WRAPPERS else [wrapper]
            unusual += [name for name, one in arguments.items() if name not in WRAPPER_OPTIONS or not _is_small(name, one)]
        return unusual


def _is_small(name: str, value: Any) -> bool:
    """Return whether an argument is a boolean, a number in its range, or a few of them."""
    if isinstance(value, list):
        return len(value) <= 8 and all(_is_small(name, one) and not isinstance(one, list) for one in value)
    smallest, largest = (0, LARGEST[name]) if name in LARGEST else (-LARGEST_OF_OTHERS, LARGEST_OF_OTHERS)
    return isinstance(value, bool | int | float) and smallest <= value <= largest


def _texts(value: Any) -> Iterator[str]:
    """Iterate over all texts in an argument."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(one)


def environment_of(env_id: str, hyperparams: dict[str, Any], env_kwargs: dict[str, Any]) -> Environment:
    """
    Describe an environment by its options and the hyperparameters that the Zoo saves.

    :raises ModelFormatError: if part of it is not plain data
    """
    config = {name: hyperparams[name] for name in Settings.__struct_fields__ if name in hyperparams}
    try:
        return msgspec.convert({"env_id": env_id, "env_kwargs": env_kwargs, "config": config}, Environment)
    except msgspec.ValidationError as error:
        raise ModelFormatError(f"the environment cannot be shared: {error} (of {config} and {env_kwargs})") from error

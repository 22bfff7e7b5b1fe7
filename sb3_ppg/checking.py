"""``check``: let an untrained PPG play in an environment, and report faults that spoil training without an error."""

import io
import math
import os
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from typing import Any, NamedTuple
from unittest.mock import patch

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize
from typing_extensions import override

from sb3_ppg.arrays import map_arrays
from sb3_ppg.environments.vec_envs import GymnasiumVecEnv, observation_at
from sb3_ppg.environments.watched import innermost, normalizers
from sb3_ppg.errors import PACKAGE, ArgumentError, missing_extras_named
from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.policies.extractors import SMALLEST, how_to_convolve
from sb3_ppg.ppg import PPG
from sb3_ppg.saving.training_state import generators_kept

LEVELS = ("error", "warning", "advice")


class Finding(NamedTuple):
    """
    One fault of an environment, or one piece of advice.

    :param kind: its name
    :param level: "error": training would fail, or learn from wrong data; "warning": it would learn less; "advice": no fault
    :param seen: what was seen
    :param remedy: what to do about it; empty if ``seen`` says it
    """

    kind: str
    level: str
    seen: str
    remedy: str


class EnvironmentReport(NamedTuple):
    """
    The result of ``check``; ``print`` shows all of it.

    :param name: ID or class of the environment
    :param findings: findings, the most severe first
    :param ends: numbers of episodes by the way they ended: "terminated", "truncated" or, in a single environment, "both"
    """

    name: str
    findings: list[Finding]
    ends: dict[str, int]

    @override
    def __str__(self) -> str:
        ends = ", ".join(f"{n} {kind}" for kind, n in self.ends.items()) or "none has ended"
        lines = (f"{level:8} {seen}" + f"\n{'->':>11} {remedy}" * bool(remedy) for _, level, seen, remedy in self.findings)
        return "\n".join([f"{self.name}: episodes: {ends}", *lines])


def check(env: Any, seconds: float = 3.0, **arguments: Any) -> EnvironmentReport:
    """
    Let an untrained PPG play in an environment. What PPG refuses is an error. Other faults are time limits that are reported
    as terminations, lost last observations, and wrappers and warning filters that disturb training. Then recommend an
    algorithm, a policy, and sizes of rollouts. SB3's and Gymnasium's ``check_env`` look for faults of other kinds.

    Example::

        import sb3_ppg

        report = sb3_ppg.check("CartPole-v1", seconds=0.5)
        print(report)
        assert not [finding for finding in report.findings if finding.level == "error"]

    :param env: an ID, a callable that makes an environment, an environment, a ``VecEnv``, or a vector environment of
        Gymnasium. Running statistics of its wrappers do not change, except in worker processes. An environment that you
        pass is not reset at the end, so reset it before you use it
    :param seconds: seconds of play; some faults show only after three episodes
    :param arguments: arguments of ``PPG`` that the environment needs, such as ``reward_weights``
    :return: findings with remedies
    :raises ArgumentError: if ``env`` is not an environment
    """
    kinds = (gym.Env, VecEnv, gym.vector.VectorEnv)
    is_given = isinstance(env, kinds)
    with missing_extras_named(), warnings.catch_warnings(), redirect_stdout(io.StringIO()), generators_kept():
        warnings.simplefilter("ignore")
        before = [*warnings.filters]
        made = env if is_given or not callable(env) else env()
        made = gym.make(made) if isinstance(made, str) else made
        if not isinstance(made, kinds):
            raise ArgumentError(f"`env`={made!r} is no environment: use one of Gymnasium or SB3, an ID, or what makes one")
        play = _Play(made, seconds)
        try:
            with ExitStack() as frozen:
                for layer in (*normalizers(play.given), *_with_statistics(play.given)):
                    switch = "training" if isinstance(layer, VecNormalize) else "_update_running_mean"
                    frozen.enter_context(patch.object(layer, switch, False))
                play.begin(arguments)
            findings = [*play.faults(), *play.advice()]
        except Exception as error:
            *_, frame = traceback.extract_tb(error.__traceback__)
            place = "" if frame.filename.startswith(PACKAGE) else f"see {frame.filename}, line {frame.lineno}"
            findings = [Finding("training fails", "error", f"{type(error).__name__}: {error}", place)]
        if not is_given:
            made.close()
        new = [entry for entry in warnings.filters if entry not in before and entry[1] is entry[3] is None]
    if new := [entry for entry in new if entry[2].__module__ == "builtins"]:  # not a library's for its own kind of warning
        seen = f"the environment sets filters for all warnings of the process: {new}"
        remedy = "import and make it within `with warnings.catch_warnings():`"
        findings.append(Finding("warning filters", "warning", seen, remedy))
    name = getattr(getattr(made, "spec", None), "id", type(getattr(made, "unwrapped", made)).__name__)
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return EnvironmentReport(name, findings, {kind: len(lengths) for kind, lengths in play.lengths.items() if lengths})


def policy_for(space: spaces.Space) -> str:
    """Return the name of the policy for observations of a space."""
    is_image = is_image_space(space) and sorted(space.shape or ())[1] >= SMALLEST
    return "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if is_image else "MlpPolicy"


def _with_statistics(env: Any) -> Iterator[Any]:
    """Iterate over the wrappers of Gymnasium, such as ``NormalizeReward``, that keep running statistics."""
    found = [innermost(env)]
    for layer in found:  # which grows
        attributes = getattr(layer, "__dict__", {})
        if "_update_running_mean" in attributes:
            yield layer
        if isinstance(layer, DummyVecEnv | SyncVectorEnv):
            found += layer.envs
        elif "env" in attributes:
            found.append(layer.env)


class _Recorder(gym.Wrapper):
    """Records both end flags of the last step, which a ``VecEnv`` merges, and the time that all steps take."""

    flags: tuple[bool, bool] = (False, False)
    seconds = 0.0

    @override
    def step(self, action: Any) -> Any:
        start = time.perf_counter()
        result = self.env.step(action)
        self.seconds += time.perf_counter() - start
        self.flags = result[2:4]
        return result


class _Play(BaseCallback):
    """A callback that measures environments while an untrained model plays, and derives faults and advice from that."""

    def __init__(self, env: Any, seconds: float):
        super().__init__()
        self.given, self.seconds = env, seconds
        self.recorder = _Recorder(env) if isinstance(env, gym.Env) and not isinstance(env, VectorEnv) else None
        self.lengths: dict[str, list[int]] = {"terminated": [], "truncated": [], "both": []}  # of episodes, by their ends
        self.n_missing = self.n_not_next = self.n_zero = 0  # last observations: missing, not the next one, zeros
        self.first: Any = None  # an episode's first observation, as bytes
        self.starts_vary = False
        self.rewards = math.inf, -math.inf  # the smallest and the largest

    def begin(self, arguments: dict[str, Any]) -> None:
        """Let a new model play, which is not trained."""
        env = PPG._wrap_env(self.recorder or self.given)
        has_masks = False
        with suppress(Exception):  # a VecEnv need not know what it is asked
            has_masks = is_masking_supported(env)
        self.algorithm: type[PPG] = MaskablePPG if has_masks else PPG
        self.policy = policy_for(env.observation_space)
        untrained = type(self.algorithm.__name__, (self.algorithm,), {"train": lambda model: None})
        defaults = dict(policy=self.policy, env=env, n_steps=128, device="cpu", compile_updates=False)
        untrained(**{**defaults, **arguments}).learn(math.inf, self)

    @override
    def _on_training_start(self) -> None:
        n_envs = self.training_env.num_envs
        self.n_steps = np.zeros(n_envs, dtype=int)  # of the current episodes
        self.is_gymnasium = isinstance(innermost(self.training_env), GymnasiumVecEnv)
        self.end = time.perf_counter() + self.seconds

    @override
    def _on_step(self) -> bool:
        self.n_steps += 1
        rewards = self.locals["rewards"]
        self.rewards = min(self.rewards[0], rewards.min()), max(self.rewards[1], rewards.max())
        for index in self.locals["dones"].nonzero()[0].tolist():
            info, has_both_flags = self.locals["infos"][index], self.recorder is not None and all(self.recorder.flags)
            kind = "truncated" if info.get("TimeLimit.truncated") else "both" if has_both_flags else "terminated"
            if "episode" in info or not self.is_gymnasium:  # a step that only resets looks like an episode, but is none
                self.lengths[kind].append(int(self.n_steps[index]))
            self.n_steps[index] = 0
            new, last = observation_at(self.locals["new_obs"], index), info.get("terminal_observation")
            first = _bytes(new)
            if last is None:
                self.n_missing += kind == "truncated"
                self.n_not_next += 1
            else:
                last = _bytes({key: last[key] for key in new} if isinstance(new, dict) else last)  # in the same order
                self.n_not_next += last != first
                self.n_zero += kind != "terminated" and len(last) >= 40 and not any(last) and any(first)
            self.starts_vary |= self.first not in (None, first)
            self.first = first
        return time.perf_counter() < self.end

    def faults(self) -> Iterator[Finding]:
        terminated, truncated, both = self.lengths.values()
        lost_steps = innermost(self.training_env).lost_steps if self.is_gymnasium else None
        if lost_steps is not None:
            yield Finding("lost steps", "warning", *lost_steps)
        if self.n_missing:
            seen = f"{self.n_missing} of {len(truncated)} truncated episodes have no 'terminal_observation' in their info"
            yield Finding("missing terminal observation", "error", seen, "store a copy of the last observation there")
        if self.starts_vary and self.n_not_next == 0:
            seen = "at each end, the last observation is the first one of the next episode"
            remedy = "return a copy from `reset` and `step`; in a VecEnv, store a copy in infos[i]['terminal_observation']"
            yield Finding("missing terminal observation", "error", seen, remedy)
        if 0 < self.n_zero == len(truncated) + len(both):
            seen = "at each time limit, the last observation is all zeros"
            yield Finding("zero terminal observation", "warning", seen, "return the last state, whose value is needed")
        unflagged = both if len(both) > 2 else terminated + both
        if not truncated and len(unflagged) > 2 and 1 < min(unflagged) == max(unflagged):
            how = "with both flags, which counts as terminated" if unflagged is both else "none of them as truncated"
            seen = f"{len(unflagged)} of {len(terminated) + len(both)} episodes end at step {unflagged[0]}, {how}"
            remedy = f"if this is a time limit, return only `truncated`, or use `ignore_terminations`={unflagged[0]}"
            yield Finding("time limit", "warning", seen, remedy)
        kinds = (NormalizeObservation, NormalizeReward) if isinstance(innermost(self.training_env), SubprocVecEnv) else ()
        in_workers = [kind for kind in kinds if any(self.training_env.env_is_wrapped(kind))]
        for name in sorted({kind.__name__ for kind in (*map(type, _with_statistics(self.given)), *in_workers)}):
            seen = f"{name} keeps running statistics, which are not saved with the model"
            yield Finding("running statistics", "warning", seen, "use SB3's VecNormalize, which all environments share")

    def advice(self) -> Iterator[Finding]:
        lengths = [length for kind in self.lengths.values() for length in kind]
        spec: Any = None
        with suppress(Exception):  # a VecEnv of one's own may have no attributes
            spec = self.training_env.get_attr("spec")[0]
        length = np.median(lengths) if lengths else getattr(spec, "max_episode_steps", None)
        said, n_steps = f"no episode has ended in {self.n_calls} steps", ""
        if length:
            said = f"an episode has {length:.0f} steps ({'median' if lengths else 'limit'})"
            n_steps = f", n_steps={np.clip(2 ** np.ceil(np.log2(length)), 128, 1024):.0f}"
        if self.rewards[0] == self.rewards[1]:
            said += f", the reward is always {self.rewards[0]:g}"
        n_envs, further = self.training_env.num_envs, ""
        if self.recorder is not None:
            step_seconds = self.recorder.seconds / self.n_calls
            is_slow = step_seconds > 1e-3  # worker processes take their time, too
            said += f", a step takes {step_seconds * 1e3:,.3f} ms"  # in ASCII, which a file on every system can hold
            n_envs, further = max(2, os.cpu_count() or 1) if is_slow else 8, " in SubprocVecEnv" * is_slow
        space = self.training_env.observation_space
        for part in space.values() if isinstance(space, spaces.Dict) else [space]:
            may_be_image = len(part.shape or ()) == 3 or (part.dtype == np.uint8 and len(part.shape or ()) > 1)
            if may_be_image and policy_for(part) == "MlpPolicy":
                further = f"{further}; {how_to_convolve(part)}"
        remedy = f'{self.algorithm.__name__}("{self.policy}"{n_steps}), with {n_envs} environments{further}'
        yield Finding("policy", "advice", said, remedy)


def _bytes(observation: Any) -> bytes:
    """Return an observation's numbers as bytes, four for each, in which NaN equals itself and -0 equals 0."""
    parts: list[bytes] = []
    map_arrays(lambda array: parts.append(np.add(array, 0, dtype=np.float32).tobytes()), observation)
    return b"".join(parts)

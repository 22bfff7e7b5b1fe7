"""``check``: play an environment, and report faults that spoil training without an error."""

import copy
import io
import os
import re
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env as check_env_of_gymnasium
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from sb3_ppg.arrays import map_arrays
from sb3_ppg.environments.vec_envs import GymnasiumVecEnv
from sb3_ppg.errors import ArgumentError, missing_extras_named

# Level and remedy of each kind of finding
KINDS = {
    "raises": ("error", "see {place}"),
    "space": ("error", "make the space and the observations agree"),
    "type": ("error", "declare the type that the observations have: rollouts store them in the type of the space"),
    "not finite": ("error", "find the cause; for a policy that can handle it, use `allow_nonfinite_observations`=True"),
    "bounds": ("warning", "widen the space, or clip: images, and wrappers that rescale, rely on the bounds"),
    "replaced space": ("error", "set it in the constructor: networks are made for the space before the first `reset`"),
    "new space": ("advice", "keep the space, whose seed is lost with it"),
    "arrays": ("warning", "return a copy from `reset` and `step`: PPG copies what it keeps, other libraries do not"),
    "reward": ("error", "return one finite number in each step; for a vector, use `reward_weights`=[...]"),
    "integer rewards": ("warning", "return float32: SB3's algorithms add γV at time limits, of which integers keep nothing"),
    "scale": ("advice", "multiply rewards, or use VecNormalize(norm_obs=False); above 1, PPG's value units do that"),
    "time limit": ("warning", "if this is a time limit, return only `truncated`, or use `ignore_terminations`={limit}"),
    "last": ("error", "keep the last observation (VecEnv: a copy in infos[i]['terminal_observation']), whose value is needed"),
    "last zero": ("warning", "return the state in which the episode ends: its value is needed at time limits"),
    "seed": ("warning", "seed all random numbers in `reset` (`super().reset(seed=seed)`) or when it is made; set all state"),
    "seed 0": ("warning", "write `if seed is not None`, or use seeds from 1 on"),
    "filters": ("warning", "import and make it within `with warnings.catch_warnings():`"),
    "checker fails": ("warning", ""),
}
N_COMPARED = 200  # steps whose observations are compared with earlier ones
GAMMA, SMALL, LARGE = 0.99, 0.01, 100.0  # of discounted returns, and their standard deviation


class Finding(NamedTuple):
    """
    One fault of an environment, or one piece of advice.

    :param kind: its name
    :param level: "error": training would fail, or learn from wrong data; "warning": it would learn less, or not be
        reproducible; "advice": no fault
    :param seen: what was seen when it first occurred
    :param remedy: what to do about it
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
    :param ends: numbers of episodes by the way they ended: "terminated", "truncated", "both" (flags), or "unflagged" (in a
        ``VecEnv`` that does not say which)
    """

    name: str
    findings: list[Finding]
    ends: Counter[str]

    def __str__(self) -> str:
        ends = ", ".join(f"{n} {kind}" for kind, n in self.ends.items()) or "none has ended"
        lines = (f"{level:8} {seen}" + f"\n{'->':>11} {remedy}" * bool(remedy) for _, level, seen, remedy in self.findings)
        return "\n".join([f"{self.name}: episodes: {ends}", *lines])


def check(env: Any, seconds: float = 3.0) -> EnvironmentReport:
    """
    Play an environment with random actions, and report faults that SB3's ``check_env`` does not look for: observations outside
    their space, observations that are overwritten later, seeds that do not repeat, time limits that are reported as
    terminations, lost last observations, rewards of unusual kind or scale, replaced spaces and warning filters. Then recommend
    a policy, rollouts and an algorithm. The checkers of SB3 and Gymnasium are called, too.

    Example::

        import sb3_ppg

        report = sb3_ppg.check("CartPole-v1", seconds=0.5)
        print(report)
        assert not [one for one in report.findings if one.level == "error"]

    :param env: an ID or a callable that makes an environment, of which two are made and compared; or an environment, a
        ``VecEnv``, or a vector environment of Gymnasium. Only the first one of several environments is checked. An environment
        that you pass is not reset at the end, so reset it before you use it
    :param seconds: seconds of play; all checks together take about twice as long
    :return: findings with remedies
    :raises ArgumentError: if ``env`` is not an environment
    """
    make = (lambda: gym.make(env)) if isinstance(env, str) else env
    make = make if callable(make) and not isinstance(make, (gym.Env, VecEnv, gym.vector.VectorEnv)) else None
    with missing_extras_named(), warnings.catch_warnings(record=True), redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        before = [*warnings.filters]
        inspection = other = _Inspection(make() if make else env)
        try:
            inspection.play(seconds)
            inspection.judge()
            inspection.advise()
            with suppress(Exception):  # some allow one in a process
                other = _Inspection(make()) if make else other
            inspection.ask_checkers()
            inspection.compare_seeds(other, seconds)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            kind = "seed" if inspection.step_seconds > 0 else "raises"
            inspection.note(kind, f"{type(error).__name__}: {error}", place=f"{frame.filename}, line {frame.lineno}")
        for made in {inspection, other} if make else ():
            made.env.close()
        new = [one for one in warnings.filters if one not in before and one[1] is one[3] is None]
    if new := [one for one in new if one[2].__module__ == "builtins"]:  # not a library's for its own kind of warning
        inspection.note("filters", f"the environment sets filters for all warnings of the process: {new}")
    found = sorted(inspection.findings, key=lambda one: ("error", "warning", "advice").index(one.level))
    return EnvironmentReport(inspection.name, found, inspection.ends)


def policy_for(space: spaces.Space) -> str:
    """Return the name of the policy for observations of a space; the default network for images needs 36 x 36 pixels."""
    is_image = is_image_space(space) and sorted(space.shape or ())[1] >= 36
    return "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if is_image else "MlpPolicy"


def _leaves(function: Callable[..., Any], *trees: Any) -> list[bool]:
    found: list[bool] = []
    map_arrays(lambda *leaves: found.append(bool(function(*leaves))), *trees)
    return found


def _equal(*both: Any) -> bool:
    return all(_leaves(np.array_equal, *both))


class _Inspection:
    """A single environment or a ``VecEnv``, the report on it, and the measurements behind that."""

    def __init__(self, env: Any):
        env = GymnasiumVecEnv(env) if isinstance(env, gym.vector.VectorEnv) else env
        if not isinstance(env, (gym.Env, VecEnv)):
            raise ArgumentError(f"`env`={env!r} is no environment: use one of Gymnasium or SB3, an ID, or what makes one")
        self.env: Any = env
        self.is_single, self.n_envs = isinstance(env, gym.Env), getattr(env, "num_envs", 1)
        self.actions = copy.deepcopy(self.env.action_space)  # with a random generator of its own
        self.name = getattr(getattr(env, "spec", None), "id", type(getattr(env, "unwrapped", env)).__name__)
        self.findings: list[Finding] = []
        self.n_steps, self.step_seconds = 0, 0.0
        self.lengths, self.returns = list[int](), list[float]()  # of episodes; discounted sums of rewards since their starts
        self.ends, self.lost = Counter[str](), Counter[str]()  # ways in which episodes end, and last observations are lost
        self.varies = self.has_zero = self.shares = self.changes = False  # of observations

    def note(self, kind: str, seen: str, remedy: str = "", **values: Any) -> None:
        """Add a finding, unless there is one of this kind, or a checker has said it."""
        level, remedy = KINDS.get(kind, ("advice", remedy))
        seen = re.sub(r"\x1b\[[0-9;]*m|WARN: ", "", seen).partition("\n")[0][:300]  # without Gymnasium's colors
        if not any(one.kind == kind and (remedy or one.seen == seen) for one in self.findings):
            self.findings.append(Finding(kind, level, seen, remedy.format(**values)))

    def reset(self, seed: int | None = None) -> Any:
        if self.is_single:
            observation, _ = self.env.reset(seed=seed)
            return observation
        if seed is not None:
            self.env.seed(seed)
        return map_arrays(lambda array: array[0, ...], self.env.reset())

    def step(self) -> tuple[Any, Any, str, Any]:
        """Return an observation (after an end, the next episode's first), a reward, an end or "", and the last observation."""
        actions: Any = [self.actions.sample() for _ in range(self.n_envs)]
        if self.is_single:
            last, reward, terminated, truncated, _ = self.env.step(actions[0])
            end = ("", "terminated", "truncated", "both")[bool(terminated) + 2 * bool(truncated)]
            return self.reset() if end else last, reward, end, last
        is_nested = isinstance(self.actions, (spaces.Dict, spaces.Tuple))
        observations, rewards, dones, infos = self.env.step(actions if is_nested else np.array(actions))
        observation, flag = map_arrays(lambda array: array[0, ...], observations), infos[0].get("TimeLimit.truncated")
        end = "" if not dones[0] else "truncated" if flag else "unflagged" if flag is None else "terminated"
        return observation, rewards[0], end, infos[0].get("terminal_observation")

    def play(self, seconds: float) -> None:
        given = self.env.observation_space, self.env.action_space
        observation, kept, length, discounted = self.reset(), deque[Any](maxlen=3), 0, 0.0
        for before, after in zip(given, (self.env.observation_space, self.env.action_space), strict=True):
            if after is not before:
                kind = "new space" if after == before else "replaced space"
                self.note(kind, f"`reset` has replaced the space {before} by {after}")
        self._compare(observation, kept)
        start, in_steps = time.perf_counter(), 0.0
        while (now := time.perf_counter()) < start + seconds:
            observation, reward, end, last = self.step()
            in_steps += time.perf_counter() - now
            self.n_steps, length = self.n_steps + 1, length + 1
            if self.n_steps < N_COMPARED:
                self._compare(observation, kept)
            discounted = GAMMA * discounted + self._number(reward)
            self.returns.append(discounted)
            self._look(given[0], observation)
            if end:
                self.ends[end] += 1
                self.lost[self._look_at_last(given[0], last, observation)] += 1
                self.lengths.append(length)
                length, discounted = 0, 0.0
        self.step_seconds = in_steps / max(1, self.n_steps)

    def _compare(self, observation: Any, kept: deque[Any]) -> None:
        for earlier, copied in kept:
            self.shares |= any(_leaves(lambda *both: np.ndim(both[0]) and np.may_share_memory(*both), earlier, observation))
            self.changes |= not _equal(earlier, copied)
            self.varies |= not _equal(observation, copied)
        kept.append((observation, copy.deepcopy(observation)))
        self.has_zero |= not any(_leaves(np.any, observation))

    def _look(self, space: spaces.Space, observation: Any, place: str = "an observation") -> None:
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            for key, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
                self._look(part, observation[key], f"{place}[{key!r}]")
            return
        array = np.asarray(observation)
        if space.shape is not None and array.shape != space.shape:
            self.note("space", f"{place} has shape {array.shape} in {space}")
        elif array.dtype.kind == "f" and np.dtype(space.dtype).kind in "iub":
            self.note("type", f"{place} is {array.dtype} in {space}")
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            self.note("not finite", f"{place} is NaN or infinite")
        elif isinstance(space, spaces.Box):
            beyond = np.maximum(space.low.astype(float) - array, array - space.high.astype(float))
            if beyond.max(initial=0) > 0 and unwrap_vec_normalize(self.env) is None:  # which leaves the space as it was
                at = np.unravel_index(beyond.argmax(), space.shape)
                bounds = f"{space.low[at]} to {space.high[at]}"
                self.note("bounds", f"{place} has {array[at]} at {[*map(int, at)]}, where the space has {bounds}")
        elif not space.contains(observation):
            self.note("space", f"{place} is {observation!r}, not in {space}")

    def _look_at_last(self, space: spaces.Space, last: Any, following: Any) -> str:
        if last is None:
            return "missing"
        self._look(space, last)
        is_large = any(_leaves(lambda array: np.size(array) >= 10, last))
        return "next" if _equal(last, following) else "zero" if is_large and not any(_leaves(np.any, last)) else ""

    def _number(self, reward: Any) -> float:
        value = np.asarray(reward)
        if value.ndim > 0 or value.dtype.kind not in "fiub" or not np.isfinite(value):
            self.note("reward", f"a reward is {reward!r}")
        elif value.dtype.kind != "f" and not self.is_single:  # SB3 converts those of single ones
            self.note("integer rewards", f"a reward is {value.dtype}")
        return float(np.sum(value)) if value.dtype.kind in "fiub" else 0.0

    def judge(self) -> None:
        n, lost, lengths = self.ends.total(), self.lost, self.lengths or [0]
        longest, scale = max(lengths), float(np.std(self.returns or [0]))
        is_one_length = n > 2 and 1 < longest == min(lengths) and not self.ends["truncated"]
        is_next, is_zero = (self.varies and 1 < longest and lost[kind] == n for kind in ("next", "zero"))
        for kind, is_so, seen in (
            ("arrays", self.changes, "an observation changes in later steps: its array is written again"),
            ("arrays", self.shares, "observations are views of the environment's own data"),
            ("scale", 0 < scale < SMALL or scale > LARGE, f"discounted returns have a standard deviation of {scale:.3g}"),
            ("time limit", is_one_length, f"all {n} episodes end at step {longest}, none of them as truncated"),
            ("time limit", self.ends["both"], f"{self.ends['both']} of {n} ends have both flags, which counts as terminated"),
            ("time limit", self.ends["unflagged"], "no info has 'TimeLimit.truncated' at the end of an episode"),
            ("last", lost["missing"], f"{lost['missing']} of {n} ends have no 'terminal_observation'"),
            ("last", is_next, "at each end, the last observation is the first one of the next episode"),
            ("last zero", is_zero and not self.has_zero, "at each end, the last observation is all zeros"),
        ):
            if is_so:
                self.note(kind, seen, limit=longest)

    def compare_seeds(self, other: "_Inspection", seconds: float) -> None:
        """Start from each seed twice, with the same actions, the second time in another environment if there is one."""
        n_steps = int(np.clip(seconds / 8 / max(self.step_seconds, 1e-6), 5, 100))

        def episode(played: _Inspection, seed: int) -> list[Any]:
            played.actions.seed(seed)
            first = copy.deepcopy(played.reset(seed))
            return [first, *(copy.deepcopy(played.step()[:3]) for _ in range(n_steps))]

        runs = [episode(self, 0), episode(self, 1), episode(other, 1), episode(other, 0)]
        for kind, one, two in (("seed", runs[1], runs[2]), ("seed 0", runs[0], runs[3])):
            steps = [k for k, both in enumerate(zip(one, two, strict=True)) if not _equal(*both)]
            if steps:
                self.note(kind, f"what follows the same {kind} and the same actions differs from step {steps[0]} on")
                break

    def ask_checkers(self) -> None:
        of_gymnasium = partial(check_env_of_gymnasium, skip_render_check=True, skip_close_check=True)
        for name, call in (("SB3's", check_env_of_sb3), ("Gymnasium's", of_gymnasium)) if self.is_single else ():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    call(self.env)
                except Exception as error:
                    self.note("checker fails", f"{name} check_env: {error}")
            for one in caught:
                if issubclass(one.category, UserWarning) and "unwrapped version" not in str(one.message):
                    self.note("checker", f"{name} check_env: {one.message}")

    def advise(self) -> None:
        """Suggest a policy, rollouts, and the algorithm that is ahead in the results of docs/algorithm/ppg.md."""
        space, length = self.env.observation_space, np.median(self.lengths or [max(1, self.n_steps)])
        n_steps = int(np.clip(2 ** np.ceil(np.log2(length)), 128, 1024))
        policy, has_cells = policy_for(space), len(space.shape or ()) == 3
        is_slow = self.is_single and self.step_seconds > 1e-3  # worker processes take their time, too
        n_envs = max(2, os.cpu_count() or 1) if is_slow else 8 if self.is_single else self.n_envs
        seen = f"a step takes {self.step_seconds * 1e6:,.0f} µs, an episode {length:.0f} steps (median)"
        further = " in SubprocVecEnv" * is_slow + "; for grids see MinAtarCNN" * (has_cells and policy == "MlpPolicy")
        self.note("policy", seen, f'PPG("{policy}", n_steps={n_steps}), with {n_envs} environments{further}')
        results = "ahead of PPO with all defaults (scores of 0.71 and 0.60)"
        if isinstance(space, spaces.Dict) or has_cells:
            results = "ahead of PPO in Procgen's steps, level in those of MinAtar and Pong, and behind in MinAtar's seconds"
        remedy = f"use PPO below three phases ({12 * n_steps * n_envs:,} steps); ask `sb3-ppg compare` about this environment"
        self.note("algorithm", f"in the results of docs/algorithm/ppg.md, not measured here, PPG is {results}", remedy)

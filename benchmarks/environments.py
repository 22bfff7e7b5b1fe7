"""
Packages of environments. Each is installed in a virtual environment of its own, above the packages of this one, where one of
its environments is checked, PPG trains in it, and the model is saved, loaded and played. What fails has its reason there.

    python -m benchmarks.environments run --package highway-env minigrid
"""

import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import yaml
from gymnasium import spaces

from benchmarks.harness import Experiment, Report, machines
from benchmarks.venvs import attempt, make_venv
from sb3_ppg import PPG, check
from sb3_ppg.checking import policy_for
from sb3_ppg.comparison.report import page, table

ROOT = Path(__file__).parent.parent
PACKAGES = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
SMALL = dict(n_steps=64, n_policy_iterations=2, seed=0, device="cpu")  # the rest are defaults
SEEN = ("policy", "spaces", "ends", "seeds", "findings", "result")
TOO_LONG = 180  # seconds, for pip and for the rest


def wanted() -> list[dict[str, str]]:
    """Return all packages."""
    return [dict(package=name, pip=package["pip"], make=package["make"]) for name, package in PACKAGES.items()]


def train(run: dict[str, str], folder: Path) -> tuple[dict[str, str], None]:
    """Install a package and look at its environment in another process, whose end is no end of ours."""
    python, seen = folder / "venv" / "bin" / "python", folder / "seen.json"
    look = [str(python), "-c", f"from benchmarks.environments import look; look({run['make']!r}, {str(seen)!r})"]
    row = dict.fromkeys(SEEN, "")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "egl"}
    for stage, command in {"pip": make_venv(folder / "venv", run["pip"]), "it": look}.items():
        _, reason = attempt(command, TOO_LONG, cwd=folder, env=environment)
        if seen.exists():
            row |= json.loads(seen.read_text())
        if reason:
            return row | {"result": f"{row['result'] or stage}: {reason}"}, None
    return row, None


def look(code: str, file: str) -> None:
    """Check an environment, train in it, save, load, play, and write what is seen after each part."""
    seen = dict.fromkeys(SEEN, "")

    def write(**values: str) -> None:
        seen.update(values)
        Path(file).write_text(json.dumps(seen))

    arguments: dict[str, Any] = dict(SMALL)

    def make() -> Any:
        names: dict[str, Any] = {"gym": gym}
        exec(code, names)
        arguments.update(names.get("kwargs", {}))
        return names["env"]

    write(result="making and checking it")
    env = make()
    report = check(make, seconds=2.0, **arguments)
    space = getattr(env, "single_observation_space", env.observation_space)
    write(spaces=f"{_short(space)}; {_short(getattr(env, 'single_action_space', env.action_space))}", policy=policy_for(space))
    env.close()
    found = [finding.seen[:160] for finding in report.findings if finding.level != "advice"]
    ends = ", ".join(f"{n} {kind}" for kind, n in report.ends.items()) or "none in 2 s"
    write(ends=ends, findings="; ".join(found), result="training")
    model = PPG(seen["policy"], make(), **arguments)
    n_timesteps, start = 3 * model.n_steps * model.n_envs * model.n_policy_iterations, time.perf_counter()
    model.learn(n_timesteps)
    assert model.n_aux_phases == 3
    speed = n_timesteps / (time.perf_counter() - start)
    write(result="saving, loading, playing")
    with TemporaryDirectory() as folder:
        model.save(f"{folder}/model")
        loaded = PPG.load(f"{folder}/model")
    venv: Any = model.get_env()
    observations = venv.reset()
    for _ in range(20):
        actions, _ = loaded.predict(observations, deterministic=True)
        assert np.array_equal(actions, model.predict(observations, deterministic=True)[0])
        observations, *_ = venv.step(actions)
    write(result=f"trains ({speed:,.0f} steps/s), is saved and loaded, plays")


def _short(space: spaces.Space) -> str:
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {_short(part)}' for key, part in space.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(map(_short, space))})"
    return f"Box{space.shape} {space.dtype}" if isinstance(space, spaces.Box) else str(space)


def report(experiment: Experiment) -> Report:
    """Return the table."""
    rows, lines = experiment.rows().fillna("").set_index("package"), []
    for name, package in PACKAGES.items():
        if name in rows.index:
            row = rows.loc[name]
            texts = [f"{name}: {package['what']}", f"`{row['pip']}`", f"`{row['make']}`", *row[list(SEEN)]]
            lines.append([str(text).replace("|", "/").replace("\n", " ") for text in texts])
    n_good = sum(line[-1].startswith("trains") for line in lines)
    text = page(
        "Environments that were run",
        f"`python -m benchmarks.environments run`, `report`: {len(lines)} packages, in {n_good} of which PPG trains. Each is "
        "in a virtual environment of its own; `sb3_ppg.check` plays for two seconds, and PPG trains for three phases of 2 x "
        "64 steps per environment, with defaults otherwise, which says nothing about learning. Ends are those of random "
        "actions; findings are the errors and warnings of the check, cut to 160 characters. Rows with seeds are from commit "
        "76f21b7, where the check also asked Gymnasium's and SB3's, and compared what the same seed and actions give in two "
        "environments. Steps/s include updates, on a machine that was busy. "
        f"{machines(experiment.rows())}",
        table(["package", "pip", "start", "policy", "observations; actions", "ends", "seeds", "findings", "PPG"], lines),
    )
    return {"environments.md": text}


ENVIRONMENTS = Experiment("environments", wanted, train, report)

if __name__ == "__main__":
    ENVIRONMENTS.main()

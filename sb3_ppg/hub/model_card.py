"""The README.md of a model on the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from huggingface_hub import EvalResult, ModelCardData

from sb3_ppg.errors import requirement
from sb3_ppg.family import member_of
from sb3_ppg.ppg import PPG

TAGS = "deep-reinforcement-learning reinforcement-learning stable-baselines3 sb3-ppg ppg phasic-policy-gradient".split()


class Evaluation(NamedTuple):
    """Returns of an agent in its evaluation."""

    mean: float  # return of an episode
    std: float
    n_episodes: int
    deterministic: bool = True


def model_card(folder: Path, env_id: str | None, env_kwargs: dict[str, Any], evaluation: Evaluation | None, usage: str) -> str:
    """
    Return a model card: Markdown, with the metadata that the Hub reads.

    :param folder: folder of the model's files; "replay.mp4" and "learning_curve.png" are shown if they are there
    :param usage: how to load the model, in Markdown
    """
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    algorithm = _readable(description["algorithm"])
    metadata = ModelCardData(
        library_name="stable-baselines3", pipeline_tag="reinforcement-learning", tags=[*TAGS, *([env_id] if env_id else [])]
    )
    shown = []
    if evaluation is not None:
        mean, std, n_episodes, deterministic = evaluation
        actions = "deterministic" if deterministic else "stochastic"
        shown = [
            f"Mean return **{mean:.2f} ± {std:.2f}** (standard deviation) over {n_episodes} episodes with {actions} actions."
        ]
        if env_id is not None:
            value = f"{mean:.2f} +/- {std:.2f}"
            metadata.model_name = algorithm
            metadata.eval_results = [EvalResult("reinforcement-learning", env_id, env_id, "mean_reward", value)]
    if (folder / "learning_curve.png").exists():
        shown.append("![Learning curve](learning_curve.png)")
    if (folder / "replay.mp4").exists():
        shown.append('<video controls src="replay.mp4"></video>')
    normalization = {
        name: value for name, value in (description["vec_normalize"] or {}).items() if name != "observation_space"
    }
    hyperparameters = {
        "policy": _readable(description["policy"]),
        "environments in parallel": description["n_envs"],
        "VecNormalize": normalization or None,
        **{name: str(_readable(value)) for name, value in description["arguments"].items()},
    }
    options = {f"option {name}": value for name, value in env_kwargs.items()}
    sections = [
        f"---\n{metadata.to_yaml()}\n---",
        f"# **{algorithm}** agent" + (f" playing **{env_id}**" if env_id else ""),
        "A model of [Phasic Policy Gradient](https://arxiv.org/abs/2009.04416), trained with sb3_ppg, its plugin for "
        "[Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3). It is plain data: loading it runs no code of its "
        "author's.",
        *shown,
        "## Usage",
        usage,
        "## Hyperparameters",
        _table(hyperparameters),
        "## Environment and versions",
        _table({"environment": env_id, **options, **description["versions"]}),
        f"Trained for {description['counters']['num_timesteps']:,} steps.",
    ]
    return "\n\n".join(sections) + "\n"


def python_usage(
    cls: type[PPG], repo_id: str, env_id: str | None, env_kwargs: dict[str, Any], custom_objects: list[str]
) -> str:
    """
    Return how to install, load and use a model, in Markdown.

    :param cls: class of the model
    :param repo_id: repository of the model
    :param env_id: environment. None: it cannot be made from a name
    :param env_kwargs: arguments of the environment
    :param custom_objects: names of the objects that a reader must give
    """
    member = member_of(cls)
    env, imports = "...  # the one that it was trained in, with its wrappers and options", [member.card_imports]
    if env_id is not None:
        env = f"make_vec_env({env_id!r}{f', env_kwargs={env_kwargs!r}' if env_kwargs else ''})"
        imports = [_import_of(env_id), *imports, "from stable_baselines3.common.env_util import make_vec_env"]
    custom = f", custom_objects={{{', '.join(f'{name!r}: ...' for name in custom_objects)}}}" if custom_objects else ""
    lines = "\n".join([*filter(None, imports), "from sb3_ppg import hub"])
    return f"""```bash
pip install {requirement("hub")}
```

```python
{lines}

env = {env}
model = hub.load({repo_id!r}, env=env{custom})
env = model.get_env()
{member.card_example}
```"""


def _import_of(env_id: str) -> str:
    """Return the import that registers an environment, or nothing for Gymnasium's own."""
    if env_id.startswith("MinAtar/"):  # which the import alone does not register
        return "from minatar.gym import register_envs; register_envs()"
    spec = gymnasium.registry.get(env_id)
    entry_point = spec.entry_point if spec else None
    package = entry_point.__module__ if callable(entry_point) else str(entry_point or "gymnasium").split(":")[0].split(".")[0]
    return "" if package in ("gymnasium", "__main__") else f"import {package}  # registers the environment"


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items() if value is not None)])


def _readable(data: Any) -> Any:
    """Return what ``schema.encode`` wrote, for people."""
    match data:
        case list():
            return [_readable(item) for item in data]
        case {"$linear": [start, end, fraction]}:
            return f"{start} to {end}, linear over {fraction:.0%} of the run"
        case dict():
            parts = {key: _readable(value) for key, value in data.items()}
            return next(iter(parts.values())) if any(key.startswith("$") for key in parts) else parts
    return data

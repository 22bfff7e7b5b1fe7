"""The README.md of a model on the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from huggingface_hub import EvalResult, ModelCardData

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
    :param folder: with the model's files; "replay.mp4" and "learning_curve.png" are shown if they are there
    :param env_id: the environment, if it is known
    :param env_kwargs: its options
    :param evaluation: if there was one
    :param usage: how to load it, in Markdown
    :return: Markdown, with the metadata that the Hub reads
    """
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    algorithm = _readable(description["algorithm"])
    normalization = description["vec_normalize"]
    if normalization is not None:
        del normalization["observation_space"]
    hyperparameters = {
        "policy": _readable(description["policy"]),
        "environments in parallel": description["n_envs"],
        "VecNormalize": normalization,
        **{name: str(_readable(value)) for name, value in description["arguments"].items()},
    }
    options = {"environment": env_id, **{f"option {name}": value for name, value in env_kwargs.items()}}
    results = []
    if evaluation is not None:
        actions = "deterministic" if evaluation.deterministic else "stochastic"
        results = [
            f"Mean return **{evaluation.mean:.2f} ± {evaluation.std:.2f}** (standard deviation) over {evaluation.n_episodes} "
            f"episodes with {actions} actions."
        ]
    if (folder / "learning_curve.png").exists():
        results.append("![Learning curve](learning_curve.png)")
    if (folder / "replay.mp4").exists():
        results.append('<video controls src="replay.mp4"></video>')
    sections = [
        f"---\n{_metadata(algorithm, env_id, evaluation).to_yaml()}\n---",
        f"# **{algorithm}** agent" + (f" playing **{env_id}**" if env_id else ""),
        "A model of [Phasic Policy Gradient](https://arxiv.org/abs/2009.04416), trained with sb3_ppg, its plugin for "
        "[Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3). It is plain data: loading it runs no code of its "
        "author's.",
        *results,
        "## Usage",
        usage,
        "## Hyperparameters",
        _table(hyperparameters),
        "## Environment and versions",
        _table({**options, **description["versions"]}),
        f"Trained for {description['counters']['num_timesteps']:,} steps.",
    ]
    return "\n\n".join(sections) + "\n"


def python_usage(
    cls: type[PPG], repo_id: str, env_id: str | None, env_kwargs: dict[str, Any], custom_objects: list[str]
) -> str:
    """
    :param cls: of the model
    :param repo_id: where the model is
    :param env_id: the environment. None: it cannot be made from a name
    :param env_kwargs: its options
    :param custom_objects: the names of what a reader has to give
    :return: Markdown: how to install, load and use it
    """
    options = f", env_kwargs={env_kwargs!r}" if env_kwargs else ""
    env = (
        f"make_vec_env({env_id!r}{options})"
        if env_id
        else "...  # the one that it was trained in, with its wrappers and options"
    )
    member = member_of(cls)
    imports = [member.card_imports] if member.card_imports else []
    imports += ["from stable_baselines3.common.env_util import make_vec_env"] if env_id else []
    header = _import_of(env_id) + "".join(f"{line}\n" for line in imports) + ("\n" if imports else "")
    custom = f", custom_objects={{{', '.join(f'{name!r}: ...' for name in custom_objects)}}}" if custom_objects else ""
    return f"""```bash
pip install "sb3-ppg[hub]"
```

```python
{header}from sb3_ppg import hub

env = {env}
model = hub.load({repo_id!r}, env=env{custom})
env = model.get_env()
{member.card_example}
```"""


def _import_of(env_id: str | None) -> str:
    """Return the import that registers an environment, if it is not Gymnasium's own."""
    if env_id is not None and env_id.startswith("MinAtar/"):  # which the import alone does not register
        return "from minatar.gym import register_envs; register_envs()\n"
    spec = gymnasium.registry.get(env_id or "")
    entry_point = spec.entry_point if spec else None
    package = entry_point.__module__ if callable(entry_point) else str(entry_point or "gymnasium").split(":")[0].split(".")[0]
    return "" if package in ("gymnasium", "__main__") else f"import {package}  # registers the environment\n"


def _metadata(algorithm: str, env_id: str | None, evaluation: Evaluation | None) -> ModelCardData:
    metadata = ModelCardData(
        library_name="stable-baselines3",
        pipeline_tag="reinforcement-learning",
        tags=[*TAGS, *([env_id] if env_id else [])],
    )
    if evaluation is not None and env_id is not None:
        metadata.model_name = algorithm
        metadata.eval_results = [
            EvalResult(
                task_type="reinforcement-learning",
                dataset_type=env_id,
                dataset_name=env_id,
                metric_type="mean_reward",
                metric_value=f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}",
            )
        ]
    return metadata


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items() if value is not None)])


def _readable(data: Any) -> Any:
    """Show to people what ``values.encode`` wrote for programs."""
    match data:
        case list():
            return [_readable(item) for item in data]
        case {"$linear": [start, end, fraction]}:
            return f"{start} to {end}, linear over {fraction:.0%} of the training"
        case dict():
            parts = {key: _readable(value) for key, value in data.items()}
            return next(iter(parts.values())) if any(key.startswith("$") for key in parts) else parts
    return data

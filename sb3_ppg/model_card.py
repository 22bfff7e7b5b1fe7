"""The README.md of a model on the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData

TAGS = [
    "deep-reinforcement-learning",
    "reinforcement-learning",
    "stable-baselines3",
    "sb3-ppg",
    "ppg",
    "phasic-policy-gradient",
]


class Evaluation(NamedTuple):
    """How good an agent is."""

    mean: float  # return of an episode
    std: float
    n_episodes: int
    deterministic: bool = True


def model_card(
    folder: Path, repo_id: str, env_id: str | None, evaluation: Evaluation | None, usage: str | None, custom_objects: list[str]
) -> str:
    """
    :param folder: with the model's files; "replay.mp4" and "learning_curve.png" are shown if they are there
    :param repo_id: where it will be
    :param env_id: the environment, if it is known
    :param evaluation: if there was one
    :param usage: how to load it, in Markdown. None: with ``hub.load``
    :param custom_objects: the names of what a reader has to give
    :return: Markdown, with the metadata that the Hub reads
    """
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    algorithm = description["algorithm"].get("$class", "sb3_ppg.ppg.PPG").rpartition(".")[2]
    sections = [
        f"---\n{_metadata(repo_id, algorithm, env_id, evaluation).to_yaml()}\n---",
        f"# **{algorithm}** agent" + (f" playing **{env_id}**" if env_id else ""),
        "A model of [Phasic Policy Gradient](https://arxiv.org/abs/2009.04416), trained with sb3_ppg, its plugin for "
        "[Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3). It is plain data: loading it runs no code of its "
        "author's.",
        *(_evaluation(evaluation) if evaluation else []),
        *(["![Learning curve](learning_curve.png)"] if (folder / "learning_curve.png").exists() else []),
        *(['<video controls src="replay.mp4"></video>'] if (folder / "replay.mp4").exists() else []),
        "## Usage",
        usage or python_usage(repo_id, env_id, custom_objects),
        "## Hyperparameters",
        f"```json\n{json.dumps(description['arguments'], indent=2)}\n```",
        "## Environment and versions",
        _table({"environment": env_id, "environments in parallel": description["n_envs"], **description["versions"]}),
        f"Trained for {description['counters']['num_timesteps']:,} steps.",
    ]
    return "\n\n".join(sections) + "\n"


def python_usage(repo_id: str, env_id: str | None, custom_objects: list[str]) -> str:
    """
    :param repo_id: where the model is
    :param env_id: the environment, if it is known
    :param custom_objects: the names of what a reader has to give
    :return: Markdown: how to install, load and use it
    """
    custom = f", custom_objects=dict({', '.join(f'{name}=...' for name in custom_objects)})" if custom_objects else ""
    return f"""```bash
pip install "sb3-ppg[hub]"
```

```python
from sb3_ppg import hub

model = hub.load({repo_id!r}, env={env_id!r}{custom})
env = model.get_env()
obs = env.reset()
for _ in range(1000):
    action, _ = model.predict(obs, deterministic=True)
    obs, rewards, dones, infos = env.step(action)
```"""


def _metadata(repo_id: str, algorithm: str, env_id: str | None, evaluation: Evaluation | None) -> ModelCardData:
    results = None
    if evaluation is not None and env_id is not None:
        result = EvalResult(
            task_type="reinforcement-learning",
            task_name="reinforcement-learning",
            dataset_type=env_id,
            dataset_name=env_id,
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}",
        )
        results = [result]
    return ModelCardData(
        library_name="stable-baselines3",
        pipeline_tag="reinforcement-learning",
        tags=[*TAGS, *([env_id] if env_id else [])],
        model_name=algorithm if results else None,
        eval_results=results,
    )


def _evaluation(evaluation: Evaluation) -> list[str]:
    actions = "deterministic" if evaluation.deterministic else "stochastic"
    return [
        f"Mean return **{evaluation.mean:.2f} ± {evaluation.std:.2f}** (standard deviation) over "
        f"{evaluation.n_episodes} episodes with {actions} actions."
    ]


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items() if value is not None)])

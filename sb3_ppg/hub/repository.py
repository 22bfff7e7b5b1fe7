"""Models in repositories of the Hugging Face Hub, and their model cards."""

import json
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import huggingface_hub
import torch as th
from gymnasium.vector import VectorEnv
from huggingface_hub import EvalResult, ModelCardData
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize, VecTransposeImage

from sb3_ppg.environments.watched import layers
from sb3_ppg.errors import HubError, raised_as, requirement
from sb3_ppg.family import member_of
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION, from_pretrained, save_pretrained
from sb3_ppg.ppg import PPG

TAGS = "deep-reinforcement-learning reinforcement-learning stable-baselines3 sb3-ppg ppg phasic-policy-gradient".split()


class EvaluationResult(NamedTuple):
    """Returns of an agent in its evaluation."""

    mean: float  # return of an episode
    std: float
    n_episodes: int
    deterministic: bool = True


def push(
    model: PPG,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | bool | None = None,
    commit_message: str = "Share a model of sb3_ppg",
    **content: Any,
) -> str:
    """
    Share a model on the Hugging Face Hub, with a model card. The repository is created if there is none.

    Example::

        from sb3_ppg import PPG, hub

        hub.push(PPG("MlpPolicy", "CartPole-v1").learn(20_000), "your_name/ppg-cartpole")
        model = hub.load("your_name/ppg-cartpole", env="CartPole-v1")

    :param model: model to share
    :param repo_id: "user/name"
    :param private: whether a new repository is private
    :param revision: branch to commit to. None: the main branch
    :param token: token for the Hub. None: the token that ``hf auth login`` stored
    :param commit_message: message of the commit, which has all files
    :param content: ``env_id``, ``evaluation``, ``files``, ``usage`` and ``custom_objects``, see ``write_repository``
    :return: address of the commit
    :raises ModelFormatError: if a part of the model is not plain data
    :raises HubError: if the Hub does not take the commit; the repository's files are then unchanged
    """
    with tempfile.TemporaryDirectory() as folder:
        write_repository(model, folder, repo_id, **content)
        api = huggingface_hub.HfApi(token=token, library_name="sb3_ppg", library_version=version("sb3-ppg"))
        no_token = "" if token or huggingface_hub.get_token() else ". There is no token: `hf auth login` stores one"
        with raised_as(HubError, f"{repo_id} could not be pushed{no_token}"):
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                commit_message=commit_message,
                # Files of an earlier model
                delete_patterns=[DESCRIPTION, ARRAYS, "zoo.json", "replay.mp4", "learning_curve.png", "logs/*"],
            )
        return str(commit.commit_url)


def write_repository(
    model: PPG,
    folder: str | Path,
    repo_id: str,
    *,
    env_id: str | None = None,
    evaluation: EvaluationResult | None = None,
    files: Mapping[str, Path] | None = None,
    usage: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> None:
    """
    Write the files that ``push`` shares into a folder: the model, further files, and the model card.

    :param model: model to share
    :param folder: made if it does not exist
    :param repo_id: "user/name" of the repository, for the card
    :param env_id: ID of the environment, for the card. None: the model's environment, if it has one
    :param evaluation: evaluation of the model, for the card
    :param files: paths of further files, by their names in the folder. The card shows "replay.mp4" and "learning_curve.png"
    :param usage: the card's text about loading, in Markdown. None: a text about ``hub.load``
    :param custom_objects: objects that are not plain data, by name; whoever loads the model must pass the same
    :raises ModelFormatError: if a part of the model is not plain data
    """
    made_as, env_kwargs = _environment(model)
    folder = Path(folder)
    save_pretrained(model, folder, custom_objects)
    files = files or {}
    for name, path in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)
    if usage is None:
        is_normalized = model.get_vec_normalize_env() is not None
        cls = type(model) if getattr(model, "_use_masking", True) else PPG  # whose code has no masks
        usage = python_usage(cls, repo_id, made_as, env_kwargs, list(custom_objects or {}), is_normalized)
    card = model_card(folder, files, env_id or made_as, env_kwargs, evaluation, usage)
    (folder / "README.md").write_text(card, encoding="utf-8")


def load(
    repo_id: str,
    env: GymEnv | VectorEnv | str | None = None,
    device: th.device | str = "auto",
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> PPG:
    """
    Fetch a model from the Hugging Face Hub, or from the client's cache if the Hub cannot be reached.

    :param repo_id: "user/name"
    :param env: see ``from_pretrained``
    :param device: device of the model
    :param revision: branch, tag or commit. None: the latest commit of the main branch
    :param token: token for the Hub, for private repositories. None: the token that ``hf auth login`` stored
    :param custom_objects: see ``from_pretrained``
    :return: the model
    :raises ModelFormatError: see ``from_pretrained``
    :raises HubError: if there is no such repository or revision, or it cannot be reached
    """
    folder = download(repo_id, [DESCRIPTION, ARRAYS], revision, token)
    return from_pretrained(folder, env, device, custom_objects=custom_objects)


def download(repo_id: str, names: list[str], revision: str | None = None, token: str | bool | None = None) -> Path:
    """
    Fetch files by their names, with the other arguments and errors of ``load``; missing ones are left out. Return a folder of
    the Hub client's cache, with files of one commit.
    """
    hint = ". To read this folder, use hub.from_pretrained" if Path(repo_id).is_dir() else ""
    with raised_as(HubError, f"{repo_id} could not be loaded from the Hub{hint}"):
        return Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=names, revision=revision, token=token))


def names_no_file(values: Any) -> bool:
    """Return whether all texts in plain data are words: no path, no XML, no expression."""
    return all(re.fullmatch(r"[\w-]{1,40}", text, re.ASCII) for text in re.findall(r'"(.*?)"', json.dumps(values)))


def _environment(model: PPG) -> tuple[str | None, dict[str, Any]]:
    """Return name and arguments by which ``make_vec_env`` makes the model's environment; None if they are not enough."""
    # Loading adds these wrappers, or they change nothing
    known = (VecNormalize, VecTransposeImage, VecMonitor, DummyVecEnv, SubprocVecEnv)
    if not all(isinstance(layer, known) for layer in layers(model.env)):
        return None, {}
    try:
        spec = model.env.get_attr("spec")[0]  # type: ignore[union-attr]
        wrappers = {wrapper.name for wrapper in spec.additional_wrappers}
        kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
        if spec.max_episode_steps != gymnasium.registry[spec.id].max_episode_steps:
            kwargs["max_episode_steps"] = spec.max_episode_steps or -1  # which means none
        is_plain = names_no_file(kwargs)
    except (AttributeError, KeyError, TypeError, OSError, EOFError):
        return None, {}  # it has no name, options that are not plain data, or is closed
    # Our environments are registered only after `sb3_ppg.zoo.register()`, a script's only in that script
    is_known = _package_of(spec) not in ("sb3_ppg", "__main__")
    return (spec.id, kwargs) if wrappers <= {"Monitor"} and is_plain and is_known else (None, {})


# ---- the model card ----


def model_card(
    folder: Path,
    files: Collection[str],
    env_id: str | None,
    env_kwargs: dict[str, Any],
    evaluation: EvaluationResult | None,
    usage: str,
) -> str:
    """Return the card of a model's folder, with the metadata that the Hub reads: Markdown, as is ``usage``."""
    description = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    algorithm = _readable(description["algorithm"])
    metadata = ModelCardData(
        library_name="stable-baselines3", pipeline_tag="reinforcement-learning", tags=[*TAGS, *([env_id] if env_id else [])]
    )
    shown = []
    if evaluation is not None:
        mean, std, n_episodes, deterministic = evaluation
        how = "deterministic" if deterministic else "stochastic"
        shown = [f"Mean return **{mean:.2f} ± {std:.2f}** (standard deviation) over {n_episodes} episodes with {how} actions."]
        if env_id is not None:
            value = f"{mean:.2f} +/- {std:.2f}"
            metadata.model_name = algorithm
            metadata.eval_results = [EvalResult("reinforcement-learning", env_id, env_id, "mean_reward", value)]
    if "learning_curve.png" in files:
        shown.append("![Learning curve](learning_curve.png)")
    if "replay.mp4" in files:
        shown.append('<video controls src="replay.mp4"></video>')
    normalization = description["vec_normalize"] or {}
    normalization.pop("observation_space", None)
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
    cls: type[PPG],
    repo_id: str,
    env_id: str | None,
    env_kwargs: dict[str, Any],
    custom_objects: list[str],
    is_normalized: bool,
) -> str:
    """Return how to install, load and use a model, in Markdown. Without an ``env_id``, no name makes its environment."""
    member = member_of(cls)
    wrappers = "its wrappers, a new VecNormalize among them," if is_normalized else "its wrappers"
    env, imports = f"...  # the one that it was trained in, with {wrappers} and options", [member.card_imports]
    if env_id is not None:
        env = f"make_vec_env({env_id!r}{f', env_kwargs={env_kwargs!r}' if env_kwargs else ''})"
        imports = [_import_of(env_id), *imports, "from stable_baselines3.common.env_util import make_vec_env"]
    custom = f", custom_objects={{{', '.join(f'{name!r}: ...' for name in custom_objects)}}}" if custom_objects else ""
    lines = "\n".join([*filter(None, imports), "from sb3_ppg import hub"])
    frozen = ""
    if is_normalized:
        frozen = """
normalizer = model.get_vec_normalize_env()
normalizer.training = normalizer.norm_reward = False  # statistics stay, rewards are the environment's"""
    return f"""```bash
pip install {requirement("hub")}
```

```python
{lines}

env = {env}
model = hub.load({repo_id!r}, env=env{custom})
env = model.get_env(){frozen}
{member.card_example}
```"""


def _import_of(env_id: str) -> str:
    """Return the import that registers an environment, or nothing for Gymnasium's own."""
    if env_id.startswith("MinAtar/"):  # which the import alone does not register
        return "from minatar.gym import register_envs; register_envs()"
    package = _package_of(gymnasium.registry.get(env_id))
    return "" if package in ("gymnasium", "__main__") else f"import {package}  # registers the environment"


def _package_of(spec: Any) -> str:
    """Return the package of an environment, or the module of one that a function or a class makes."""
    entry_point = spec.entry_point if spec else None
    return entry_point.__module__ if callable(entry_point) else str(entry_point or "gymnasium").split(":")[0].split(".")[0]


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

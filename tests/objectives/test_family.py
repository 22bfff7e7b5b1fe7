"""Members of the family with memory and masks, on spaces as ``combinations`` says, saved and shared."""

import copy
from itertools import cycle
from unittest.mock import patch

import numpy as np
import pytest
import torch as th
import yaml
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb3_ppg import PPG, ArgumentError, ImpalaCNN, MaskablePPG, NonFiniteLossError, PhasicCallback, RecurrentPPG, hub
from sb3_ppg.family import FAMILY, PAPER, with_preset, zoo_name_of
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import OBJECTIVES, objective_name
from sb3_ppg.zoo.hyperparameters import hyperparameter_file
from tests.helpers import (
    MASKED_ACTIONS,
    MIXED,
    NESTED,
    ROOT,
    VECTOR,
    BatchNormExtractor,
    RandomEnv,
    StepsChanged,
    changed,
    image_space,
    masked_envs,
    random_envs,
    untrained,
    weights,
)
from tests.saving.small_models import same
from tests.test_spaces import ACTIONS, OBSERVATIONS

MEMBERS = [name for name, member in FAMILY.items() if member.preset]
SMALL = dict(
    n_steps=8, batch_size=8, n_epochs=2, n_policy_iterations=2, n_aux_epochs=2, n_value_epochs=None, aux_batch_size=None
)


def make(name: str, env, cls: type[PPG] = PPG, policy: str = "MlpPolicy", **kwargs) -> PPG:
    """A small model; what makes the member that member stays."""
    preset = FAMILY[name].preset
    fixed = {key: preset[key] for key in ("n_policy_iterations", "n_aux_epochs", "n_value_epochs") if key in preset}
    policy_kwargs = {"net_arch": [8], **kwargs.pop("policy_kwargs", {})}
    arguments = {**SMALL, **fixed, "seed": 0, "device": "cpu", **kwargs, "policy_kwargs": policy_kwargs}
    if arguments["n_value_epochs"]:
        arguments["n_value_epochs"] = 2
    return cls(policy, env, **with_preset(name, arguments))


def check_training(model: PPG) -> None:
    """Check that all that the objective reaches moves, and that all numbers are finite."""
    own = [parameter.detach().clone() for parameter in model.objective.parameters()]
    unused = ("aux_value_net",) if objective_name(model.objective_class) in ("dcpg", "ddcpg", "daac", "idaac") else ()
    assert not [name for name in untrained(model, 4) if not name.startswith(unused)]
    assert all(not th.equal(p, was) for p, was in zip(model.objective.parameters(), own, strict=True))


def test_every_objective_is_in_the_family():
    in_family = {member.preset.get("objective", "ppg") for member in FAMILY.values()}
    assert in_family | {"decoupled"} == set(OBJECTIVES)  # which is for data of older policies
    assert all(hyperparameter_file(name).exists() for name in FAMILY)
    with_preset("ppg_replay", {})["replay_kwargs"]["policy_rollouts"] = 7  # not in the table itself
    assert with_preset("ppg_replay", {})["replay_kwargs"] == {"policy_rollouts": 3}


def combinations(every: list[str], members: list[str]) -> list[tuple[str, str]]:
    """Return these members with every one of several kinds of spaces, and the others in turns with one each."""
    others = [name for name in MEMBERS if name not in members]
    return [(name, kind) for name in members for kind in every] + [*zip(others, cycle(every))]


# Their networks read actions, or frames that the rollout buffer does not give to minibatches
READ_ACTIONS, READ_FRAMES = ["ddcpg", "daac"], ["ddcpg", "idaac"]


KINDS_OF_ACTIONS = ["gSDE", "Discrete from 2 on", "MultiDiscrete from elsewhere", "MultiBinary", "nested"]


@pytest.mark.parametrize(("name", "action"), combinations(KINDS_OF_ACTIONS, READ_ACTIONS))
def test_action_spaces(name, action):
    space, kwargs = ACTIONS[action]
    check_training(make(name, random_envs(action_space=space), **kwargs))


@pytest.mark.parametrize(("name", "observation"), combinations(["CHW images", "Dict", "Discrete"], READ_FRAMES))
def test_observation_spaces(name, observation):
    policy, space = OBSERVATIONS[observation]
    check_training(make(name, random_envs(space), policy=policy, n_epochs=1))


LSTM = dict(cls=RecurrentPPG, policy="MlpLstmPolicy", policy_kwargs=dict(lstm_hidden_size=4))


@pytest.mark.parametrize("name", MEMBERS)
def test_lstms(name):
    if name in ("ddcpg", "idaac"):
        with pytest.raises(ArgumentError, match="cannot work with LSTMs"):
            make(name, random_envs(), **LSTM)
    else:
        check_training(make(name, random_envs(), **LSTM))


@pytest.mark.parametrize(("name", "actions"), combinations([*MASKED_ACTIONS], READ_ACTIONS))
def test_masks(name, actions):
    check_training(make(name, masked_envs(actions=actions), cls=MaskablePPG))


@pytest.mark.parametrize("name", MEMBERS)
def test_a_zip_file_and_the_hubs_files_keep_everything_and_the_log_is_explained(name, tmp_path):
    constraint = dict(objective_kwargs=dict(constraint="logits")) if name == "dna" else {}
    model = make(name, random_envs(), **constraint)
    model.learn(4 * 16, log_interval=None)
    glossary = (ROOT / "docs" / "logs.md").read_text()
    logged = [value for value in model.logger.name_to_value if value.startswith(("train/", "aux/"))]
    assert logged and not [value for value in logged if f"`{value}`" not in glossary]
    model.save(tmp_path / "model")
    hub.save_pretrained(model, tmp_path / "shared")
    for other in (PPG.load(tmp_path / "model", device="cpu"), hub.from_pretrained(tmp_path / "shared", device="cpu")):
        assert zoo_name_of(other) == name and same(model, other)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_bad_number_leaves_everything_as_it_was(name):
    model = make(name, random_envs(), normalize_value_targets=False).learn(16)
    before, own = weights(model), copy.deepcopy(model.objective.state_dict())
    bad_losses = patch.object(model.objective, "surrogate", lambda *_: Losses(th.tensor(np.nan, requires_grad=True), {}))
    with bad_losses, pytest.raises(NonFiniteLossError):
        model.learn(16, reset_num_timesteps=False)
    moves_on = ("advantage_", "n_rollouts", *(["proximal"] if name == "ppg_replay" else []))  # with each rollout
    assert not changed(before, model)
    assert not [key for key in changed(own, model.objective.state_dict()) if not key.startswith(moves_on)]


def test_observations_in_another_kind_of_dictionary():
    class Own(dict):
        """Such as some environments have."""

    env = StepsChanged(random_envs(MIXED), lambda observations, *others: (Own(observations), *others))
    check_training(make("ppg_replay", env, policy="MultiInputPolicy"))


REFUSED = [
    ("dcpg", dict(policy_kwargs=dict(architecture="dual")), "`architecture`='dual' cannot work with DelayedCriticObjective"),
    ("dcpg", dict(n_value_epochs=1), "`n_value_epochs`=2 cannot work: DelayedCriticObjective"),
    ("dcpg", dict(n_aux_epochs=0), "`n_aux_epochs`=0 cannot work"),
    ("dcpg", dict(clip_range_vf=0.2), "`clip_range_vf`=.* cannot work: DelayedCriticObjective"),
    ("ddcpg", dict(micro_batch_size=4), "`micro_batch_size`=4 cannot work: `objective`='ddcpg' compares the samples"),
    ("ddcpg", dict(policy_kwargs=dict(features_extractor_class=BatchNormExtractor)), "cannot work with batch normalization"),
    ("dna", dict(**LSTM, n_steps=7, batch_size=7, objective_kwargs=dict(value_batch_size=6)), "equal parts of `n_steps`=7"),
    ("daac", dict(n_value_epochs=None), "`n_value_epochs`=None cannot work"),
    ("daac", dict(n_aux_epochs=1), "`n_aux_epochs`=1 cannot work"),
    ("dna", dict(objective_kwargs=dict(constraint="l2")), "`constraint`='l2' cannot work"),
    ("dna", dict(objective_kwargs=dict(td_lambda=2)), "`td_lambda`=2 cannot work"),
    ("dna", dict(recompute_advantages=True), "`recompute_advantages`=True cannot work: `objective`='dna' has its own"),
    ("dna", dict(env=random_envs(action_space=NESTED), objective_kwargs=dict(constraint="logits")), "constraint.* Dict"),
    ("ppg_ewma", dict(objective_kwargs=dict(decay=1.0)), "`decay`=1.0 cannot work"),
    ("ppg_ewma", dict(objective_kwargs=dict(importance_limit=0.5)), "`importance_limit`=0.5 cannot work"),
    ("ppg", dict(objective_kwargs=dict(dual_clip=0.5)), "`dual_clip`=0.5 cannot work"),
    ("ppg", dict(objective="ewna"), "`objective`='ewna' is unknown.*'ewma'"),
    ("ppg", dict(objective_kwargs=[1]), "`objective_kwargs`=.*use a dictionary"),
]


@pytest.mark.parametrize(("name", "kwargs", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_work_is_refused_when_the_model_is_made(name, kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        make(name, **{"env": random_envs(), **kwargs})


def test_the_average_begins_with_a_policy_that_was_set():
    """From a pretrained one, not from the random weights that it had when the model was made."""
    pretrained, model = make("ppg_ewma", random_envs(), seed=1), make("ppg_ewma", random_envs(), seed=0)
    model.policy.load_state_dict(pretrained.policy.state_dict())
    model.objective.before_policy_update(model.policy)
    proximal = dict(model.objective.proximal.module.named_parameters())
    assert all(th.equal(proximal[name], weight) for name, weight in model.policy.named_parameters())
    with th.no_grad():
        next(model.policy.parameters()).add_(1)
    model.objective.after_policy_step(model.policy)
    kept = {name: weight.clone() for name, weight in proximal.items()}
    model.objective.before_policy_update(model.policy)  # of the next rollout
    assert all(th.equal(proximal[name], weight) for name, weight in kept.items())


def test_dual_clipping_reaches_the_loss():
    steps = dict(learning_rate=0.1, n_epochs=4)  # large: ratios far from one
    models = [make("ppg", random_envs(), objective_kwargs=kwargs, **steps) for kwargs in (None, dict(dual_clip=1.0))]
    first, second = (model.learn(16).policy.parameters_to_vector() for model in models)
    assert np.abs(first - second).max() > 1e-3


class Levels(RandomEnv):
    """Says in ``info`` which level it plays: one of two, one of its own for each episode, or none."""

    n_levels = 0

    def __init__(self, kind: str, episode_length: int = 5):
        super().__init__(VECTOR, spaces.Discrete(3), episode_length)
        self.kind = kind

    def reset(self, **kwargs):
        observation, _ = super().reset(**kwargs)
        Levels.n_levels += 1
        level = Levels.n_levels if self.kind == "ordered" else -1 - int(self.np_random.integers(2))
        self.info = {} if self.kind == "silent" else {"level_seed": level}
        return observation, self.info

    def step(self, action):
        *result, _ = super().step(action)
        return *result, self.info


def watched_frames(order: nn.Module) -> list[tuple]:
    """Let IDAAC's objective note levels and episode steps of a rollout's frames, starts of episodes, and extras."""
    seen, extras = [], order.extras

    def noted(policy, rollout):
        frames = [np.stack(each[-9:], axis=1) for each in (order.levels, order.episode_steps)]
        starts = rollout.arrays["episode_starts"].copy()
        seen.append((*frames, starts, extras(policy, rollout)))
        return seen[-1][-1]

    order.extras = noted
    return seen


@pytest.mark.parametrize("kind", ["one of two", "silent"])
def test_frames_are_compared_with_frames_of_their_level(kind):
    """Levels and steps of IDAAC's frames, from rollout to rollout and over resets, against what the environments know."""
    model = make("idaac", make_vec_env(lambda: Levels(kind), 3, seed=0))
    seen = watched_frames(model.objective)
    model.learn(2 * 24)
    model.learn(2 * 24)  # the environments are reset within their episodes
    assert len(seen) == 4
    for levels, steps, starts, found in seen:
        np.testing.assert_array_equal(steps[:, :-1] == 0, starts.astype(bool))
        assert (np.diff(steps)[np.diff(steps) != 1] < 0).all()  # else an episode goes on
        same_episode = np.diff(steps) == 1
        assert (np.diff(levels)[same_episode] == 0).all()
        assert (levels < 0).all() if kind == "silent" else (levels >= 0).all() and len(np.unique(levels)) == 2
        flat = np.concatenate([levels[:, :-1].ravel(), levels[:, -1]])
        np.testing.assert_array_equal(flat[found["other"]], levels[:, :-1])
    assert len({tuple(each[0].ravel()) for each in seen}) == 4


class SetsEnvironments(PhasicCallback):
    """Sets other environments after each rollout."""

    def _on_rollout_end(self) -> None:
        self.model.set_env(make_vec_env(lambda: Levels("silent", episode_length=12), 2, seed=0))


@pytest.mark.parametrize(("kind", "episode_length", "callback"), [("ordered", 8, None), ("silent", 12, SetsEnvironments())])
def test_environments_that_are_reset_have_other_levels(kind, episode_length, callback):
    """By `learn` where episodes end, or by a callback within them: later frames belong to other episodes."""
    model = make("idaac", make_vec_env(lambda: Levels(kind, episode_length), 2, seed=0))
    seen = watched_frames(model.objective)
    for _ in range(2):
        model.learn(16 if callback is None else 32, callback=callback)
    for levels, steps, *_ in seen:
        assert (levels[:, :-1] == levels[:, :1]).all() and (steps[:, :-1] == np.arange(8)).all()
    assert len(np.unique(np.stack([levels[:, 0] for levels, *_ in seen]))) == 2 * len(seen)


@pytest.mark.parametrize("advantage_decay", [0.0, 0.9])
def test_averaged_moments_get_over_a_bad_rollout_and_constant_advantages(advantage_decay):
    """Rewards too large to be normalised make it bad; constants have no negative variance."""
    scale = 3e38

    def enlarge(observations, rewards, *others):
        return observations, np.full_like(rewards, scale), *others

    model = make("ppg_ewma", StepsChanged(random_envs(), enlarge), objective_kwargs=dict(advantage_decay=advantage_decay))
    with np.errstate(all="ignore"), pytest.raises(NonFiniteLossError):
        model.learn(16)
    assert all(th.isfinite(buffer).all() for buffer in model.objective.buffers())
    scale = 1.0
    model.learn(32)
    for constant in np.linspace(1e-3, 1e6, 500):
        assert np.isfinite(model.objective.normalized_advantages(np.full((8, 2), constant, np.float32))).all()


def test_the_papers_arguments_are_those_of_the_papers_entry():
    entry = yaml.safe_load(hyperparameter_file("ppg").read_text())["procgen-paper"]
    policy_kwargs = eval(entry["policy_kwargs"], {"ImpalaCNN": ImpalaCNN})
    assert {**{name: entry.get(name) for name in PAPER}, "policy_kwargs": policy_kwargs} == PAPER
    assert entry["n_envs"] * PAPER["n_steps"] / PAPER["batch_size"] == 8  # minibatches in an epoch
    env = random_envs(image_space(3, 64, 64), n_envs=32)
    assert PPG("CnnPolicy", env, **PAPER).policy.architecture == "dual"

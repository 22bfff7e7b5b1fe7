"""Fine-tuning near a prior: the KL divergence, its weight, whose policy it is, and the warm-up of the value function."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, PhasicCallback, RecurrentPPG, hub
from sb3_ppg.family import FAMILY, with_preset
from tests.helpers import (
    BOX,
    KINDS,
    NESTED,
    SMALL,
    THREE_ACTIONS,
    VECTOR,
    calls_of,
    changed,
    collect,
    learn_and_log,
    make_kind,
    masked_envs,
    random_envs,
    weights,
)
from tests.offline.test_bcq import random_data
from tests.test_spaces import ACTIONS

ROLLOUT = 16
ONE_STEP = dict(batch_size=ROLLOUT, n_aux_epochs=0)  # whose losses are those before it


def another(action_space: spaces.Space = THREE_ACTIONS, **kwargs) -> PPG:
    """Return an agent whose actions differ from those of a model with SMALL, and from state to state."""
    agent = PPG("MlpPolicy", random_envs(VECTOR, action_space), **{**SMALL, "seed": 1, **kwargs})
    th.manual_seed(2)
    for parameter in agent.policy.action_net.parameters():
        parameter.data.add_(th.randn_like(parameter))
    return agent


@pytest.mark.parametrize("kind", ["Box", "gSDE", "Discrete", "MultiDiscrete", "MultiBinary"])
def test_it_is_the_exact_expectation_of_the_prior_as_in_vpt_by_a_weight_with_a_schedule(kind):
    """KL(π_prior, π) = E_π_prior[log π_prior - log π]; the reverse is another number."""
    space, kwargs = ACTIONS[kind]
    agent, coef = another(space, **kwargs), LinearSchedule(1.0, 0.3, 1.0)
    model = PPG("MlpPolicy", random_envs(VECTOR, space), **SMALL | ONE_STEP | kwargs, prior=agent, prior_coef=coef)
    start = PPG("MlpPolicy", random_envs(VECTOR, space), **SMALL | ONE_STEP | kwargs).policy
    logged = learn_and_log(model, ROLLOUT)
    with th.no_grad():
        observations = th.as_tensor(model.rollout_buffer.observations).flatten(0, 1)
        theirs, ours = (each.get_distribution(observations).distribution for each in (agent.policy, start))
    pairs = [*zip(theirs, ours, strict=True)] if isinstance(theirs, list) else [(theirs, ours)]
    kl, reverse = (
        sum(th.distributions.kl_divergence(*pair[::step]).reshape(ROLLOUT, -1).sum(dim=1).mean().item() for pair in pairs)
        for step in (1, -1)
    )
    assert logged["train/prior_kl"] == pytest.approx(kl, rel=1e-3)
    assert abs(kl - reverse) > 0.01 * kl or kind == "Box"  # where both standard deviations are 1
    others = logged["train/policy_gradient_loss"] + 0.5 * logged["train/value_loss"]
    assert logged["train/loss"] == pytest.approx(others + 0.3 * kl, rel=1e-3)
    assert logged["train/prior_coef"] == pytest.approx(0.3)


def test_the_parts_of_an_action_have_weights_of_their_own():
    def kl(prior_coef) -> float:
        model = PPG("MlpPolicy", random_envs(VECTOR, NESTED), **SMALL | ONE_STEP, prior=agent, prior_coef=prior_coef)
        return learn_and_log(model, ROLLOUT)["train/prior_kl"]

    agent = another(NESTED)
    parts = [kl(dict(kind=kind, how=how, move=move)) for kind, how, move in ((1, 0, 0), (0, [1, 1], 0), (0, 0, 1))]
    assert min(parts) > 0 and kl(1.0) == pytest.approx(sum(parts), rel=1e-5)
    assert kl(dict(kind=2, how=[0, 0], move=0.5)) == pytest.approx(2 * parts[0] + 0.5 * parts[2], rel=1e-5)
    with pytest.raises(ArgumentError, match="`prior_coef`"):
        kl(dict(kind=1))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_zero_at_the_start(kind):
    """The prior is the model's own policy, for vectors, images, dictionaries, LSTMs and masks; then it grows."""
    model = make_kind(kind, batch_size=ROLLOUT, prior="self", learning_rate=1e-2)
    assert learn_and_log(model, ROLLOUT)["train/prior_kl"] == pytest.approx(0, abs=1e-6)
    model.learn(2 * ROLLOUT, reset_num_timesteps=False)
    assert learn_and_log(model, ROLLOUT)["train/prior_kl"] > 1e-6


@pytest.mark.parametrize("name", FAMILY)
def test_without_weight_every_member_of_the_family_trains_as_without_a_prior(name):
    def train(**kwargs) -> dict[str, th.Tensor]:
        algorithm = FAMILY[name].algorithm
        policy, env = ("MlpLstmPolicy" if algorithm is RecurrentPPG else "MlpPolicy"), random_envs()
        env = masked_envs() if algorithm is MaskablePPG else env
        preset = with_preset(name, dict(n_steps=8, batch_size=8, n_epochs=2, aux_batch_size=None))
        return weights(algorithm(policy, env, seed=0, device="cpu", **preset, **kwargs).learn(3 * ROLLOUT))

    plain = train()
    assert not changed(plain, train(prior="self", prior_coef=0.0))
    assert changed(plain, train(prior="self", prior_coef=1.0))


AGENTS = {
    "PPO": lambda env: PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(16),
    "PPG, one network": lambda env: PPG("MlpPolicy", env, **SMALL, policy_kwargs=dict(architecture="detached")),
    "RecurrentPPO": lambda env: RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(16),
}


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_may_be_of_another_algorithm(name):
    """A trained one's distribution has a graph, which torch could not copy."""
    agent = AGENTS[name](random_envs())
    before = weights(agent)
    model = PPG("MlpPolicy", random_envs(), **SMALL, prior=agent).learn(2 * ROLLOUT)
    assert not changed(before, agent) and not changed(before, model.prior.policy.state_dict())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.prior.policy.parameters())
    assert learn_and_log(model, ROLLOUT)["train/prior_kl"] > 0


def test_a_trained_ppo_with_gsde_is_saved_as_a_prior(tmp_path):
    agent = PPO("MlpPolicy", random_envs(action_space=BOX), n_steps=8, batch_size=8, use_sde=True, device="cpu").learn(16)
    model = PPG("MlpPolicy", random_envs(action_space=BOX), **SMALL, use_sde=True, prior=agent).learn(ROLLOUT)
    model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=random_envs(action_space=BOX))
    assert not changed(agent, loaded.prior.policy.state_dict())


@pytest.mark.parametrize("algorithm", [MaskablePPO, MaskablePPG])
def test_masks_are_those_of_the_step(algorithm):
    agent = algorithm("MlpPolicy", masked_envs(), device="cpu", seed=3)
    model = MaskablePPG("MlpPolicy", masked_envs(), **SMALL, prior=agent)
    collect(model)
    buffer = model.rollout_buffer
    masks = buffer.action_masks.reshape(8, 2, 5).astype(bool)
    assert np.isfinite(buffer.prior).all() and (np.exp(buffer.prior)[~masks] == 0).all() and not masks.all()
    np.testing.assert_allclose(np.exp(buffer.prior).sum(axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("trained", [PPG, RecurrentPPG])
def test_an_lstm_remembers_its_episode_and_no_other(trained):
    """Step by step from zeros at the beginning of each episode, as the agent would act; over two rollouts."""
    env = random_envs(episode_length=5)
    agent = RecurrentPPG("MlpLstmPolicy", random_envs(), **{**SMALL, "seed": 1}, policy_kwargs=dict(lstm_hidden_size=4))
    policy = "MlpPolicy" if trained is PPG else "MlpLstmPolicy"
    model = trained(policy, env, **SMALL, prior=agent)
    states = agent.policy.initial_states(2).pi
    for _ in range(2):
        collect(model, reset_num_timesteps=False)
        with th.no_grad():
            buffer = model.rollout_buffer
            for observations, starts, found in zip(buffer.observations, buffer.episode_starts, buffer.prior, strict=True):
                arguments = th.as_tensor(observations), states, th.as_tensor(starts)
                distribution, states = agent.policy.get_distribution(*arguments)
                np.testing.assert_allclose(found, distribution.distribution.logits, rtol=1e-5, atol=1e-6)


def test_it_sees_observations_in_the_normalization_of_its_own_training():
    """With frozen statistics, and without those of the model's VecNormalize and its clipping."""
    theirs = VecNormalize(random_envs())
    agent = PPO("MlpPolicy", theirs, n_steps=8, batch_size=8, device="cpu").learn(64)
    mean, std, expected = theirs.obs_rms.mean.copy(), np.sqrt(theirs.obs_rms.var + theirs.epsilon), []
    model = PPG("MlpPolicy", VecNormalize(random_envs(), clip_obs=0.1), **SMALL, prior=agent)
    agent.learn(64)  # the copy has the statistics and the weights of before

    class Notes(PhasicCallback):
        def _on_step(self):
            seen = (self.model.env.get_original_obs() - mean) / std
            with th.no_grad():
                distribution = model.prior.policy.get_distribution(th.as_tensor(np.clip(seen, -10, 10)))
            expected.append(distribution.distribution.logits.numpy())
            return True

        _on_rollout_start = _on_step

    collect(model, callback=Notes())
    np.testing.assert_allclose(model.rollout_buffer.prior, expected[:-1], rtol=1e-4, atol=1e-6)
    assert np.ptp(expected, axis=(0, 1)).min() > 0


def test_what_cannot_be_a_prior_and_environments_that_hide_what_it_needs_are_refused():
    cases = {
        "the agent has a DiagGaussian.*, the model a Categorical": PPO(
            "MlpPolicy", random_envs(action_space=BOX), device="cpu"
        ),
        r"Discrete\(4\).*, the model a .*Discrete\(3\)": PPO("MlpPolicy", random_envs(action_space=spaces.Discrete(4))),
        "for observations .*, the model a": PPO("MlpPolicy", random_envs(spaces.Box(-1, 1, (4,)))),
        "the agent has a MaskableCategorical": MaskablePPO("MlpPolicy", masked_envs()),
        "`prior`='CartPole' cannot work": "CartPole",
        r"DQN has no action distribution: clone it by warm_start": DQN("MlpPolicy", random_envs(), buffer_size=9),
    }
    for message, agent in cases.items():
        with pytest.raises(ArgumentError, match=message):
            PPG("MlpPolicy", random_envs(), **SMALL, prior=agent)
    with pytest.raises(ArgumentError, match=r"`prior`.*a wrapper around VecNormalize"):
        PPG("MlpPolicy", VecFrameStack(VecNormalize(random_envs()), 2), **SMALL, prior="self")


def test_self_is_the_policy_that_warm_start_leaves():
    model = PPG("MlpPolicy", random_envs(), **SMALL, prior="self")
    before = weights(model)
    model.warm_start(random_data(VECTOR, THREE_ACTIONS), n_epochs=1)
    model.warm_start(random_data(VECTOR, THREE_ACTIONS), n_epochs=1)
    cloned = weights(model)
    model.learn(ROLLOUT)
    assert changed(before, cloned) and not changed(cloned, model.prior.policy.state_dict())
    assert changed(cloned, model)


def test_it_is_set_after_loading_and_taken_away(tmp_path):
    model = PPG("MlpPolicy", random_envs(), **SMALL).learn(ROLLOUT)
    model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=random_envs())
    loaded.set_prior("self", 0.5)
    assert learn_and_log(loaded, 3 * ROLLOUT)["train/prior_coef"] == 0.5
    loaded.set_prior(None)
    assert "train/prior_kl" not in learn_and_log(loaded, ROLLOUT)
    assert not changed(model, PPG.load(tmp_path / "model", prior=model).prior.policy.state_dict())


def test_a_shared_model_asks_for_its_prior(tmp_path):
    model = PPG("MlpPolicy", random_envs(), **SMALL | ONE_STEP, prior=another(), prior_coef=0.4).learn(ROLLOUT)
    hub.save_pretrained(model, tmp_path)
    loaded = hub.from_pretrained(tmp_path, env=random_envs())
    assert '"prior": "not shared"' in (tmp_path / "model.json").read_text() and loaded.prior_coef == 0.4
    with pytest.raises(ArgumentError, match="trained near a prior, which its files do not hold"):
        loaded.learn(ROLLOUT)
    loaded.set_prior(another())
    for each in (model, loaded):
        each.set_env(random_envs())
        each.set_random_seed(0)
        each.learn(ROLLOUT)
    assert not changed(model, loaded)


def test_older_rollouts_which_have_another_prior_are_forgotten():
    settings = SMALL | dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2), prior=another())
    model = PPG("MlpPolicy", random_envs(), **settings).learn(3 * ROLLOUT)
    model.set_prior("self")
    assert not model.replay.rollouts
    model.learn(ROLLOUT, reset_num_timesteps=False)


def test_a_prior_that_a_callback_sets_in_the_middle_of_a_rollout_is_that_of_the_next_one():
    """One is without that of the rollout only if there was none."""
    model, logged = PPG("MlpPolicy", random_envs(), **SMALL | ONE_STEP, prior=another()), []

    class Sets(PhasicCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 4:
                model.set_prior("self")  # of which the actions are those of the rollout, so that the KL is zero
            return True

        def _on_rollout_start(self) -> None:
            logged.append(model.logger.name_to_value.get("train/prior_kl"))

    alone = learn_and_log(PPG("MlpPolicy", random_envs(), **SMALL | ONE_STEP, prior=another()), ROLLOUT)["train/prior_kl"]
    model.learn(2 * ROLLOUT, callback=Sets(), log_interval=None)
    assert logged[1] == pytest.approx(alone, rel=1e-5) and alone > 0
    assert model.logger.name_to_value["train/prior_kl"] < alone
    model.set_prior(None)
    with pytest.raises(ArgumentError, match=r"`prior`=.* cannot work: it was set in the middle of a rollout"):
        model.learn(ROLLOUT, callback=Sets())


def test_an_lstm_begins_with_zeros_although_the_episode_goes_on():
    env = random_envs(n_envs=1)
    agent = RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(16)
    model = PPG("MlpPolicy", env, **SMALL | dict(n_aux_epochs=0)).learn(ROLLOUT)
    model.set_prior(agent)
    model.learn(8, reset_num_timesteps=False)
    observations, starts = (th.as_tensor(getattr(model.rollout_buffer, name)) for name in ("observations", "episode_starts"))
    zeros = (th.zeros(1, 1, agent.policy.lstm_actor.hidden_size),) * 2
    with th.no_grad():
        distribution, _ = agent.policy.get_distribution(observations[0], zeros, starts[0])
    assert starts[0] == 0
    np.testing.assert_allclose(model.rollout_buffer.prior[0], distribution.distribution.logits, rtol=1e-5)


def policy_of(model: PPG) -> dict[str, th.Tensor]:
    """Everything that actions depend on."""
    is_value = ("value_net", "aux_value_net", "mlp_extractor.value_net", "vf_features_extractor", "lstm_critic", "critic")
    return {name: value for name, value in weights(model).items() if not name.startswith(is_value)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_value_epochs", [None, 2])
def test_the_first_rollouts_train_the_value_function_alone(kind, n_value_epochs):
    rates = {} if n_value_epochs is None else dict(value_learning_rate=2e-3)
    model = make_kind(kind, n_value_warmup=3, n_value_epochs=n_value_epochs, **rates)
    policy, everything = policy_of(model), weights(model)
    logged = learn_and_log(model, 3 * ROLLOUT)
    assert not changed(policy, policy_of(model)) and changed(everything, model)
    assert logged["train/learning_rate"] == model.learning_rate
    assert "train/value_loss" in logged and "train/policy_gradient_loss" not in logged and "train/approx_kl" not in logged
    assert len(model.aux_buffer) == model.n_aux_phases == 0
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert changed(policy, policy_of(model)) and len(model.aux_buffer) == 1
    policy = policy_of(model.learn(ROLLOUT))  # from 0 on, as for a model that was loaded
    assert not changed(policy, policy_of(model.learn(ROLLOUT, reset_num_timesteps=False)))


def test_a_warm_up_trains_the_value_function_on_each_rollout():
    """An objective's own schedule of value epochs, as DAAC's, begins after it."""
    daac = with_preset("daac", dict(objective_kwargs=dict(value_frequency=2), n_value_epochs=1))
    model = make_kind("vectors", **daac, n_value_warmup=2)
    calls = calls_of(model.objective, "value_losses")
    counts = [len(calls) for _ in range(4) if model.learn(ROLLOUT, reset_num_timesteps=model.num_timesteps == 0)]
    n = counts[0]
    assert n > 0 and counts == [n, 2 * n, 3 * n, 3 * n]


def test_the_warm_up_does_not_begin_again_with_more_environments(tmp_path):
    model = PPG("MlpPolicy", random_envs(), **SMALL, n_value_warmup=3).learn(5 * ROLLOUT)
    model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=random_envs(n_envs=16))
    loaded.learn(8 * 16, reset_num_timesteps=False)
    assert changed(policy_of(model), policy_of(loaded))


def test_a_shared_model_goes_on_with_its_warm_up(tmp_path):
    model = PPG("MlpPolicy", random_envs(), **SMALL, n_value_warmup=3).learn(ROLLOUT)
    hub.save_pretrained(model, tmp_path)
    loaded = hub.from_pretrained(tmp_path, env=random_envs()).learn(ROLLOUT, reset_num_timesteps=False)
    assert not changed(policy_of(model), policy_of(loaded)) and changed(model, loaded)


def test_a_value_function_on_the_policys_layers_is_refused():
    for policy_kwargs in (dict(architecture="shared"), dict(architecture="dual", share_features_extractor=True)):
        with pytest.raises(ArgumentError, match="`n_value_warmup`=1 cannot work: the value function shares layers"):
            make_kind("images", n_value_warmup=1, policy_kwargs=policy_kwargs)
    make_kind("images", n_value_warmup=1, policy_kwargs=dict(architecture="detached"))
    make_kind("vectors", n_value_warmup=1, policy_kwargs=dict(architecture="shared", net_arch=[]))

"""One update of both variants from the papers' formulas, SB3's conventions, and that BCQ learns where its data says how."""

import copy
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from stable_baselines3.her import HerReplayBuffer
from tqdm.rich import tqdm

from sb3_ppg import ArgumentError, NonFiniteLossError, PhasicCallback
from sb3_ppg.arrays import map_arrays
from sb3_ppg.offline import BCQ, Dataset, load_dataset, losses
from tests.helpers import BOX, DICT, VECTOR, BatchNormExtractor, RandomEnv, calls_of, image_space, random_envs
from tests.optim.test_compiled import InDouble

TINY = dict(policy_kwargs=dict(net_arch=[16], vae_net_arch=[16]), n_play_samples=10, seed=0, device="cpu")
THREE = spaces.Discrete(3, start=2)


def random_data(observation_space: spaces.Space, action_space: spaces.Space, n: int = 64) -> Dataset:
    """Transitions of random episodes of ten steps, each of which ends in a time limit."""
    for seed, space in enumerate((observation_space, action_space)):
        space.seed(seed)
    observations = map_arrays(lambda *samples: np.array(samples), *(observation_space.sample() for _ in range(n + 1)))
    now, following = (map_arrays(itemgetter(part), observations) for part in (slice(0, n), slice(1, n + 1)))
    actions, truncations = np.array([action_space.sample() for _ in range(n)]), np.arange(n) % 10 == 9
    return Dataset(now, actions, np.arange(n) % 3, following, np.zeros(n), truncations)


def make(observation_space=VECTOR, action_space=BOX, policy="MlpPolicy", **kwargs) -> BCQ:
    env = RandomEnv(observation_space, action_space)
    return BCQ(policy, env, **{"dataset": random_data(observation_space, action_space), **TINY, **kwargs})


# ---- one update, from the papers' formulas ----


def updated(model: BCQ) -> tuple[dict, Any, SimpleNamespace]:
    """Update a model with six samples; return the logged losses, a copy of the policy before the update, and the samples."""
    rng, n = np.random.default_rng(1), 6
    model.policy.double()
    for _, target in model.policy.targets:  # so that they differ from the networks
        for parameter in target.parameters():
            parameter.data += th.as_tensor(rng.normal(size=parameter.shape)) * 0.1
    s, s_next = (th.as_tensor(rng.normal(size=(n, 3)), dtype=th.float32).double() for _ in range(2))  # which is cast
    r, done = th.as_tensor(rng.normal(size=n)), th.tensor([0.0, 0, 1, 0, 0, 1], dtype=th.float64)
    is_box = model.policy.is_box
    a = th.as_tensor(rng.uniform(-1, 1, (n, 2)) if is_box else THREE.start + rng.integers(0, 3, (n, 1)))
    samples = dict(observations=s, next_observations=s_next, actions=a, rewards=r[:, None], dones=done[:, None])
    before = copy.deepcopy(model.policy)
    th.manual_seed(3)
    logged = model.update(SimpleNamespace(**samples, discounts=None))
    return logged, before, SimpleNamespace(s=s, s_next=s_next, a=a, r=r, done=done)


def descend(network: th.nn.Module, loss: th.Tensor) -> None:
    """Take a step of gradient descent in this network alone, with a learning rate of 0.1."""
    parameters = [*network.parameters()]
    for parameter, gradient in zip(parameters, th.autograd.grad(loss, parameters), strict=True):
        parameter.data -= 0.1 * gradient


def assert_is(model: BCQ, logged: dict, expected: Any, terms: dict[str, th.Tensor]) -> None:
    for name, loss in terms.items():
        assert logged[name].item() == pytest.approx(loss.item(), abs=1e-12), name
    for network, target in expected.targets:
        for parameter, follower in zip(network.parameters(), target.parameters(), strict=True):
            follower.data = 0.95 * follower + 0.05 * parameter
    for name, value in model.policy.state_dict().items():
        np.testing.assert_allclose(value, expected.state_dict()[name], rtol=0, atol=1e-10, err_msg=name)


SGD = dict(
    learning_rate=0.1,
    tau=0.05,
    gamma=0.9,
    policy_kwargs=dict(
        net_arch=[7, 5],
        vae_net_arch=[8, 6],
        features_extractor_class=InDouble,
        optimizer_class=th.optim.SGD,
    ),
)


def test_an_update_with_box_actions_is_the_papers():
    model = make(VECTOR, BOX, n_train_samples=3, **SGD)
    logged, expected, batch = updated(model)
    vae, actor, critics = expected.vae, expected.actor, expected.critics.critics
    th.manual_seed(3)
    noise, target_codes, codes = (th.randn(*shape, dtype=th.float64) for shape in ((6, 4), (6, 3, 4), (6, 1, 4)))

    # The generative model: E[(D(s, z) - a)²] + 1/2 KL
    mean, log_std = vae.encoder(th.hstack([batch.s, batch.a])).chunk(2, dim=1)
    std = log_std.exp()
    reconstruction = (vae.decoder(th.hstack([batch.s, mean + std * noise])) - batch.a).square().mean()
    kl = (0.5 * (mean**2 + std**2 - 1) - log_std).mean()
    descend(vae, reconstruction + 0.5 * kl)

    # The critics: y = r + γ max_i [0.75 min_j Q' + 0.25 max_j Q'] over three perturbed actions of the generative model
    def beside(states: th.Tensor, numbers: th.Tensor) -> th.Tensor:
        return th.cat([states[:, None].expand(-1, numbers.shape[1], -1), numbers], dim=2)

    sampled = vae.decoder(beside(batch.s_next, target_codes.clip(-0.5, 0.5)))
    sampled = (sampled + 0.05 * expected.actor_target.layers(beside(batch.s_next, sampled))).clip(-1, 1)
    q1, q2 = (critic(beside(batch.s_next, sampled))[..., 0] for critic in expected.critics_target.critics)
    best = (0.75 * th.minimum(q1, q2) + 0.25 * th.maximum(q1, q2)).amax(dim=1)
    y = (batch.r + (1 - batch.done) * 0.9 * best).detach()
    errors = [critic(th.hstack([batch.s, batch.a]))[:, 0] - y for critic in critics]
    critic_loss = errors[0].square().mean() + errors[1].square().mean()
    descend(expected.critics, critic_loss)

    # The perturbation network: -E[Q_1(s, a + ξ(s, a))]
    of_data = vae.decoder(beside(batch.s, codes.clip(-0.5, 0.5))).detach()
    moved = (of_data + 0.05 * actor.layers(beside(batch.s, of_data))).clip(-1, 1)
    actor_loss = -critics[0](beside(batch.s, moved)).mean()
    descend(actor, actor_loss)
    terms = dict(reconstruction_loss=reconstruction, latent_kl=kl, critic_loss=critic_loss, actor_loss=actor_loss)
    assert_is(model, logged, expected, terms)


def test_an_update_with_discrete_actions_is_the_papers():
    model = make(VECTOR, THREE, **SGD)
    model.policy.q_net.imitation_head.weight.data *= 40  # so that some actions are not allowed
    logged, expected, batch = updated(model)
    q_net, target, rows = expected.q_net, expected.q_net_target, th.arange(6)

    latent = q_net.body(batch.s_next)
    probabilities = q_net.imitation_head(latent).softmax(dim=1)
    allowed = probabilities / probabilities.amax(dim=1, keepdim=True) > 0.3
    assert 0 < allowed.double().mean() < 1
    chosen = q_net.q_head(latent).masked_fill(~allowed, -th.inf).argmax(dim=1)
    np.testing.assert_array_equal(expected.predict(batch.s_next.float().numpy())[0], chosen + THREE.start)
    y = (batch.r + (1 - batch.done) * 0.9 * target.q_head(target.body(batch.s_next))[rows, chosen]).detach()

    latent, taken = q_net.body(batch.s), batch.a[:, 0] - THREE.start
    logits, error = q_net.imitation_head(latent), q_net.q_head(latent)[rows, taken] - y
    huber = th.where(error.abs() < 1, error**2 / 2, error.abs() - 0.5).mean()
    imitation, penalty = -logits.log_softmax(dim=1)[rows, taken].mean(), (logits**2).mean()
    descend(q_net, huber + imitation + 0.01 * penalty)
    assert_is(model, logged, expected, dict(critic_loss=huber, imitation_loss=imitation, logit_penalty=penalty))


# ---- data ----


def test_targets_go_on_at_time_limits_and_stop_at_terminations():
    data = random_data(VECTOR, BOX, 20)
    data.terminations[[5, 9]] = True  # the latter also in a time limit
    buffer = make(dataset=data).replay_buffer
    batch = buffer._get_samples(np.arange(20))
    assert batch.dones.flatten().tolist() == [float(i in (5, 9)) for i in range(20)]
    with_ends = make(dataset=data, replay_buffer_kwargs=dict(handle_timeout_termination=False)).replay_buffer
    assert with_ends._get_samples(np.arange(20)).dones.flatten().nonzero().flatten().tolist() == [5, 9, 19]
    np.testing.assert_allclose(batch.actions, (data.actions - BOX.low) / (BOX.high - BOX.low) * 2 - 1, atol=1e-6)


def test_n_step_targets_end_where_episodes_do_and_have_discounts_of_their_own():
    """Rewards are 0, 1, 2, 0, 1, ...; episodes have ten steps, and the second is cut off after the data's last step."""
    data = random_data(VECTOR, THREE, 14)
    model = make(VECTOR, THREE, dataset=data, n_steps=3, gamma=0.5, replay_buffer_class=NStepReplayBuffer)
    batch = model.replay_buffer._get_samples(np.arange(14))
    assert batch.rewards.flatten()[:2].tolist() == [0 + 0.5 * 1 + 0.25 * 2, 1 + 0.5 * 2 + 0.25 * 0]
    assert batch.discounts.flatten()[[0, 7, 8, 9, 12, 13]].tolist() == [0.125, 0.125, 0.25, 0.5, 0.25, 0.5]
    assert not batch.dones.any()
    following = model.replay_buffer.next_observations[:, 0]
    np.testing.assert_array_equal(batch.next_observations[[0, 8, 13]], following[[2, 9, 13]])
    # The value of all observations is 8, and that of the data's actions 0, where the loss is linear
    with th.no_grad():
        for network, value in ((model.policy.q_net, 0.0), (model.policy.q_net_target, 8.0)):
            network.q_head.weight.zero_()
            network.q_head.bias.fill_(value)
    expected = batch.rewards.flatten() + 8 * batch.discounts.flatten()
    assert (expected > 1).all()
    assert model.update(batch)["critic_loss"].item() == pytest.approx((expected - 0.5).mean().item())


def test_observations_and_rewards_are_normalized_by_the_datas_statistics_until_networks_are_trained(tmp_path):
    """A trained model, loaded with its statistics, plays as before; without them, it takes those of the data."""
    data, env = random_data(VECTOR, BOX), VecNormalize(random_envs(VECTOR, BOX), gamma=0.5)
    move = dict(observations=data.observations + 10, next_observations=data.next_observations + 10)
    shifted = replace(data, **move, rewards=data.rewards * 3)
    model = BCQ("MlpPolicy", env, dataset=shifted, **TINY)
    spread = env.ret_rms.var
    np.testing.assert_allclose(env.obs_rms.mean, data.observations.mean(axis=0) + 10, rtol=1e-5)
    model.set_dataset(data)
    np.testing.assert_allclose(env.obs_rms.mean, data.observations.mean(axis=0), atol=1e-5)
    sums = [0.0]  # of discounted rewards 0, 1, 2, 0, ..., from the first step of each of the episodes of ten steps
    for step in range(64):
        sums.append(step % 3 + (0 if step % 10 == 0 else 0.5 * sums[-1]))
    assert env.ret_rms.var == pytest.approx(np.var(sums[1:]), rel=1e-4) == pytest.approx(spread / 9, rel=1e-4)
    batch = model.replay_buffer.sample(4000, env=env)
    np.testing.assert_allclose(batch.observations.std(dim=0), 1, atol=0.05)
    assert batch.rewards.max() == pytest.approx(2 / np.std(sums[1:]), rel=1e-3)

    model.learn(2).save(tmp_path / "model")
    env.save(tmp_path / "statistics.pkl")
    loaded_env = VecNormalize.load(tmp_path / "statistics.pkl", random_envs(VECTOR, BOX))
    BCQ.load(tmp_path / "model", env=loaded_env, dataset=shifted).learn(2).set_dataset(shifted)
    for name in ("mean", "var", "count"):
        np.testing.assert_array_equal(getattr(loaded_env.obs_rms, name), getattr(env.obs_rms, name))
        np.testing.assert_array_equal(getattr(loaded_env.ret_rms, name), getattr(env.ret_rms, name))
    new_env = VecNormalize(random_envs(VECTOR, BOX), gamma=0.5)
    BCQ.load(tmp_path / "model", env=new_env, dataset=data)
    np.testing.assert_array_equal(new_env.obs_rms.mean, env.obs_rms.mean)


# ---- SB3's conventions ----


def test_learning_does_not_touch_environments_and_evaluations_play_in_several(monkeypatch):
    with monkeypatch.context() as patched:
        for name in ("reset", "step"):
            patched.setattr(RandomEnv, name, None)
        model = make().learn(3)
    assert model.num_timesteps == 3
    assert evaluate_policy(model, random_envs(VECTOR, BOX), 3, return_episode_rewards=True)[1] == [20] * 3


@pytest.mark.parametrize(
    ("policy", "space", "actions"),
    [("CnnPolicy", image_space(36, 36, 1), THREE), ("MultiInputPolicy", DICT, BOX), ("MlpPolicy", THREE, THREE)],
    ids=["images", "Dict", "Discrete"],
)
def test_a_model_learns_is_saved_and_goes_on(policy, space, actions, tmp_path):
    data = random_data(space, actions)
    model = make(space, actions, policy, batch_size=8, dataset=data).learn(3)
    model.save(tmp_path / "model")
    loaded = BCQ.load(tmp_path / "model", dataset=data, env=RandomEnv(space, actions))
    observations = model.get_env().reset()
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_array_equal(loaded.predict(observations, deterministic=True)[0], expected)
    assert actions.contains(expected[0])
    model.policy.save(tmp_path / "policy")
    again = type(model.policy).load(tmp_path / "policy")
    np.testing.assert_array_equal(again.predict(observations, deterministic=True)[0], expected)
    for trained in (model, loaded):
        trained.set_random_seed(5)
        trained.learn(2, reset_num_timesteps=False)
        assert trained.num_timesteps == trained._n_updates == 5
    for parameter, same in zip(model.policy.parameters(), loaded.policy.parameters(), strict=True):
        np.testing.assert_array_equal(parameter.detach(), same.detach())


def test_deterministic_play_is_the_best_of_the_same_samples_and_other_play_samples_anew():
    model = make()
    policy, state = model.policy, th.zeros(1, 3)
    (candidates,) = policy.actor(state, policy.vae.decode(state, policy.codes[None]))
    values = policy.critics.critics[0](th.hstack([state.expand(10, -1), candidates]))
    best = policy.unscale_action(candidates[values.argmax()].detach().numpy())
    observations = np.zeros((4, 3), np.float32)
    first, same = (model.predict(observations, deterministic=True)[0] for _ in range(2))
    np.testing.assert_array_equal(first, same)
    np.testing.assert_allclose(first, np.tile(best, (4, 1)), atol=1e-6)  # no matter with which others
    sampled = model.predict(observations)[0]
    assert len(np.unique(sampled, axis=0)) > 1


def test_callbacks_logs_and_progress_bar(tmp_path):
    model = make(verbose=0)
    evaluation = EvalCallback(RandomEnv(VECTOR, BOX), n_eval_episodes=1, eval_freq=4, log_path=tmp_path, verbose=0)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(10, [evaluation, CheckpointCallback(5, tmp_path)], log_interval=4, progress_bar=True)
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [4, 8]
    assert (tmp_path / "rl_model_10_steps.zip").exists()
    two = BCQ("MlpPolicy", random_envs(VECTOR, BOX), dataset=random_data(VECTOR, BOX), **TINY)
    begun = PhasicCallback()
    begins = calls_of(begun, "_init_callback")
    with patch.object(tqdm, "update", autospec=True) as update:
        two.learn(3, begun, progress_bar=True)
    assert len(begins) == 1
    assert [call.args[1:] for call in update.call_args_list] == [()] * 3  # each counts as one step, with two environments
    log = pd.read_csv(tmp_path / "progress.csv")
    for name in ("critic_loss", "actor_loss", "reconstruction_loss", "latent_kl", "q_value"):
        assert log[f"train/{name}"].count() == 3  # after 4, 8 and 10 steps
    assert model.learn(100, callback=lambda local, _: local["self"].num_timesteps < 10).num_timesteps == 10


@pytest.mark.parametrize("n_play_samples", [5, 20])
def test_a_loaded_model_may_play_with_more_or_fewer_samples(n_play_samples, tmp_path):
    model = make()
    model.save(tmp_path / "model")
    loaded = BCQ.load(tmp_path / "model", n_play_samples=n_play_samples)
    n = min(n_play_samples, 10)
    assert len(loaded.policy.codes) == n_play_samples and th.equal(loaded.policy.codes[:n], model.policy.codes[:n])


def test_a_second_run_begins_with_the_first_rate_of_its_schedule():
    model, rates = make(learning_rate=LinearSchedule(1e-3, 0.0, 1.0)).learn(2), []
    optimizer = getattr(model.policy, model.policy.optimizer_names[0])
    model.learn(2, lambda *_: rates.append(optimizer.param_groups[0]["lr"]) or True)
    assert rates == [1e-3, 5e-4]


def test_a_run_that_continues_logs_to_its_own_tensorboard_folder(tmp_path):
    pytest.importorskip("tensorboard")
    first, second = (make(tensorboard_log=str(tmp_path)) for _ in range(2))
    found = [model.learn(2, reset_num_timesteps=is_new).logger.dir for is_new in (True, False) for model in (first, second)]
    assert [Path(folder).name for folder in found] == ["BCQ_1", "BCQ_2"] * 2


def test_a_loss_that_is_not_finite_is_named():
    model = make()
    model.policy.critics.critics[0][0].weight.data.fill_(np.nan)
    with pytest.raises(NonFiniteLossError, match="`critic_loss` is not finite in gradient step 1"):
        model.learn(2)


def test_arguments_that_cannot_work_are_refused():
    for kwargs, message in (
        (dict(phi=-1), r"`phi`=-1 cannot work"),
        (dict(replay_buffer_kwargs=dict(optimize_memory_usage=True)), "`replay_buffer_kwargs`=.*leave out optimize_memory"),
        (dict(policy_kwargs=dict(net_arch=dict(pi=[64], qf=[64]))), r"`net_arch`=.* cannot work: use a list of integers"),
        (dict(action_space=THREE, threshold=1.0), r"`threshold`=1.0 cannot work: use a number from 0 to below 1"),
        (dict(dataset=random_data(VECTOR, THREE)), "`actions` have shape"),
        (dict(replay_buffer_class=HerReplayBuffer), "`replay_buffer_class`=HerReplayBuffer cannot work"),
        (
            dict(replay_buffer_kwargs=dict(handle_timeouts=False)),
            "`handle_timeouts`=False cannot work: ReplayBuffer has no such argument",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            make(**kwargs)
    env = random_envs(VECTOR, BOX)
    for wrapped, message in (
        (VecNormalize(VecNormalize(env), norm_obs=False), "wrapped in 2 VecNormalize"),
        (VecFrameStack(VecNormalize(env), 2), "a wrapper around VecNormalize changes the observations"),
    ):
        data = random_data(wrapped.observation_space, BOX)
        with pytest.raises(ArgumentError, match=message):
            BCQ("MlpPolicy", wrapped, dataset=data, **TINY)
    with pytest.raises(ArgumentError, match=r"`dataset`=None cannot work.*`set_dataset`"):
        make(dataset=None).learn(1)
    with pytest.raises(TypeError, match=r"BCQ has no argument `lambda_`"):
        make(lambda_=0.75)
    with pytest.raises(ArgumentError, match=r"`n_steps`=3 cannot work: SB3 has no n-step buffer for dictionaries"):
        make(DICT, BOX, "MultiInputPolicy", n_steps=3)


def test_integer_actions_are_scaled_as_numbers_and_played_as_integers():
    """The difference of the bounds does not fit into their type."""
    space = spaces.Box(-128, 127, (1,), np.int8)
    actions = np.array([[-128], [0], [127]], np.int8)
    model = make(VECTOR, space, dataset=replace(random_data(VECTOR, space, 3), actions=actions))
    np.testing.assert_allclose(model.replay_buffer.actions[:, 0, 0], [-1, 1 / 255, 1], atol=1e-6)
    assert load_dataset(model.replay_buffer).fitted_to(VECTOR, space).actions.flatten().tolist() == [-128, 0, 127]
    played = model.predict(np.zeros((50, 3), np.float32))[0]
    assert played.dtype == np.int8 and len(np.unique(played)) > 1
    data = random_data(VECTOR, THREE)  # discrete ones, which do not begin at zero, in a buffer for another model
    model = make(VECTOR, THREE, dataset=make(VECTOR, THREE, dataset=data).replay_buffer)
    np.testing.assert_array_equal(model.replay_buffer.actions.flatten(), data.actions)


def test_target_networks_take_over_the_statistics_of_batch_normalization():
    networks: dict = dict(TINY["policy_kwargs"], features_extractor_class=BatchNormExtractor)
    for network, target in make(policy_kwargs=networks).learn(2).policy.targets:
        assert all(map(th.equal, network.buffers(), target.buffers()))


# ---- losses: numbers worked by hand ----


def test_shapes_that_would_broadcast_are_refused():
    for loss in (
        lambda: losses.vae_loss(th.zeros(4, 1), th.zeros(4), th.zeros(4, 2), th.ones(4, 2)),
        lambda: losses.td_targets(th.zeros(4, 1), th.zeros(4), 0.9, th.zeros(4)),
        lambda: losses.critic_loss(th.zeros(2, 4), th.zeros(4, 1)),
        lambda: losses.discrete_losses(th.zeros(4, 2), th.zeros(4, 2), th.zeros(4, dtype=th.long), th.zeros(4, 1)),
    ):
        with pytest.raises(ValueError, match="same shape"):
            loss()

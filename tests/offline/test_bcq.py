"""One update of both variants against NumPy, SB3's conventions, and that BCQ learns where its data says how."""

import copy
from dataclasses import replace
from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_ppg import ArgumentError, NonFiniteLossError
from sb3_ppg.arrays import map_arrays
from sb3_ppg.offline import BCQ, Dataset, load_dataset, record
from tests.helpers import BOX, DICT, VECTOR, BatchNormExtractor, RandomEnv, image_space, random_envs

TINY = dict(policy_kwargs=dict(net_arch=[16], vae_net_arch=[16]), n_play_samples=10, seed=0, device="cpu")
THREE = spaces.Discrete(3, start=2)


def random_data(observation_space: spaces.Space, action_space: spaces.Space, n: int = 64) -> Dataset:
    """Transitions of random episodes of ten steps, each of which ends in a time limit."""
    for seed, space in enumerate((observation_space, action_space)):
        space.seed(seed)
    observations = map_arrays(lambda *some: np.array(some), *(observation_space.sample() for _ in range(n + 1)))
    now, following = (map_arrays(itemgetter(part), observations) for part in (slice(0, n), slice(1, n + 1)))
    actions, truncations = np.array([action_space.sample() for _ in range(n)]), np.arange(n) % 10 == 9
    return Dataset(now, actions, np.arange(n) % 3, following, np.zeros(n), truncations)


def make(observation_space=VECTOR, action_space=BOX, policy="MlpPolicy", **kwargs) -> BCQ:
    env = RandomEnv(observation_space, action_space)
    return BCQ(policy, env, **{"dataset": random_data(observation_space, action_space), **TINY, **kwargs})


# ---- one update, from the papers' formulas ----


class DoubleExtractor(FlattenExtractor):
    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations).double()


class Net:
    """Dense layers with ReLU between them in NumPy, and their gradients."""

    def __init__(self, layers: th.nn.Module, squashes: bool = False):
        linear = [layer for layer in layers if isinstance(layer, th.nn.Linear)]
        self.weights = [layer.weight.detach().numpy().copy() for layer in linear]
        self.biases = [layer.bias.detach().numpy().copy() for layer in linear]
        self.squashes = squashes

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.inputs = []
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            self.inputs.append(x)
            x = x @ weight.T + bias
            x = np.maximum(x, 0) if i < len(self.weights) - 1 else x
        self.output = np.tanh(x) if self.squashes else x
        return self.output

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        """Keep the gradients of the parameters, and return that of the input."""
        self.gradients = []
        if self.squashes:
            gradient = gradient * (1 - self.output**2)
        for i in reversed(range(len(self.weights))):
            rows, inputs = gradient.reshape(-1, gradient.shape[-1]), self.inputs[i].reshape(-1, self.inputs[i].shape[-1])
            self.gradients.insert(0, (rows.T @ inputs, rows.sum(axis=0)))
            gradient = gradient @ self.weights[i]
            if i > 0:
                gradient = gradient * (self.inputs[i] > 0)
        return gradient

    def step(self, learning_rate: float) -> None:
        for i, (of_weight, of_bias) in enumerate(self.gradients):
            self.weights[i] = self.weights[i] - learning_rate * of_weight
            self.biases[i] = self.biases[i] - learning_rate * of_bias

    def follow(self, other: "Net", tau: float) -> None:
        self.weights = [(1 - tau) * one + tau * new for one, new in zip(self.weights, other.weights, strict=True)]
        self.biases = [(1 - tau) * one + tau * new for one, new in zip(self.biases, other.biases, strict=True)]

    def assert_equals(self, layers: th.nn.Module) -> None:
        expected = Net(layers)
        for mine, theirs in zip(self.weights + self.biases, expected.weights + expected.biases, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-10)


def double_model(action_space: spaces.Space) -> tuple[BCQ, SimpleNamespace]:
    """A model in float64 that takes steps of gradient descent, and a batch of six samples."""
    kwargs = dict(
        net_arch=[7, 5],
        vae_net_arch=[8, 6],
        features_extractor_class=DoubleExtractor,
        optimizer_class=th.optim.SGD,
    )
    options = dict(learning_rate=0.1, tau=0.05, gamma=0.9, n_train_samples=3)
    model = make(VECTOR, action_space, policy_kwargs=kwargs, **options)
    model.policy.double()
    rng = np.random.default_rng(1)
    for _, target in model.policy.targets:  # so that they differ from the networks
        for parameter in target.parameters():
            parameter.data += th.as_tensor(rng.normal(size=parameter.shape)) * 0.1
    batch = dict(observations=rng.normal(size=(6, 3)), next_observations=rng.normal(size=(6, 3)))
    batch |= dict(rewards=rng.normal(size=(6, 1)), dones=np.float64([[0], [0], [1], [0], [0], [1]]))
    is_box = isinstance(action_space, spaces.Box)
    batch["actions"] = rng.uniform(-1, 1, (6, 2)) if is_box else THREE.start + rng.integers(0, 3, (6, 1))
    for name in ("observations", "next_observations"):  # which preprocessing casts
        batch[name] = batch[name].astype(np.float32).astype(np.float64)
    return model, SimpleNamespace(**{name: th.as_tensor(value) for name, value in batch.items()}, discounts=None)


def test_an_update_with_box_actions_is_the_papers():
    model, batch = double_model(BOX)
    policy, (n, n_latent) = model.policy, (6, 4)
    encoder, decoder = Net(policy.vae.encoder), Net(policy.vae.decoder, squashes=True)
    actor, actor_target = Net(policy.actor.layers, squashes=True), Net(policy.actor_target.layers, squashes=True)
    critics, critics_target = ([Net(one) for one in each.critics] for each in (policy.critics, policy.critics_target))
    s, s_next, a, r, done = (
        getattr(batch, name).numpy() for name in ("observations", "next_observations", "actions", "rewards", "dones")
    )
    th.manual_seed(3)
    noise, target_codes, codes = (
        th.randn(*shape, dtype=th.float64).numpy() for shape in ((n, n_latent), (n, 3, n_latent), (n, 1, n_latent))
    )
    th.manual_seed(3)
    logged = model.update(batch)

    # The generative model: E[(D(s, z) - a)²] + 1/2 KL
    mean, log_std = np.split(encoder(np.hstack([s, a])), 2, axis=1)
    std = np.exp(log_std)
    reconstructed = decoder(np.hstack([s, mean + std * noise]))
    kl = (0.5 * (mean**2 + std**2 - 1) - log_std).mean()
    assert logged["latent_kl"].item() == pytest.approx(kl, abs=1e-12)
    assert logged["reconstruction_loss"].item() == pytest.approx(((reconstructed - a) ** 2).mean(), abs=1e-12)
    of_codes = decoder.backward(2 * (reconstructed - a) / a.size)[:, 3:]
    of_mean = of_codes + 0.5 * mean / mean.size
    of_log_std = (of_codes * noise + 0.5 * (std - 1 / std) / std.size) * std
    encoder.backward(np.hstack([of_mean, of_log_std]))
    encoder.step(0.1)
    decoder.step(0.1)

    # The critics: y = r + γ max_i [0.75 min_j Q' + 0.25 max_j Q'] over three perturbed actions of the generative model
    def beside(states: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.concatenate([np.repeat(states[:, None], numbers.shape[1], axis=1), numbers], axis=2)

    sampled = decoder(beside(s_next, target_codes.clip(-0.5, 0.5)))
    sampled = (sampled + 0.05 * actor_target(beside(s_next, sampled))).clip(-1, 1)
    q1, q2 = (critic(beside(s_next, sampled))[..., 0] for critic in critics_target)
    best = (0.75 * np.minimum(q1, q2) + 0.25 * np.maximum(q1, q2)).max(axis=1)
    y = r[:, 0] + (1 - done[:, 0]) * 0.9 * best
    loss = 0
    for critic in critics:
        error = critic(np.hstack([s, a])) - y[:, None]
        loss += (error**2).mean()
        critic.backward(2 * error / n)
        critic.step(0.1)
    assert logged["critic_loss"].item() == pytest.approx(loss, abs=1e-12)

    # The perturbation network: -E[Q_1(s, a + ξ(s, a))]
    of_data = decoder(beside(s, codes.clip(-0.5, 0.5)))
    moved = of_data + 0.05 * actor(beside(s, of_data))
    first = copy.deepcopy(critics[0])
    values = first(beside(s, moved.clip(-1, 1)))
    assert logged["actor_loss"].item() == pytest.approx(-values.mean(), abs=1e-12)
    actor.backward(0.05 * first.backward(np.full_like(values, -1 / n))[..., 3:] * (np.abs(moved) <= 1))
    actor.step(0.1)

    actor_target.follow(actor, 0.05)
    for target, critic in zip(critics_target, critics, strict=True):
        target.follow(critic, 0.05)
    encoder.assert_equals(policy.vae.encoder)
    decoder.assert_equals(policy.vae.decoder)
    actor.assert_equals(policy.actor.layers)
    actor_target.assert_equals(policy.actor_target.layers)
    for nets, modules in ((critics, policy.critics), (critics_target, policy.critics_target)):
        for net, module in zip(nets, modules.critics, strict=True):
            net.assert_equals(module)


def test_an_update_with_discrete_actions_is_the_papers():
    model, batch = double_model(THREE)
    policy, n = model.policy, 6
    policy.q_net.imitation_head.weight.data *= 40  # so that some actions are not allowed
    body, body_target = Net(policy.q_net.body), Net(policy.q_net_target.body)
    heads = {name: Net([getattr(policy.q_net, name)]) for name in ("q_head", "imitation_head")}
    heads_target = {name: Net([getattr(policy.q_net_target, name)]) for name in heads}
    s, s_next, a, r, done = (
        getattr(batch, name).numpy() for name in ("observations", "next_observations", "actions", "rewards", "dones")
    )
    logged = model.update(batch)

    def softmax(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    def hidden(net: Net, x: np.ndarray) -> np.ndarray:  # the body ends in a ReLU
        return np.maximum(net(x), 0)

    latent = hidden(body, s_next)
    probabilities = softmax(heads["imitation_head"](latent))
    allowed = probabilities / probabilities.max(axis=1, keepdims=True) > 0.3
    assert 0 < allowed.mean() < 1
    chosen = np.where(allowed, heads["q_head"](latent), -np.inf).argmax(axis=1)
    next_values = heads_target["q_head"](hidden(body_target, s_next))[np.arange(n), chosen]
    y = r[:, 0] + (1 - done[:, 0]) * 0.9 * next_values

    latent = hidden(body, s)
    values, logits = heads["q_head"](latent), heads["imitation_head"](latent)
    taken = np.eye(3)[a[:, 0] - THREE.start]
    error = (values * taken).sum(axis=1) - y
    huber = np.where(np.abs(error) < 1, error**2 / 2, np.abs(error) - 0.5)
    assert logged["critic_loss"].item() == pytest.approx(huber.mean(), abs=1e-12)
    imitation = -np.log((softmax(logits) * taken).sum(axis=1)).mean()
    assert logged["imitation_loss"].item() == pytest.approx(imitation, abs=1e-12)
    assert logged["logit_penalty"].item() == pytest.approx((logits**2).mean(), abs=1e-12)
    of_latent = heads["q_head"].backward(taken * error.clip(-1, 1)[:, None] / n)
    of_latent = of_latent + heads["imitation_head"].backward((softmax(logits) - taken) / n + 0.01 * 2 * logits / logits.size)
    body.backward(of_latent * (latent > 0))
    for net in (body, *heads.values()):
        net.step(0.1)
    body_target.follow(body, 0.05)
    for name, target in heads_target.items():
        target.follow(heads[name], 0.05)
        heads[name].assert_equals([getattr(policy.q_net, name)])
        target.assert_equals([getattr(policy.q_net_target, name)])
    body.assert_equals(policy.q_net.body)
    body_target.assert_equals(policy.q_net_target.body)


# ---- data ----


def test_targets_go_on_at_time_limits_and_stop_at_terminations():
    data = random_data(VECTOR, BOX, 20)
    data.terminations[5] = True
    buffer = make(dataset=data).replay_buffer
    batch = buffer._get_samples(np.arange(20))
    assert batch.dones.flatten().tolist() == [float(i == 5) for i in range(20)]
    with_ends = make(dataset=data, replay_buffer_kwargs=dict(handle_timeout_termination=False)).replay_buffer
    assert with_ends._get_samples(np.arange(20)).dones.flatten().nonzero().flatten().tolist() == [5, 9, 19]
    np.testing.assert_allclose(batch.actions, (data.actions - BOX.low) / (BOX.high - BOX.low) * 2 - 1, atol=1e-6)


def test_n_step_targets_end_where_episodes_do():
    """Rewards are 0, 1, 2, 0, 1, ...; episodes have ten steps, and the second is cut off after the data's last step."""
    model = make(dataset=random_data(VECTOR, BOX, 14), n_steps=3, gamma=0.5, replay_buffer_class=NStepReplayBuffer)
    batch = model.replay_buffer._get_samples(np.arange(14))
    assert batch.rewards.flatten()[:2].tolist() == [0 + 0.5 * 1 + 0.25 * 2, 1 + 0.5 * 2 + 0.25 * 0]
    assert batch.discounts.flatten()[[0, 7, 8, 9, 12, 13]].tolist() == [0.125, 0.125, 0.25, 0.5, 0.25, 0.5]
    assert not batch.dones.any()
    following = model.replay_buffer.next_observations[:, 0]
    np.testing.assert_array_equal(batch.next_observations[[0, 8, 13]], following[[2, 9, 13]])


def test_n_step_targets_have_discounts_of_their_own():
    """The value of all observations is 8, and that of the data's actions 0, where the loss is linear."""
    model = make(VECTOR, THREE, dataset=random_data(VECTOR, THREE, 14), n_steps=3, gamma=0.5)
    batch = model.replay_buffer._get_samples(np.arange(14))
    with th.no_grad():
        for network, value in ((model.policy.q_net, 0.0), (model.policy.q_net_target, 8.0)):
            network.q_head.weight.zero_()
            network.q_head.bias.fill_(value)
    expected = batch.rewards.flatten() + 8 * batch.discounts.flatten()
    assert (expected > 1).all()
    assert model.update(batch)["critic_loss"].item() == pytest.approx((expected - 0.5).mean().item())


def shifted(data: Dataset) -> Dataset:
    move = dict(observations=data.observations + 10, next_observations=data.next_observations + 10)
    return replace(data, **move, rewards=data.rewards * 3)


def normalized_env() -> VecNormalize:
    return VecNormalize(DummyVecEnv([lambda: RandomEnv(VECTOR, BOX)]), gamma=0.5)


def test_observations_and_rewards_are_normalized_by_the_datas_statistics_until_networks_are_trained(tmp_path):
    """A trained model, loaded with its statistics, plays as before; without them, it takes those of the data."""
    data, env = random_data(VECTOR, BOX), normalized_env()
    model = BCQ("MlpPolicy", env, dataset=shifted(data), **TINY)
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
    loaded_env = VecNormalize.load(tmp_path / "statistics.pkl", DummyVecEnv([lambda: RandomEnv(VECTOR, BOX)]))
    loaded = BCQ.load(tmp_path / "model", env=loaded_env, dataset=shifted(data))
    loaded.learn(2, reset_num_timesteps=True).set_dataset(shifted(data))
    for name in ("mean", "var", "count"):
        np.testing.assert_array_equal(getattr(loaded_env.obs_rms, name), getattr(env.obs_rms, name))
        np.testing.assert_array_equal(getattr(loaded_env.ret_rms, name), getattr(env.ret_rms, name))
    new_env = normalized_env()
    BCQ.load(tmp_path / "model", env=new_env, dataset=data)
    np.testing.assert_array_equal(new_env.obs_rms.mean, env.obs_rms.mean)


# ---- SB3's conventions ----


class Untouchable(RandomEnv):
    def reset(self, **_):
        raise AssertionError("the environment was touched")

    step = reset


def test_learning_does_not_touch_environments_and_evaluations_play_in_several():
    model = BCQ("MlpPolicy", Untouchable(VECTOR, BOX), dataset=random_data(VECTOR, BOX), **TINY)
    assert model.learn(3).num_timesteps == 3
    assert np.isfinite(evaluate_policy(model, random_envs(VECTOR, BOX), 3)[0])


@pytest.mark.parametrize(
    ("policy", "space", "actions"),
    [("CnnPolicy", image_space(36, 36, 1), THREE), ("MultiInputPolicy", DICT, BOX), ("MlpPolicy", spaces.Discrete(5), THREE)],
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
    for one in (model, loaded):
        one.set_random_seed(5)
        one.learn(2, reset_num_timesteps=False)
        assert one.num_timesteps == one._n_updates == 5
    for one, same in zip(model.policy.parameters(), loaded.policy.parameters(), strict=True):
        np.testing.assert_array_equal(one.detach(), same.detach())


def test_deterministic_play_is_reproducible_and_other_play_samples():
    model = make()
    observations = np.zeros((4, 3), np.float32)
    first, same = (model.predict(observations, deterministic=True)[0] for _ in range(2))
    np.testing.assert_array_equal(first, same)
    np.testing.assert_allclose(first, np.tile(first[:1], (4, 1)), atol=1e-6)  # no matter with which others
    sampled = model.predict(observations)[0]
    assert len(np.unique(sampled, axis=0)) > 1


def test_callbacks_logs_and_progress_bar(tmp_path):
    model = make(verbose=0)
    evaluation = EvalCallback(RandomEnv(VECTOR, BOX), n_eval_episodes=1, eval_freq=4, log_path=tmp_path, verbose=0)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(10, [evaluation, CheckpointCallback(5, tmp_path)], log_interval=4, progress_bar=True)
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [4, 8]
    assert (tmp_path / "rl_model_10_steps.zip").exists()
    log = pd.read_csv(tmp_path / "progress.csv")
    for name in ("critic_loss", "actor_loss", "reconstruction_loss", "latent_kl"):
        assert log[f"train/{name}"].count() == 3  # after 4, 8 and 10 steps
    assert model.learn(100, callback=lambda local, _: local["self"].num_timesteps < 10).num_timesteps == 10


def test_a_loss_that_is_not_finite_is_named():
    model = make()
    model.policy.critics.critics[0][0].weight.data.fill_(np.nan)
    with pytest.raises(NonFiniteLossError, match="`critic_loss` is not finite after 2 gradient steps"):
        model.learn(2)


def test_arguments_that_cannot_work_are_refused():
    for kwargs, message in (
        (dict(phi=-1), r"`phi`=-1 cannot work"),
        (dict(n_steps=0), r"`n_steps`=0 cannot work"),
        (dict(gamma=[0.9, 0.99]), r"`gamma`=\[0.9, 0.99\] cannot work: use one number"),
        (dict(action_space=THREE, threshold=1.0), r"`threshold`=1.0 cannot work: use a number from 0 to below 1"),
        (dict(dataset=random_data(VECTOR, THREE)), "`actions` have shape"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make(**kwargs)
    with pytest.raises(ArgumentError, match=r"`dataset`=None cannot work.*`set_dataset`"):
        make(dataset=None).learn(1)
    with pytest.raises(TypeError, match=r"BCQ has no argument `lambda_`"):
        make(lambda_=0.75)
    with pytest.raises(ArgumentError, match=r"`n_steps`=3 cannot work: SB3 has no n-step buffer for dictionaries"):
        make(DICT, BOX, "MultiInputPolicy", n_steps=3)


# ---- learning ----


def test_box_actions_improve_within_the_data():
    """
    The reward is the action. The data has two kinds of actions, about -0.5 and 0.3; none is near 1, where a critic alone would
    go.
    """
    rng = np.random.default_rng(0)
    n = 512
    actions = np.where(rng.random((n, 1)) < 0.5, -0.5, 0.3) + rng.uniform(-0.1, 0.1, (n, 1))
    observations = rng.uniform(-1, 1, (n, 3))
    ends = np.ones(n, dtype=bool)
    data = Dataset(observations, actions, actions[:, 0], observations, ends, ~ends)
    small = dict(net_arch=[32], vae_net_arch=[32])
    options = dict(learning_rate=3e-3, n_train_samples=4, latent_kl_coef=0.05, policy_kwargs=small)
    model = make(VECTOR, spaces.Box(-1, 1, (1,)), dataset=data, **options).learn(500)
    played = model.predict(observations[:200].astype(np.float32), deterministic=True)[0]
    assert 0.2 < played.mean() < 0.5 and played.max() < 0.75


class Balancer:
    """Pushes the cart towards the side to which the pole falls."""

    def predict(self, observations, state, starts, deterministic):
        return (observations[:, 2] + observations[:, 3] > 0).astype(int), state


def test_discrete_actions_learn_cartpole_from_a_mixture():
    """A fifth of the episodes are an agent's, the others are random."""
    env = make_vec_env("CartPole-v1", 4, seed=0)
    data = record(Balancer(), env, 4000, noise=0.3, random_episodes=0.8, seed=0)
    options = dict(learning_rate=3e-3, tau=0.02, gamma=0.97, policy_kwargs=dict(net_arch=[64, 64]), seed=0, device="cpu")
    model = BCQ("MlpPolicy", env, dataset=data, **options).learn(700)
    assert evaluate_policy(model, env, 4)[0] > 1.5 * data.episode_returns().mean()


def test_integer_actions_are_scaled_as_numbers_and_played_as_integers():
    """The difference of the bounds does not fit into their type."""
    space = spaces.Box(-128, 127, (1,), np.int8)
    actions = np.array([[-128], [0], [127]], np.int8)
    model = make(VECTOR, space, dataset=replace(random_data(VECTOR, space, 3), actions=actions))
    np.testing.assert_allclose(model.replay_buffer.actions[:, 0, 0], [-1, 1 / 255, 1], atol=1e-6)
    assert load_dataset(model.replay_buffer).fitted_to(VECTOR, space).actions.flatten().tolist() == [-128, 0, 127]
    played = model.predict(np.zeros((50, 3), np.float32))[0]
    assert played.dtype == np.int8 and len(np.unique(played)) > 1


def test_a_buffer_of_discrete_actions_that_do_not_begin_at_zero_is_data_for_another_model():
    data = random_data(VECTOR, THREE)
    model = make(VECTOR, THREE, dataset=make(VECTOR, THREE, dataset=data).replay_buffer)
    np.testing.assert_array_equal(model.replay_buffer.actions.flatten(), data.actions)


def test_target_networks_take_over_the_statistics_of_batch_normalisation():
    networks: dict = dict(TINY["policy_kwargs"], features_extractor_class=BatchNormExtractor)
    model = make(policy_kwargs=networks).learn(2)
    for network, target in model.policy.targets:
        for buffer, of_target in zip(network.buffers(), target.buffers(), strict=True):
            assert th.equal(buffer, of_target)

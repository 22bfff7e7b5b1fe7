"""Each fast path takes the same step as the plain one; bfloat16 stays where it belongs."""

import copy
import gc
import platform
import shutil
import subprocess
import sys
import weakref
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from torch.nn import functional as F

import sb3_ppg.buffers.aux_buffer
import sb3_ppg.optim.micro_batches
from sb3_ppg import PPG, ArgumentError, ImpalaCNN
from sb3_ppg.buffers.rollouts import minibatches
from sb3_ppg.optim.epoch import optimize_epoch
from sb3_ppg.optim.micro_batches import HEAP_LIMIT, fitting_micro_batch_size, split
from sb3_ppg.optim.precision import tensor_float_32
from sb3_ppg.policies.extractors import ImageConv2d
from tests.helpers import RandomEnv, collect, image_space, losses_of

ARCHITECTURES = ("dual", "detached", "shared")


def make(policy_kwargs=None, n_envs: int = 4, space: spaces.Space | None = None, **kwargs) -> PPG:
    space = space or image_space(3, 36, 36)
    env = DummyVecEnv([lambda: RandomEnv(space, spaces.Discrete(5), episode_length=7)] * n_envs)
    env.seed(0)
    impala = dict(features_extractor_class=ImpalaCNN, features_extractor_kwargs=dict(features_dim=32, channels=(8, 16)))
    if isinstance(space, spaces.Dict):
        impala = {}
    arguments = dict(
        n_steps=8, batch_size=16, n_epochs=1, n_policy_iterations=2, n_aux_epochs=2, aux_batch_size=16, seed=0, device="cpu"
    )
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy"
    return PPG(policy, env, policy_kwargs={**impala, **(policy_kwargs or {})}, **{**arguments, **kwargs})


# ---- the same gradients ----


class PlainImpalaCNN(ImpalaCNN):
    """The paper's network: the image is divided by 255, every operation makes a new tensor, weights are contiguous."""

    scales_images = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for stack in self.stacks:
            stack.firstconv.__class__ = nn.Conv2d

    def forward(self, x: th.Tensor) -> th.Tensor:
        assert x.dtype == th.float32 and x.max() <= 1
        for stack in self.stacks:
            x = F.max_pool2d(stack.firstconv(x), kernel_size=3, stride=2, padding=1)
            for block in stack.blocks:
                x = x + block.conv1(F.relu(block.conv0(F.relu(x))))
        return F.relu(self.dense(F.relu(x).flatten(1)))


def gradients(model: PPG, micro_batch_size: int | None) -> dict[str, dict[str, th.Tensor]]:
    """Return the gradients of both phases' losses on the first minibatch."""
    model.policy.set_training_mode(True)
    parameters = dict(model.policy.named_parameters())
    batch = next(model.rollout_buffer.get(model.batch_size))
    if not len(model.aux_buffer):
        model.aux_buffer.add(model.rollout_buffer)
        model.aux_buffer.record(model.recorded, 2)
        with th.no_grad():  # for the KL not to be zero
            for parameter in parameters.values():
                parameter.mul_(1.05)
    np.random.seed(1)
    auxiliary = next(model.aux_buffer.minibatches(2))
    found = {}
    for name, minibatch, loss in [
        ("policy", batch, partial(losses_of, "joint_losses", model)),
        ("auxiliary", auxiliary, partial(losses_of, "auxiliary_losses", model, value_unit=1.0)),
    ]:
        model.policy.zero_grad()
        for part in split(minibatch, micro_batch_size):
            weight = len(part.observations) / len(minibatch.observations)
            (weight * loss(part).total).backward()
        found[name] = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_fast_network_has_the_plain_ones_gradients(architecture):
    """channels_last, uint8 with 1/255 in the weights, in-place operations, micro-batches: 1e-5 relative, float32."""
    fast = make(dict(architecture=architecture))
    plain = make(dict(architecture=architecture, features_extractor_class=PlainImpalaCNN))
    plain.policy.load_state_dict(fast.policy.state_dict())
    for parameter in plain.policy.parameters():
        parameter.data = parameter.data.contiguous()
    assert not all(p.is_contiguous() for p in fast.policy.parameters())  # but channels_last

    results = []
    for model, micro_batch_size in ((plain, None), (fast, 5)):
        np.random.seed(0)
        th.manual_seed(0)
        collect(model)
        np.random.seed(0)
        results.append(gradients(model, micro_batch_size))
    for phase in ("policy", "auxiliary"):
        assert results[0][phase].keys() == results[1][phase].keys()
        for name, expected in results[0][phase].items():
            difference = (results[1][phase][name] - expected).norm() / expected.norm()
            assert difference < 1e-5, f"{phase} {name}: {difference:.1e}"


def test_images_are_scaled_in_the_weights():
    conv = ImageConv2d(3, 8, 3, padding=1)
    image = th.randint(0, 256, (4, 3, 9, 9), dtype=th.uint8)
    th.testing.assert_close(conv(image), conv(image.float() / 255), rtol=1e-5, atol=1e-6)
    with th.autocast("cpu", th.bfloat16):
        assert conv(image).dtype == th.bfloat16
    # bfloat16 holds 0..255 exactly, but not their 255th parts
    values = th.arange(256)
    assert th.equal(values.bfloat16().float(), values.float())
    assert not th.equal((values / 255).bfloat16().float(), values / 255)


@pytest.mark.parametrize(
    "space, policy_kwargs",
    [
        (image_space(3, 36, 36), {}),
        (image_space(36, 36, 3), {}),
        (image_space(3, 36, 36), dict(normalize_images=False, features_extractor_kwargs=dict(normalized_image=True))),
        (spaces.Box(0, 1, (3, 36, 36), np.float32), dict(features_extractor_kwargs=dict(normalized_image=True))),
        (spaces.Box(0, 100, (3, 36, 36), np.uint8), dict(features_extractor_kwargs=dict(normalized_image=True))),
    ],
    ids=["images", "channels last", "not to be normalised", "floats", "bytes that are no image"],
)
def test_images_are_scaled_when_sb3_scales_them(space, policy_kwargs):
    model = make(policy_kwargs, space=space)
    policy = model.policy
    obs, _ = policy.obs_to_tensor(np.stack([policy.observation_space.sample() for _ in range(3)]))
    scaled = preprocess_obs(obs, policy.observation_space, normalize_images=policy.normalize_images)
    expected = policy.pi_features_extractor(scaled)
    th.testing.assert_close(policy.extract_features(obs)[0], expected, rtol=1e-5, atol=1e-6)
    # Environments do not always keep their word
    for other in (obs.float(), obs.to(th.int64)) if obs.dtype == th.uint8 else ():
        th.testing.assert_close(policy.extract_features(other)[0], expected, rtol=1e-5, atol=1e-6)


def test_a_subclass_gets_scaled_images_unless_it_says_otherwise():
    class Centred(ImpalaCNN):
        def forward(self, x):
            assert x.dtype == th.float32 and x.max() <= 1
            return super().forward(x - 0.5)

    make(dict(features_extractor_class=Centred), n_aux_epochs=1).learn(64)


def test_minibatches_are_sb3s(monkeypatch):
    """Gathered together or one by one: the same samples in the same order."""
    model = make(batch_size=10)  # 32 samples: 10, 10, 10, 2
    collect(model)
    next(model.rollout_buffer.get(1))
    found = []
    for at_once in (1, 10 * 3 * 36 * 36, 2**22):
        monkeypatch.setattr("sb3_ppg.buffers.rollouts.GATHERED_BYTES", at_once)
        np.random.seed(3)
        found.append(list(minibatches(model.rollout_buffer, model.batch_size)))
    np.random.seed(3)
    expected = list(model.rollout_buffer.get(10))
    for epoch in found:
        assert [len(minibatch.actions) for minibatch in epoch] == [10, 10, 10, 2]
        for ours, theirs in zip(epoch, expected, strict=True):
            assert type(ours) is type(theirs) and all(th.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_parameters_in_one_array():
    """Also of channels_last weights, and back."""
    model = make()
    vector = model.policy.parameters_to_vector()
    assert vector.shape == (sum(parameter.numel() for parameter in model.policy.parameters()),)
    other = make(seed=1)
    other.policy.load_from_vector(vector)
    for ours, theirs in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_only_convolutions_change_how_they_lie_in_memory():
    class WithPositions(ImpalaCNN):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.positions = nn.Parameter(th.zeros(1, 3, 36, 36))

        def forward(self, x):
            return super().forward(x + self.positions.view(3, 36, 36))

    make(dict(features_extractor_class=WithPositions), n_aux_epochs=1).learn(64)


class Weighted(NamedTuple):
    observations: th.Tensor
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    batch_size: int | None
    nothing: None = None


def test_rollout_buffers_of_the_users_own_are_asked_for_each_minibatch():
    class Own(RolloutBuffer):
        def _get_samples(self, batch_inds, env=None):
            return Weighted(*super()._get_samples(batch_inds, env), None)

    model = make(rollout_buffer_class=Own, batch_size=8, n_aux_epochs=0, micro_batch_size=3)
    sizes = []
    get = Own.get
    Own.get = lambda self, batch_size=None: sizes.append(batch_size) or get(self, batch_size)
    model.learn(32)
    assert set(sizes) == {8}


def test_samples_may_have_fields_that_are_no_tensors():
    """In a user's minibatches, numbers, texts, None and scalars belong to every part; nested tensors are split."""

    class Samples(NamedTuple):
        observations: dict[str, th.Tensor]
        weight: float
        note: str
        nothing: None
        scalar: th.Tensor
        states: tuple[th.Tensor, th.Tensor]

    states = th.arange(6.0), th.arange(6.0) + 10
    samples = Samples({"x": th.arange(6.0)[:, None]}, 0.5, "hello", None, th.tensor(3.0), states)
    parts = list(split(samples, 4))
    assert [len(part.observations["x"]) for part in parts] == [4, 2]
    for part in parts:
        assert isinstance(part, Samples) and part[1:4] == (0.5, "hello", None) and part.scalar == 3
        th.testing.assert_close(part.states[1], part.states[0] + 10)
        th.testing.assert_close(part.states[0][:, None], part.observations["x"])


def test_fused_steps_are_for_contiguous_parameters_alone():
    """Torch's kernel would pair a channels_last weight with the wrong moments of one that a file holds contiguously."""
    convolutions, dense = make(), PPG("MlpPolicy", "CartPole-v1", device="cpu")
    for optimizer in (convolutions.policy.optimizer, convolutions.value_optimizer, convolutions.aux_optimizer):
        # Not False: torch would take it for both, and make steps of single tensors on GPUs
        assert optimizer.defaults["fused"] is optimizer.defaults["foreach"] is None
    for optimizer in (dense.policy.optimizer, dense.value_optimizer, dense.aux_optimizer):
        assert optimizer.defaults["fused"]
    for kwargs in (dict(fused=False), dict(foreach=True)):
        asked = PPG("MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs=dict(optimizer_kwargs=kwargs))
        assert not asked.policy.optimizer.defaults["fused"]


def test_moments_from_a_contiguous_file_fit_channels_last_weights():
    """Training goes on in the same way, however the moments lie in memory."""
    models = []
    for contiguous in (False, True):
        model = make().learn(32)
        if contiguous:
            for state in model.policy.optimizer.state.values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = state[name].contiguous()
        np.random.seed(0)
        th.manual_seed(0)
        models.append(model.learn(64, reset_num_timesteps=False))
    for a, b in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        th.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


# ---- micro-batches that fit ----


def observation(model: PPG) -> th.Tensor:
    return th.zeros(1, *model.observation_space.shape, dtype=th.uint8)


@pytest.mark.parametrize("mixed_precision, expected", [(None, 64), ("bf16", 128)])
def test_impala_on_procgen_runs_in_micro_batches(mixed_precision, expected):
    """Its largest activations are 16 x 64 x 64 numbers of 4 bytes: 127 samples fit 32 MiB, the power of two below is 64."""
    paper = dict(features_extractor_kwargs=dict())
    model = make(paper, space=image_space(3, 64, 64), mixed_precision=mixed_precision)
    assert 16 * 64 * 64 * 4 * 128 == HEAP_LIMIT
    assert fitting_micro_batch_size(model.policy, observation(model)) == expected
    assert model.resolved_micro_batch_size() == expected


@pytest.mark.parametrize("mixed_precision", [None, "bf16"])
def test_the_size_looks_at_images_that_are_scaled_in_float32(mixed_precision):
    """SB3's NatureCNN gets them so, whatever it computes in: 4 x 84 x 84 numbers of 4 bytes, 297 samples in 32 MiB."""
    nature = dict(features_extractor_class=NatureCNN, features_extractor_kwargs=dict(features_dim=32))
    assert make(nature, space=image_space(4, 84, 84), mixed_precision=mixed_precision).resolved_micro_batch_size() == 256


def test_the_size_looks_at_what_grows_with_the_batch():
    """Not at a large weight that is computed anew in each pass."""

    class Normalised(ImpalaCNN):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            nn.utils.parametrizations.weight_norm(self.dense)

    paper = dict(features_extractor_class=Normalised, features_extractor_kwargs=dict())
    assert make(paper, space=image_space(3, 64, 64)).resolved_micro_batch_size() == 64


def test_small_networks_run_whole_minibatches():
    model = PPG("MlpPolicy", "CartPole-v1", device="cpu", n_steps=8, batch_size=8)
    assert model.resolved_micro_batch_size() is None


def test_batch_normalisation_is_left_whole():
    class Normalised(ImpalaCNN):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = nn.BatchNorm1d(32)

    assert make(dict(features_extractor_class=Normalised)).resolved_micro_batch_size() is None


def test_micro_batches_of_batch_normalisation_are_refused():
    class Normalised(ImpalaCNN):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = nn.BatchNorm1d(32)

    with pytest.raises(ArgumentError, match=r"`micro_batch_size`=4 cannot work: batch normalisation.*None"):
        make(dict(features_extractor_class=Normalised), micro_batch_size=4)


def test_the_size_is_looked_for_once_per_training(monkeypatch):
    asked, original = [], fitting_micro_batch_size
    monkeypatch.setattr("sb3_ppg.ppg.fitting_micro_batch_size", lambda *args: asked.append(args) or original(*args))
    model = make()
    model.learn(2 * 32)
    assert len(asked) == 1 and model.n_aux_phases > 0
    model.learn(32)
    assert len(asked) == 2


def test_looking_for_the_size_keeps_nothing_alive():
    """Float images, which a convolution keeps for its backward pass, would stay with the graph for ever."""
    extractor = dict(channels=(8,), features_dim=32, normalized_image=True)
    space = spaces.Box(0, 1, (4, 10, 10))
    model = make(dict(normalize_images=False, features_extractor_kwargs=extractor), space=space)
    images = th.zeros(1, 4, 10, 10)
    fitting_micro_batch_size(model.policy, images)
    alive = weakref.ref(images)
    del images
    gc.collect()
    assert alive() is None


def test_on_a_gpu_minibatches_are_whole():
    policy = SimpleNamespace(device=th.device("cuda"), modules=make().policy.modules)
    assert fitting_micro_batch_size(policy, th.zeros(1)) is None


def test_a_micro_batch_holds_at_least_one_sample(monkeypatch):
    monkeypatch.setattr(sb3_ppg.optim.micro_batches, "HEAP_LIMIT", 1000)
    assert make().resolved_micro_batch_size() == 1


def test_looking_for_the_size_leaves_no_trace():
    """Neither in the generator (dropout), nor in gradients, training mode, precision or the activations."""

    class Dropping(ImpalaCNN):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, self.training)

    model = make(dict(features_extractor_class=Dropping), mixed_precision="bf16")
    model.policy.set_training_mode(True)
    state = th.get_rng_state()
    model.resolved_micro_batch_size()
    assert th.equal(th.get_rng_state(), state)
    assert model.policy.training and model.policy.mixed_precision == "bf16"
    assert all(parameter.grad is None for parameter in model.policy.parameters())


def test_automatic_micro_batches_are_used_in_both_phases(monkeypatch):
    monkeypatch.setattr(sb3_ppg.optim.micro_batches, "HEAP_LIMIT", 8 * 36 * 36 * 4 * 6)  # 5 samples: 4
    model = make()
    sizes = []
    model.policy.features_extractor.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    model.learn(2 * 32)
    training = [size for size in sizes if size != model.n_envs]
    assert model.resolved_micro_batch_size() == 4 and set(sizes) <= {1, 2, 4} and not set(training) - {1, 2}


MAPPED_BYTES = """
import ctypes, sys
import torch as th
from sb3_ppg.optim.micro_batches import keep_freed_memory
from tests.optim.test_fast_paths import make

class Info(ctypes.Structure):  # of glibc's mallinfo2; hblkhd are the bytes that come fresh from the system
    names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in names]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
make(n_aux_epochs=0).learn(32)
if sys.argv[1] == "keep":
    keep_freed_memory()
before = mallinfo().hblkhd
array = th.ones(2**22)
print(mallinfo().hblkhd - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
@pytest.mark.parametrize("word, expected", [("leave", True), ("keep", False)])
def test_training_leaves_the_allocator_alone_unless_asked(word, expected):
    mapped = subprocess.check_output([sys.executable, "-c", MAPPED_BYTES, word])
    assert (int(mapped) >= 4 * 2**22) == expected


# ---- mixed precision ----


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_is_for_the_features_alone(architecture):
    """Weights, moments, losses, distributions and values are float32; what convolutions compute is not."""
    model = make(dict(architecture=architecture), mixed_precision="bf16", max_grad_norm=0.5, micro_batch_size=5)
    types = []
    model.policy.pi_features_extractor.stacks[0].register_forward_hook(lambda _, args, output: types.append(output.dtype))
    model.policy.action_net.register_forward_hook(lambda _, args, output: types.append((args[0].dtype, output.dtype)))
    model.learn(64)
    assert set(types) == {th.bfloat16, (th.float32, th.float32)}
    tensors = list(model.policy.state_dict().values())
    for optimizer in (model.policy.optimizer, model.aux_optimizer):
        tensors += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert {tensor.dtype for tensor in tensors} == {th.float32}
    collect(model)
    losses = losses_of("joint_losses", model, next(model.rollout_buffer.get(16)))
    assert {value.dtype for value in (losses.total, *losses.terms.values())} == {th.float32}


def test_bfloat16_gradients_point_where_float32s_do():
    models = [make(), make(mixed_precision="bf16")]
    vectors = []
    collect(models[0])
    for model in models:
        model.rollout_buffer = copy.copy(models[0].rollout_buffer)
        np.random.seed(0)
        found = gradients(model, None)
        vectors.append({phase: th.cat([g.flatten() for g in found[phase].values()]) for phase in found})
    for phase in ("policy", "auxiliary"):
        cosine = F.cosine_similarity(vectors[0][phase], vectors[1][phase], dim=0)
        assert not th.equal(vectors[0][phase], vectors[1][phase]) and cosine > 0.99, f"{phase}: {cosine}"


@pytest.mark.parametrize("mixed_precision", [None, "bf16"])
def test_the_kl_starts_at_zero(monkeypatch, mixed_precision):
    """π_old is recorded in the micro-batches that train: bfloat16's rounding is the same. Else Adam would amplify it."""
    model = make(mixed_precision=mixed_precision, micro_batch_size=5, n_envs=6, learning_rate=5e-4)
    epochs = []

    def spy(phase, *args, **kwargs):
        epochs.append((phase, optimize_epoch(phase, *args, **kwargs)))
        return epochs[-1][1]

    monkeypatch.setattr("sb3_ppg.ppg.optimize_epoch", spy)
    model.learn(2 * 48)
    first = next(epoch for phase, epoch in epochs if phase == "auxiliary")
    assert first.losses["kl"][0] < 1e-8 < 1e-6 < first.losses["kl"][1]


def test_mixed_precision_is_kept_by_a_saved_model(tmp_path):
    model = make(mixed_precision="bf16")
    model.save(tmp_path / "model.zip")
    loaded = PPG.load(tmp_path / "model.zip")
    obs = np.stack([model.observation_space.sample() for _ in range(3)])
    assert loaded.mixed_precision == loaded.policy.mixed_precision == "bf16"
    assert th.equal(loaded.policy.predict_values(th.as_tensor(obs)), model.policy.predict_values(th.as_tensor(obs)))


def test_mixed_precision_needs_something_to_compute():
    with pytest.raises(ArgumentError, match=r"`mixed_precision`='bf16' cannot work.*no layers"):
        PPG("MlpPolicy", "CartPole-v1", mixed_precision="bf16")
    with pytest.raises(ArgumentError, match="`mixed_precision`='fp16' cannot work"):
        make(mixed_precision="fp16")


def test_tf32_holds_while_training():
    matmul = th.backends.cuda.matmul
    before = matmul.fp32_precision
    assert before != "tf32"
    found = []

    def look(*_):
        """By each of torch's names for it; its compiler asks by the second."""
        found.append((matmul.fp32_precision, th.get_float32_matmul_precision(), matmul.allow_tf32))
        return True

    model = make(mixed_precision="tf32")
    model.learn(32, callback=look)
    assert set(found) == {("tf32", "high", True)}
    look()
    assert found[-1] == (before, "highest", False)
    with pytest.raises(RuntimeError), tensor_float_32(True):
        raise RuntimeError
    assert matmul.fp32_precision == before


def test_without_tf32_nothing_is_looked_at(monkeypatch):
    """Torch has two ways to set it, which do not mix."""
    monkeypatch.setattr("sb3_ppg.optim.epoch.th.backends.cuda.matmul", None)
    assert make(n_aux_epochs=0).learn(32).num_timesteps == 32


class Dense(BaseFeaturesExtractor):
    """Which torch's own kernels compute, so that no C++ is compiled."""

    def __init__(self, observation_space: spaces.Box):
        super().__init__(observation_space, features_dim=8)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(observation_space.shape)), 8))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layers(observations)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("extractor", [Dense, ImpalaCNN])
def test_a_compiled_network_computes_the_same(extractor, monkeypatch):
    """By torch's compiler; our convolutions by all of it but the last step, the C++, which takes half a minute."""
    kwargs: dict = dict(features_extractor_class=extractor, features_extractor_kwargs={})
    if extractor is ImpalaCNN:
        kwargs["features_extractor_kwargs"] = dict(features_dim=8, channels=(4,), n_blocks=1)
        compile_ = nn.Module.compile
        monkeypatch.setattr(nn.Module, "compile", lambda self, mode, **options: compile_(self, backend="aot_eager", **options))
    model = make({**kwargs, "compile_mode": "default"})
    plain = make(kwargs)
    plain.policy.load_state_dict(model.policy.state_dict())
    obs = th.as_tensor(np.stack([model.observation_space.sample() for _ in range(4)]))
    with th.no_grad():  # else its gradient is compiled, too
        th.testing.assert_close(model.policy.predict_values(obs), plain.policy.predict_values(obs), rtol=1e-4, atol=1e-5)
    assert isinstance(model.policy.features_extractor, BaseFeaturesExtractor)
    assert model.policy._get_constructor_parameters()["compile_mode"] == "default"


def test_cuda_graphs_and_micro_batches_exclude_each_other():
    with pytest.raises(ArgumentError, match=r"`micro_batch_size`=4 cannot work: CUDA graphs"):
        make(dict(compile_mode="reduce-overhead"), micro_batch_size=4)

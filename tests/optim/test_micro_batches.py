"""Micro-batches that fit into the allocator's heap, and memory that does not grow with training time."""

import ctypes
import gc
import platform
import weakref

import psutil
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from torch import nn
from torch.nn import functional as F

from sb3_ppg import PPG, ImpalaCNN, RecurrentPPG
from sb3_ppg.optim.micro_batches import HEAP_LIMIT, fitting_micro_batch_size, keep_freed_memory
from tests.helpers import SMALL, image_space, random_envs, run_in_a_new_process
from tests.helpers import make_on_images as make


class BatchNorm(ImpalaCNN):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = nn.BatchNorm1d(256)


@pytest.mark.parametrize(
    "extractor, shape, mixed_precision, expected",
    [
        (ImpalaCNN, (3, 64, 64), None, 64),
        (ImpalaCNN, (3, 64, 64), "bf16", 128),
        (NatureCNN, (4, 84, 84), "bf16", 256),
        (BatchNorm, (3, 64, 64), None, None),
        (FlattenExtractor, (3, 64, 64), None, None),
    ],
)
def test_the_size_is_the_largest_power_of_two_that_fits(extractor, shape, mixed_precision, expected):
    """
    The largest activations of the paper's network are 16 x 64 x 64 numbers of 4 bytes: 127 samples fit 32 MiB. SB3's NatureCNN
    gets images in float32: 4 x 84 x 84 numbers of 4 bytes, 297 samples. Without convolutions minibatches are whole.
    """
    assert 16 * 64 * 64 * 4 * 128 == HEAP_LIMIT
    network = dict(features_extractor_class=extractor, features_extractor_kwargs={})
    model = make(network, space=image_space(*shape), mixed_precision=mixed_precision)
    assert model.resolved_micro_batch_size() == expected


def test_other_devices_run_whole_minibatches_and_micro_batches_hold_at_least_one_sample(monkeypatch):
    monkeypatch.setattr("sb3_ppg.optim.micro_batches.HEAP_LIMIT", 1000)
    model = make()
    assert model.resolved_micro_batch_size() == 1
    assert fitting_micro_batch_size(model.policy.to("meta"), th.zeros(1)) is None


def test_looking_for_the_size_leaves_no_trace():
    """Neither in the generator (dropout), nor in gradients, training mode, precision or memory, with the graph of a pass."""

    class Dropping(ImpalaCNN):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, self.training)

    extractor = dict(channels=(8,), features_dim=32, normalized_image=True)
    networks = dict(features_extractor_class=Dropping, features_extractor_kwargs=extractor, normalize_images=False)
    model = make(networks, space=spaces.Box(0, 1, (4, 10, 10)), mixed_precision="bf16")
    model.policy.set_training_mode(True)
    state, images = th.get_rng_state(), th.zeros(1, 4, 10, 10)
    fitting_micro_batch_size(model.policy, images)
    alive = weakref.ref(images)
    del images
    gc.collect()
    assert alive() is None and th.equal(th.get_rng_state(), state)
    assert model.policy.training and model.policy.mixed_precision == "bf16"
    assert all(parameter.grad is None for parameter in model.policy.parameters())


def test_automatic_micro_batches_are_used_in_both_phases(monkeypatch):
    monkeypatch.setattr("sb3_ppg.optim.micro_batches.HEAP_LIMIT", 8 * 36 * 36 * 4 * 6)  # 5 samples: 4
    model = make()
    sizes = []
    model.policy.features_extractor.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    model.learn(2 * 32)
    assert model.resolved_micro_batch_size() == 4 and set(sizes) <= {1, 2, 4}
    model.policy.mixed_precision = "bf16"  # halves the activations: the next run has a size of its own
    model.learn(32)
    assert model.resolved_micro_batch_size() == 8


class Info(ctypes.Structure):
    """The result of glibc's ``mallinfo2``; ``hblkhd`` are the bytes that come fresh from the system."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def is_fresh() -> list[bool]:
    """Return whether an array takes fresh memory after a training, and where freed memory is kept."""
    mallinfo, found = ctypes.CDLL(None).mallinfo2, []
    mallinfo.restype = Info
    make(n_aux_epochs=0).learn(32)
    for prepare in (int, keep_freed_memory):
        prepare()
        before = mallinfo().hblkhd
        array = th.ones(2**22)
        found.append(mallinfo().hblkhd - before >= array.nbytes)
        del array
    return found


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_training_leaves_the_allocator_alone_unless_asked():
    assert run_in_a_new_process(is_fresh) == [True, False]


# So large that one more rollout would be seen
WIDE = spaces.Dict(image=image_space(16, 40, 40), vector=spaces.Box(-1, 1, (6000,)))
MEMORY_CASES: dict[str, tuple] = {
    "Dict": (PPG, "MultiInputPolicy", WIDE, dict(features_extractor_kwargs=dict(cnn_output_dim=32))),
    "LSTM": (RecurrentPPG, "MlpLstmPolicy", WIDE["vector"], dict(lstm_hidden_size=16)),
}


def measure_memory(case: str) -> list[int]:
    """Return the process's resident memory after each phase of a training."""
    cls, policy, space, policy_kwargs = MEMORY_CASES[case]
    model = cls(policy, random_envs(space, n_envs=8), **SMALL | dict(batch_size=64), policy_kwargs=policy_kwargs)
    memory = []
    for _ in range(6):
        model.learn(128, reset_num_timesteps=False)
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # what is freed is not counted
        memory.append(psutil.Process().memory_info().rss)
    return memory


@pytest.mark.slow
@pytest.mark.parametrize("case", MEMORY_CASES)
def test_resident_memory_is_flat_from_the_second_phase_on(case):
    """Within 1 % up to the sixth, apart from what comes and goes."""
    memory = run_in_a_new_process(measure_memory, case)
    assert min(memory[4:]) <= 1.01 * memory[1], memory

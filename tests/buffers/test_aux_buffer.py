"""The rollouts kept for the auxiliary phase."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.memory import available_memory, total_memory
from sb3_ppg.buffers.rollouts import Rollout, leaves_of, n_bytes

N_STEPS, N_ENVS = 5, 3
IMAGES = spaces.Box(0, 255, (1, 8, 8), np.uint8)
DICT = spaces.Dict(image=IMAGES, vector=spaces.Box(-1, 1, (2,)))


def fill(buffer: RolloutBuffer, rollout: int) -> RolloutBuffer:
    """Fill a buffer so that the first number of an observation and the value target are 100 * rollout + 10 * env + step."""
    buffer.reset()
    for step in range(N_STEPS):
        place = (100 * rollout + 10 * np.arange(N_ENVS) + step).astype(np.float32)
        image = np.broadcast_to((place % 256).astype(np.uint8)[:, None, None, None], (N_ENVS, 1, 8, 8))
        obs = image
        if isinstance(buffer, DictRolloutBuffer):
            obs = dict(image=image, vector=np.stack([place, place], axis=1))
        zeros = np.zeros(N_ENVS)
        buffer.add(obs, zeros[:, None], place, zeros, th.zeros(N_ENVS), th.zeros(N_ENVS))
    buffer.compute_returns_and_advantage(th.zeros(N_ENVS), np.ones(N_ENVS))
    buffer.returns = buffer.rewards.copy()
    return buffer


def make_rollout_buffer(space: spaces.Space = IMAGES) -> RolloutBuffer:
    cls = DictRolloutBuffer if isinstance(space, spaces.Dict) else RolloutBuffer
    return cls(N_STEPS, space, spaces.Discrete(2), n_envs=N_ENVS, device="cpu")


def make_aux_buffer(space: spaces.Space = IMAGES, n_rollouts: int = 4) -> AuxBuffer:
    rollout_buffer, aux_buffer = make_rollout_buffer(space), AuxBuffer()
    for rollout in range(n_rollouts):
        assert len(aux_buffer) == rollout
        aux_buffer.add(Rollout.of(fill(rollout_buffer, rollout)).kept(["observations", "targets"]))
    assert aux_buffer.n_sequences == n_rollouts * N_ENVS
    return aux_buffer


def pixels(batch) -> th.Tensor:
    """Return the first pixels of a minibatch's images."""
    image = batch.observations["image"] if isinstance(batch.observations, dict) else batch.observations
    return image[:, 0, 0, 0]


def record(aux_buffer: AuxBuffer, n_sequences: int = 2) -> None:
    """Record, as distribution parameters, the image's first pixel and its negative."""

    def parameters(batch):
        pixel = pixels(batch).float()
        return th.stack([pixel, -pixel], dim=1)

    aux_buffer.record(parameters, n_sequences)


@pytest.mark.parametrize("n_sequences", [1, 2, 5, 12])
@pytest.mark.parametrize("space", [IMAGES, DICT], ids=["images", "dict"])
def test_an_epoch_is_every_sequence_once_in_whole(space, n_sequences):
    aux_buffer = make_aux_buffer(space)
    record(aux_buffer)
    sequences = []
    minibatches = list(aux_buffer.minibatches(n_sequences))
    sizes = [len(batch.targets) // N_STEPS for batch in minibatches]
    assert len(sizes) == -(-12 // n_sequences) and max(sizes) - min(sizes) <= 1
    for batch in minibatches:
        image, places = pixels(batch), batch.targets  # of the same samples
        assert image.dtype == th.uint8 and th.equal(image.float(), places % 256)
        assert th.equal(batch.recorded, th.stack([places % 256, -(places % 256)], dim=1))
        assert space is IMAGES or th.equal(batch.observations["vector"][:, 0], places)
        sequences += places.reshape(-1, N_STEPS).tolist()
    expected = [[100 * r + 10 * e + t for t in range(N_STEPS)] for r in range(4) for e in range(N_ENVS)]
    assert sorted(sequences) == expected != sequences  # shuffled over environments and rollouts, in each epoch anew
    (again,) = aux_buffer.minibatches(12)
    assert sequences != again.targets.reshape(-1, N_STEPS).tolist()


def test_a_buffer_forgets_its_rollouts_when_it_is_reset():
    aux_buffer = make_aux_buffer(n_rollouts=4)
    record(aux_buffer)
    assert len(aux_buffer) == 4
    aux_buffer.reset()
    assert len(aux_buffer) == 0


def test_evenly_spread_sequences_include_the_first_and_the_last():
    aux_buffer = make_aux_buffer(n_rollouts=4)
    assert aux_buffer.evenly_spread(3).tolist() == [0, (aux_buffer.n_sequences - 1) // 2, aux_buffer.n_sequences - 1]
    assert aux_buffer.evenly_spread(100).tolist() == list(range(aux_buffer.n_sequences))


def epoch(aux_buffer: AuxBuffer) -> list[th.Tensor]:
    """The tensors of one epoch's minibatches, always in the same order, on the CPU."""
    np.random.seed(5)
    return [tensor.cpu() for batch in aux_buffer.minibatches(5) for tensor in leaves_of(batch._asdict())]


class Pretended(str):
    """The CPU, which says that it is a GPU."""

    type = "cuda"


needs_gpu = pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", [Pretended("cpu"), pytest.param(th.device("cuda"), marks=needs_gpu)])
@pytest.mark.parametrize("free", [2, 1.99], ids=["on the GPU", "in memory"])
@pytest.mark.parametrize("space", [IMAGES, DICT], ids=["images", "dict"])
def test_minibatches_on_a_gpu_are_those_on_the_cpu(space, free, device, monkeypatch):
    """Observations go there for the phase if they take no more than half of its free memory."""
    on_cpu, on_gpu = make_aux_buffer(space), make_aux_buffer(space)
    on_gpu.device = device
    size = sum(n_bytes(rollout.arrays) for rollout in on_gpu.rollouts)
    monkeypatch.setattr(th.cuda, "mem_get_info", lambda device: (int(free * size), 10**12))
    record(on_cpu)
    record(on_gpu)
    assert on_cpu.on_device is None and (on_gpu.on_device is None) == (free < 2)
    for ours, theirs in zip(epoch(on_gpu), epoch(on_cpu), strict=True):
        assert th.equal(ours, theirs) and ours.dtype == theirs.dtype
    on_gpu.reset()
    assert on_gpu.on_device is None


def cgroup(folder: Path, limit: int | str, used: int, inactive: int, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, number in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{number}\n")
    cache = f"inactive_file {inactive}" if version == 2 else f"inactive_file 1\ntotal_inactive_file {inactive}"
    (folder / "memory.stat").write_text(f"anon 1\n{cache}\nfile 2\n")


def room(root: Path, own: str, monkeypatch) -> int:
    (root / "self").write_text(own)
    monkeypatch.setattr("sb3_ppg.buffers.memory.CGROUP_ROOT", root)
    monkeypatch.setattr("sb3_ppg.buffers.memory.OWN_CGROUPS", root / "self")
    return available_memory()


def test_memory_is_that_of_the_container(tmp_path, monkeypatch):
    """It is the smallest of what the machine and each group around this process leave; caches can be taken back."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=10**9, total=10**9))
    (tmp_path / "none").mkdir()
    assert room(tmp_path / "none", "0::/\n", monkeypatch) == 10**9

    nested = tmp_path / "nested"  # the inner group has no limit, the one around it has
    cgroup(nested / "job", 5000, 3000, 1000)
    cgroup(nested / "job" / "step", "max", 2000, 0)
    assert room(nested, "0::/job/step\n", monkeypatch) == 3000
    assert total_memory() == 5000
    cgroup(nested / "job" / "step", 2500, 2000, 100)
    assert room(nested, "0::/job/step\n", monkeypatch) == 600
    assert room(nested, "0::/elsewhere/../other\n", monkeypatch) == 10**9

    container = tmp_path / "container"  # which sees its own group as the root, and another name for it
    cgroup(container, 4096, 5000, 0)
    assert room(container, "0::/docker/0123\n", monkeypatch) == 0

    assert room(tmp_path / "none", "nothing\n::\n", monkeypatch) == 10**9

    older = tmp_path / "older"  # version 1: without a limit, the number is huge
    own = "12:cpu,cpuacct:/other\n5:memory:/docker/0123\n0::/init\n"
    cgroup(older / "memory" / "docker", 2**63 - 4096, 7000, 0, version=1)
    assert room(older, own, monkeypatch) == 10**9
    cgroup(older / "memory" / "docker" / "0123", 5000, 3000, 1000, version=1)
    assert room(older, own, monkeypatch) == 3000 and total_memory() == 5000
    cgroup(older / "memory", 4096, 4000, 0, version=1)
    assert room(older, "5:hugetlb,memory:/elsewhere\n", monkeypatch) == 96

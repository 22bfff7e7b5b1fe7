"""The memory that is available, within the limits of this process's control group, and whether rollouts fit into it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from sb3_ppg.arguments import require
from sb3_ppg.buffers.rollouts import n_bytes
from sb3_ppg.distributed import n_local_processes
from sb3_ppg.errors import ArgumentError
from sb3_ppg.protocols import PhasicModel

CGROUP_ROOT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def total_memory() -> int:
    """Return the largest memory that this process may use, in bytes."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _cgroups())])


def available_memory() -> int:
    """Return the memory that is available on this machine within this process's control groups, in bytes."""
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _cgroups())]))


def _cgroups() -> Iterator[tuple[int, int]]:
    """
    Iterate over limit and usage of this process's control group and of those around it, up to the mount point, which may be
    the only one that a container sees. File caches that Linux can reclaim do not count as usage.

    Source: ``man 7 cgroups``, version 2, whose line in ``/proc/self/cgroup`` is "0::path".
    """
    own = re.search(r"^0::/(.*)$", OWN_CGROUPS.read_text() if OWN_CGROUPS.exists() else "", re.MULTILINE)
    innermost = CGROUP_ROOT / (own[1] if own else "")
    for folder in (innermost, *innermost.parents):
        with suppress(OSError, ValueError, StopIteration):  # a group without this controller, or without a limit: "max"
            limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
            statistics = (folder / "memory.stat").read_text().splitlines()
            reclaimable = next(int(line.split()[1]) for line in statistics if line.startswith("inactive_file "))
            yield limit, used - reclaimable


def check_room(model: PhasicModel, n_rollouts: int) -> None:
    """Refuse to begin if the memory, or the disk, cannot hold the observations of so many further rollouts of a phase."""
    if model.n_aux_epochs == 0:
        return
    template = model.rollout_template()
    n_rollout_bytes = n_bytes(template.kept(name for name in model.aux_keys if name in template.arrays).arrays)
    needed = n_rollouts * n_rollout_bytes * n_local_processes()
    available = model.aux_buffer.available_bytes()
    place, remedy = "memory", "keep them on a disk, aux_buffer_kwargs=dict(storage='mmap', path=folder)"
    if model.aux_buffer.storage == "mmap":
        place, remedy = f"the disk of {model.aux_buffer.path}", "use another disk, aux_buffer_kwargs=dict(path=...)"
    if needed > available:
        raise ArgumentError(
            f"The observations of a phase take {needed:,} more bytes, but only {available:,} are available in {place}: reduce "
            f"`n_policy_iterations`={model.n_policy_iterations}, `n_steps`={model.n_steps} or the number of environments "
            f"({model.n_envs}), or {remedy}"
        )


def check_room_for_replay(model: PhasicModel) -> None:
    """Refuse to begin if the memory cannot hold the observations of the replayed rollouts."""
    capacity, available = model.replay.capacity, available_memory()
    needed = (capacity - len(model.replay.rollouts)) * n_bytes(model.rollout_buffer.observations) * n_local_processes()
    shortage = f"the observations of {capacity} rollouts take {needed:,} more bytes, but only {available:,} are available"
    require(model, capacity == 1 or needed <= available, "replay_kwargs", f"{shortage} in memory; use fewer, or smaller ones")

"""The memory of the machine, within the limits of this process's control groups (containers, batch jobs)."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

CGROUP_ROOT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# Files with a control group's limit and usage, and the line of `memory.stat` with the part that Linux can reclaim
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


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

    Source: ``man 7 cgroups``. A line of ``/proc/self/cgroup`` is "number:controllers:path"; version 2 names no controllers.
    """
    for line in OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else []:
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        mounts, names = [CGROUP_ROOT, CGROUP_ROOT / "unified"], VERSION_2
        if controllers != "":
            mounts, names = [CGROUP_ROOT / "memory"] if "memory" in controllers.split(",") else [], VERSION_1
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for folder in (mount.joinpath(*parts[:depth]) for mount in mounts for depth in range(len(parts), -1, -1)):
            with suppress(OSError, ValueError, StopIteration):  # a group without this controller, or without a limit: "max"
                limit, used = (int((folder / name).read_text()) for name in names[:2])
                lines = (folder / "memory.stat").read_text().splitlines()
                reclaimable = next(int(line.split()[1]) for line in lines if line.startswith(f"{names[2]} "))
                yield limit, used - reclaimable

"""The memory that is available, within the limits of this process's control group."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from sb3_ppg.distributed import n_local_processes
from sb3_ppg.errors import ArgumentError

CGROUP_ROOT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# For each cgroup version: pattern of a group's line, root folder, files with limit and usage, entry of caches in memory.stat
VERSIONS = (
    ("0:", "", "memory.max", "memory.current", "inactive_file"),
    (r"\d+:(?:.*,)?memory(?:,.*)?", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def total_memory() -> int:
    """Return the largest memory that this process may use, in bytes."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _cgroups())])


def available_memory() -> int:
    """Return the memory that is available on this machine within this process's control groups, in bytes."""
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _cgroups())]))


def check_room(needed: int, available: int, place: str) -> None:
    """Raise an ``ArgumentError`` if this machine's processes, with ``needed`` bytes each, need more than ``available``."""
    needed *= n_local_processes()
    if needed > available:
        raise ArgumentError(f"The observations to keep take {needed:,} more bytes; only {available:,} are available {place}")


def _cgroups() -> Iterator[tuple[int, int]]:
    """
    Iterate over limit and usage of this process's control group and of those around it, up to the mount point, which may be
    the only one that a container sees. File caches that Linux can reclaim do not count as usage.

    Source: ``man 7 cgroups``, whose lines in ``/proc/self/cgroup`` are "0::path" in version 2, "5:memory:path" in version 1.
    """
    groups = OWN_CGROUPS.read_text() if OWN_CGROUPS.exists() else ""
    for line, root, *files, cache in VERSIONS:
        own = re.search(rf"^{line}:/(.*)$", groups, re.MULTILINE)
        innermost = CGROUP_ROOT / root / (own[1] if own else "")
        for folder in (innermost, *innermost.parents):
            with suppress(OSError, ValueError, StopIteration):  # a group without this controller, or without a limit: "max"
                limit, used = (int((folder / name).read_text()) for name in files)
                statistics = (folder / "memory.stat").read_text().splitlines()
                yield limit, used - next(int(line.split()[1]) for line in statistics if line.startswith(f"{cache} "))

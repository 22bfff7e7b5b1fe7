"""How much memory there is: the machine's, within the limits of this process's control groups (containers, batch jobs)."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# Where Linux mounts the control groups, and what it calls their limit, their use, and the part of it that it can take back
CGROUP_ROOT, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def total_memory() -> int:
    """
    :return: in bytes, what this process may have at most
    """
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _cgroup_limits())])


def available_memory() -> int:
    """
    :return: in bytes, what this process can take before the machine or one of its control groups has no more
    """
    limits = [limit - used for limit, used in _cgroup_limits()]
    return max(0, min([psutil.virtual_memory().available, *limits]))


def _cgroup_limits() -> Iterator[tuple[int, int]]:
    """
    :return: the limit of each group that this process is in, those around it included, and how much of it is in use, without
        the files that Linux keeps in memory as long as there is room
    """
    for folder, (limit_file, used_file, reclaimable) in _folders():
        with suppress(OSError, ValueError, StopIteration):  # a group without this controller, or without a limit: "max"
            limit = int((folder / limit_file).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            can_be_freed = next(int(line.split()[1]) for line in lines if line.startswith(f"{reclaimable} "))
            yield limit, int((folder / used_file).read_text()) - can_be_freed


def _folders() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """
    The folder of each group, from that of this process up to the mount's own, which is all that a container may see.

    Source: ``man 7 cgroups``. A line of ``/proc/self/cgroup`` is "number:controllers:path"; version 2 names no controllers.
    """
    lines = OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else []
    for line in lines:
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        mounts = {CGROUP_ROOT / "memory": VERSION_1} if "memory" in controllers.split(",") else {}
        if controllers == "":
            mounts = {CGROUP_ROOT: VERSION_2, CGROUP_ROOT / "unified": VERSION_2}
        for mount, names in mounts.items():
            for depth in range(len(parts), -1, -1):
                yield mount.joinpath(*parts[:depth]), names

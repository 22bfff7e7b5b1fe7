"""How much memory there is: the machine's, within the limits of this process's control groups (containers, batch jobs)."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

# Where Linux mounts the control groups, and what it calls their limit, their use, and the part of it that it can take back
CGROUP_ROOT = Path("/sys/fs/cgroup")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def available_memory() -> int:
    """
    :return: in bytes, what this process can take before the machine or one of its control groups has no more
    """
    limits = [limit - used for limit, used in _cgroup_limits()]
    return max(0, min([psutil.virtual_memory().available, *limits]))


def _cgroup_limits(root: Path = CGROUP_ROOT, own_groups: Path = Path("/proc/self/cgroup")) -> Iterator[tuple[int, int]]:
    """
    :return: the limit of each group that this process is in, those around it included, and how much of it is in use, without
        the files that Linux keeps in memory as long as there is room
    """
    for folder, (limit_file, used_file, reclaimable) in _folders(root, own_groups):
        with suppress(OSError, ValueError, StopIteration):  # a group without this controller, or without a limit: "max"
            limit = int((folder / limit_file).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            can_be_freed = next(int(line.split()[1]) for line in lines if line.startswith(f"{reclaimable} "))
            yield limit, int((folder / used_file).read_text()) - can_be_freed


def _folders(root: Path, own_groups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """
    The folder of each group, from that of this process up to the mount's own, which is all that a container may see.

    Source: ``man 7 cgroups``. A line of ``/proc/self/cgroup`` is "number:controllers:path"; version 2 has no controllers.
    """
    lines = own_groups.read_text().splitlines() if own_groups.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part not in ("", "..")]
        mounts = [root, root / "unified"] if controllers == "" else [root / "memory"]
        if controllers != "" and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                yield mount.joinpath(*parts[:depth]), VERSION_2 if controllers == "" else VERSION_1

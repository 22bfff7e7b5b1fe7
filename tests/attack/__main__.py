"""
``python -m tests.attack``: read all hostile files, or a part of them, and say what came of it.

The exit status is 1 if one of them led to something else than a refusal or a model that works.
"""

import argparse
import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.attack import models, states
from tests.attack.harness import Attack, Result, run_in_processes, work

# Modules with a function `attacks`
SOURCES = {"models": models, "states": states}


def order(attack: Attack) -> str:
    """For a beginning of the list to be a sample of it."""
    return hashlib.sha256(attack.name.encode("utf-8", "surrogatepass")).hexdigest()


def all_attacks(sources: list[str], per_family: int | None = None, only: str = "") -> list[Attack]:
    """
    :param sources: names of ``SOURCES``
    :param per_family: take so many of each family at most, always the same, and what was not changed. None: all
    :param only: what is in the names of those to take
    :return: in an order that mixes them
    """
    attacks = sorted((attack for source in sources for attack in SOURCES[source].attacks() if only in attack.name), key=order)
    taken: Counter[str] = Counter()
    chosen = []
    for attack in attacks:
        family = attack.name.split(":")[0]
        taken[family] += 1
        if per_family is None or taken[family] <= per_family or attack.name.endswith(models.UNCHANGED):
            chosen.append(attack)
    return chosen


def run(
    sources: list[str], per_family: int | None = None, only: str = "", part: tuple[int, int] = (0, 1), jobs: int = 1
) -> Iterator[Result]:
    """
    Read hostile files, in processes of their own.

    :param sources: names of ``SOURCES``
    :param per_family: see ``all_attacks``
    :param only: see ``all_attacks``
    :param part: which of how many parts of them
    :param jobs: how many processes at a time
    :return: what came of each, as it comes
    """
    options = [*(["--per-family", str(per_family)] if per_family else []), "--only", only, "--sources", *sources]
    command = [sys.executable, "-m", "tests.attack", *options, "--work"]
    queue: SimpleQueue[Result | BaseException | None] = SimpleQueue()

    def one_job(job: int, folder: Path) -> None:
        start, step = part[0] + job * part[1], part[1] * jobs
        try:
            for result in run_in_processes(command, start, step, folder / str(job)):
                queue.put(result)
            queue.put(None)
        except BaseException as error:
            queue.put(error)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for job in range(jobs):
            pool.submit(one_job, job, Path(folder))
        running = jobs
        while running:
            result = queue.get()
            if isinstance(result, BaseException):
                raise result
            if result is None:
                running -= 1
            else:
                yield result


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--per-family", type=int, help="at most so many of each family, by default all")
    parser.add_argument("--only", default="", help="those with this in their names")
    parser.add_argument("--part", default="1/1", help="which part: 2/10 is the second of ten")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--work", nargs=3, metavar=("START", "STEP", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        start, step, folder = args.work
        work(all_attacks(args.sources, args.per_family, args.only), int(start), int(step), Path(folder))
        return
    which, of = map(int, args.part.split("/"))
    counts: Counter[str] = Counter()
    for result in run(args.sources, args.per_family, args.only, (which - 1, of), args.jobs):
        counts["finding" if result.is_finding else result.outcome] += 1
        if result.is_finding:
            print(f"{result.name!a}\n    {result.outcome!a}", flush=True)
        if counts.total() % 1000 == 0:
            print(dict(counts), file=sys.stderr, flush=True)
    print(f"{counts.total()} hostile files: {dict(counts)}")
    sys.exit(bool(counts["finding"]))


if __name__ == "__main__":
    main()

"""The commands: see ``benchmarks.suites``."""

import argparse
import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the processes that are started

import benchmarks.suites
from benchmarks.suites.contestants import CONTESTANTS, TASKS
from benchmarks.suites.queue import RESULTS, Results, run, trainings
from benchmarks.suites.report import report
from benchmarks.suites.speed import measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=benchmarks.suites.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train what is missing")
    running.add_argument("--suite", nargs="*", default=[], choices=sorted({task.suite for task in TASKS}), help="only these")
    running.add_argument("--task", nargs="*", default=[], choices=[task.env_id for task in TASKS], help="only these")
    running.add_argument("--contestant", nargs="*", default=[], choices=list(CONTESTANTS), help="only these, in this order")
    running.add_argument("--seeds", nargs="*", default=[], type=int, help="only these")
    running.add_argument("--steps", type=int, help="per training, in place of the task's")
    running.add_argument("--jobs", default=1, type=int, help="trainings at a time")
    running.add_argument("--folder", default="logs/suites", type=Path, help="for what is needed to go on")
    running.add_argument("--list", action="store_true", help="only list what is missing")
    speed = commands.add_parser("speed", help="measure what a step costs PPG and PPO; let nothing else run beside it")
    speed.add_argument("--suite", nargs="*", default=[], choices=sorted({task.suite for task in TASKS}), help="only these")
    reporting = commands.add_parser("report", help="write tables and pictures")
    for command in (running, speed, reporting):
        command.add_argument("--results", default=RESULTS, type=Path, help="the folder of rows, tables and pictures")
    args = parser.parse_args()
    results = Results(args.results)
    if args.command == "report":
        print(report(results))
        return
    if args.command == "speed":
        results.add_speed(measured([task for task in TASKS if not args.suite or task.suite in args.suite]))
        return
    chosen = trainings(args.suite, args.task, args.contestant, args.seeds, args.steps)
    if args.list:
        for training in chosen:
            if not results.has(training):
                print(training.hash(), training.task.env_id, training.contestant, training.n_timesteps, training.seed)
        return
    run(chosen, results, args.folder, args.jobs)


if __name__ == "__main__":
    main()

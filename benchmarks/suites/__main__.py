"""
PPG, its relatives and PPO on suites of tasks: MinAtar, Procgen, MuJoCo, MiniGrid.

    python -m benchmarks.suites run [--suite minatar] [--task ...] [--contestant ...] [--seed 0 1] [--steps 1000000] [--jobs 2]
    python -m benchmarks.suites report

``run`` trains what results/suites.csv does not have, the most informative first. ``contestants.py`` has the tables to extend.
suites_speed.csv, of the leading contestants in turns on one machine, was measured by ``speed`` at commit 76f21b7.
"""

from benchmarks.suites.experiment import SUITES

if __name__ == "__main__":
    SUITES.main()

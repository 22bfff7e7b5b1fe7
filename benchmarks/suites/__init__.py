"""
PPG and its relatives beside PPO, on suites of tasks: MinAtar, Procgen, MuJoCo, MiniGrid.

    python -m benchmarks.suites run [--suite minatar] [--task ...] [--contestant ...] [--seeds 0 1] [--steps N] [--jobs 2]
    python -m benchmarks.suites speed [--suite minatar]     # let nothing else run beside it
    python -m benchmarks.suites report

``run`` trains what results/suites.csv does not have, the most informative first, one thread each; it can be killed at any time
and started again, also several times side by side. ``speed`` compares the presets' times, as trainings are of many machines.
``report`` writes results/suites.md and a picture for each suite.

``contestants.py`` says who is compared on what, ``training.py`` what a training is, ``queue.py`` which come next,
``speed.py`` what a step costs, ``report.py`` what the rows say.
"""

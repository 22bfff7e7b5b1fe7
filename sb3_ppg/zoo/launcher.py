"""``python -m sb3_ppg SCRIPT ...`` and ``sb3-ppg SCRIPT ...``: RL Zoo's scripts, with PPG."""

import importlib
import sys

# Script: module, function, our defaults for its options, one line about it
SCRIPTS = {
    "train": ("rl_zoo3.train", "train", ["--algo", "ppg"], "train an agent"),
    "enjoy": ("rl_zoo3.enjoy", "enjoy", ["--algo", "ppg", "-f", "logs"], "watch or evaluate a trained agent"),
    "report": ("sb3_ppg.zoo.report", "main", ["--algo", "ppg"], "evaluate the latest agent and draw its learning curve"),
}


def main() -> None:
    """Run the script that the command line names, with our defaults unless it says otherwise."""
    if len(sys.argv) < 2 or sys.argv[1] not in SCRIPTS:
        print(usage())
        sys.exit(0 if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help") else f"\n{sys.argv[1]} is none of them")
    script = sys.argv.pop(1)
    module, function, defaults, _ = SCRIPTS[script]
    sys.argv[1:1] = defaults  # first, because of an option given twice the last counts
    try:
        from sb3_ppg.zoo import register
    except ImportError as error:
        sys.exit(str(error))

    register()
    getattr(importlib.import_module(module), function)()


def usage() -> str:
    """The list of scripts."""
    lines = [f"  {script:10} {about}" for script, (*_, about) in SCRIPTS.items()]
    return "\n".join(["usage: sb3-ppg SCRIPT [options]     (options: sb3-ppg SCRIPT --help)", "", *lines])

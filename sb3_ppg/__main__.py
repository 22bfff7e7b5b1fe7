"""``python -m sb3_ppg``: see ``sb3_ppg.zoo.launcher``."""

from sb3_ppg.zoo.launcher import main

main()

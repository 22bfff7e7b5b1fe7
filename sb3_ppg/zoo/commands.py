"""The scripts that ``sb3-ppg`` runs, and our options for them."""

from collections.abc import Mapping
from typing import NamedTuple

ALGO = ["--algo", "ppg"]
PLAY = [*ALGO, "-f", "logs"]
PRETRAINED, CONTINUE = "--pretrained", "--continue"
RUN = {"env": ["--env"], "run": ["-f", "--folder"]}


class Script(NamedTuple):
    """
    A script, and how to run it.

    :param about: purpose
    :param module: its module
    :param function: function to call; None if the module is a program
    :param defaults: our defaults for its options
    :param names: options that name something which has to exist, by its kind: "env", "run" (a training in a log folder),
        "model" and "config" (files to read), "archive" (a file whose ending may be left out), "folder", "agents" (a
        folder of trainings that hold models), "envs" (parts of the names of trainings in the folders), or "log" (a folder to
        write to)
    :param agent: option that names an agent, for which ``--pretrained`` stands
    """

    about: str
    module: str
    function: str | None
    defaults: list[str]
    names: Mapping[str, list[str]]
    agent: str | None = None


SCRIPTS = {
    "train": Script(
        "train an agent, or search for hyperparameters (-optimize)",
        "rl_zoo3.train",
        "train",
        PLAY,
        {
            "env": ["--env"],
            "model": ["-i", "--trained-agent"],
            "config": ["-conf", "--conf-file"],
            "log": ["-f", "--log-folder"],
        },
        "-i",
    ),
    "enjoy": Script("watch a trained agent, or evaluate it", "rl_zoo3.enjoy", "enjoy", PLAY, RUN, "-f"),
    "report": Script("evaluate an agent and draw its learning curve", "sb3_ppg.zoo.report", "main", PLAY, RUN, "-f"),
    "record_video": Script("record a trained agent", "rl_zoo3.record_video", None, PLAY, RUN, "-f"),
    "record_training": Script(
        "record all checkpoints of a training, as one video", "sb3_ppg.zoo.scripts", "record_training", PLAY, RUN
    ),
    "benchmark": Script(
        "evaluate all trained agents of a folder",
        "rl_zoo3.benchmark",
        None,
        ["--log-dir", "logs"],
        {"agents": ["--log-dir"]},
    ),
    "push_to_hub": Script("share a trained agent on the Hugging Face Hub", "sb3_ppg.zoo.push", "main", PLAY, RUN),
    "load_from_hub": Script("fetch one from there", "sb3_ppg.zoo.fetch", "main", ALGO, {"env": ["--env"]}),
    "plot_train": Script(
        "learning curves of trainings",
        "sb3_ppg.zoo.scripts",
        "plot_train",
        ALGO,
        {"folder": ["-f", "--exp-folder"], "envs": ["-e", "--env"]},
    ),
    "all_plots": Script(
        "compare evaluations of several algorithms",
        "sb3_ppg.zoo.scripts",
        "all_plots",
        ["-a", "ppg"],
        {"folder": ["-f", "--exp-folders"], "envs": ["-e", "--env"]},
    ),
    "plot_from_file": Script(
        "plots from what all_plots saved", "sb3_ppg.zoo.scripts", "plot_from_file", [], {"archive": ["-i", "--input"]}
    ),
}
WITH_AGENTS = [name for name, script in SCRIPTS.items() if script.agent is not None]
# Our options: purpose, and the scripts that take them
OWN_OPTIONS = {
    PRETRAINED: ("an agent that comes with the repository", WITH_AGENTS),
    CONTINUE: ("with -i MODEL: go on exactly where the model's training stopped", ["train"]),
}

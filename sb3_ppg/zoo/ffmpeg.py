"""RL Zoo's ``record_training`` and ``push_to_hub`` (rl_zoo3 2.9.2) call a program that may be missing."""

import os
import shutil
import tempfile
from pathlib import Path

import imageio_ffmpeg
import matplotlib

from sb3_ppg.zoo.patches import Patches

FONTS = """<?xml version="1.0"?>
<fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir>{fonts}</dir>
<cachedir>{cache}</cachedir>
</fontconfig>
"""


def provide_ffmpeg(patches: Patches) -> None:
    """
    Where there is no ``ffmpeg`` on the path: the program that comes with imageio-ffmpeg, and matplotlib's font for names in
    the picture.

    :param patches: which removes both at its end
    """
    if shutil.which("ffmpeg") is not None:
        return
    folder = patches.enter_context(tempfile.TemporaryDirectory(prefix="sb3_ppg_ffmpeg_"))
    program = Path(imageio_ffmpeg.get_ffmpeg_exe())
    link = Path(folder) / f"ffmpeg{program.suffix if program.suffix == '.exe' else ''}"
    try:
        link.symlink_to(program)
    except OSError:  # Windows without the right to
        shutil.copy(program, link)
    patches.set_environment_variable("PATH", os.pathsep.join(filter(None, [folder, os.environ.get("PATH")])))
    if "FONTCONFIG_FILE" not in os.environ:
        fonts = Path(folder) / "fonts.conf"
        fonts.write_text(FONTS.format(fonts=Path(matplotlib.get_data_path()) / "fonts" / "ttf", cache=folder))
        patches.set_environment_variable("FONTCONFIG_FILE", str(fonts))

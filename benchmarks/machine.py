"""What a measurement was made on."""

import os
import platform
from pathlib import Path


def model_name() -> str:
    """Of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def processor() -> str:
    """Its name, and how many there are."""
    return f"{model_name()}, {os.cpu_count()} cores"

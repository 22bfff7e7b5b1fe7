"""What is installed: the hyperparameter files, and a package that imports without its extras."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_the_hyperparameters(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert {"sb3_ppg/hyperparams/ppg.yml", "sb3_ppg/py.typed", "sb3_ppg/zoo/launcher.py"} <= names
        assert not any(name.startswith(("tests", "benchmarks")) for name in names)
        file.extractall(tmp_path / "site")
    code = (
        "from sb3_ppg.zoo.registration import ALGOS, hyperparameter_file as f\n"
        "print(all(f(algo).is_file() for algo in ALGOS), f('ppg'))"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path / "site")
    assert found.startswith("True") and str(tmp_path / "site" / "sb3_ppg" / "hyperparams" / "ppg.yml") in found


def test_importing_needs_no_extra():
    extras = [
        "rl_zoo3",
        "envpool",
        "matplotlib",
        "pandas",
        "huggingface_hub",
        "safetensors",
        "tensorboard",
        "ale_py",
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import sb3_ppg; print(sb3_ppg.__version__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip()

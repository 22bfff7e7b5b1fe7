"""Attacks on ``zoo.json``, from which ``load_from_hub`` takes what the Zoo makes an environment with."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from huggingface_sb3 import EnvironmentName

from sb3_ppg.hub.pretrained import read_sums, write_checksums
from sb3_ppg.zoo.sharing import WRAPPERS, ZOO, _read_environment
from tests.attack.harness import Attack
from tests.attack.models import FILE_CHANGES, UNCHANGED
from tests.attack.mutations import changed_json, encoded, places

DESCRIPTION: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "env_kwargs": {"max_episode_steps": 100, "options": {"names": ["a", "b"]}},
    "config": {
        "n_timesteps": 1000.0,
        "frame_stack": 4,
        "env_wrapper": [{"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 10}}, "rl_zoo3.wrappers.FrameSkip"],
        "vec_env_wrapper": "rl_zoo3.wrappers.FrameSkip",
    },
}


def _write(content: bytes, folder: Path) -> None:
    (folder / ZOO).write_bytes(content)
    write_checksums(folder, [ZOO])


def _load(folder: Path) -> dict[str, Any]:
    return _read_environment(folder, read_sums(folder), EnvironmentName("CartPole-v1"), WRAPPERS)


def _use(description: dict[str, Any]) -> None:
    """As the Zoo reads what is made of it."""
    assert yaml.safe_load(yaml.safe_dump(description)) == description


def attacks() -> Iterator[Attack]:
    """Each part of it changed, bytes of it changed, and files that are none."""
    content = encoded(DESCRIPTION)
    yield Attack(f"zoo.json: {UNCHANGED}", partial(_write, content), _load, _use)
    for path in places(DESCRIPTION):
        for change, changed in changed_json(DESCRIPTION, path):
            yield Attack(f"zoo.json: {change}", lambda folder, changed=changed: _write(changed(), folder), _load, _use)
    generator = np.random.default_rng(0)
    for place in range(len(content)):
        bit = 1 << int(generator.integers(8))
        flipped = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        yield Attack(f"zoo.json, bytes: bit {bit} of {place}", partial(_write, flipped), _load, _use)
    for change, change_file in FILE_CHANGES.items():

        def write(folder: Path, change_file: Any = change_file) -> None:
            _write(content, folder)
            change_file(folder / ZOO)

        yield Attack(f"zoo.json, files: {change}", write, _load, _use)

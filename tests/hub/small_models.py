"""Models of a few hundred numbers, in folders, and what is done to them."""

import json
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_ppg import PPG, hub
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub import from_pretrained
from sb3_ppg.hub.pretrained import DESCRIPTION
from tests.helpers import RandomEnv, image_space
from tests.hub_server import HubServer

SMALL = dict(n_steps=8, batch_size=8, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")
BOX = spaces.Box(-2, 2, (3,), np.float32)
DICT = spaces.Dict({"zebra": BOX, "ant": image_space(3, 36, 36), "mouse": spaces.Discrete(4)})


def small_model(**arguments: Any) -> PPG:
    """A model of a few hundred numbers, after one phase."""
    arguments = {"policy_kwargs": dict(net_arch=[4]), **SMALL, **arguments}
    return PPG("MlpPolicy", RandomEnv(BOX, spaces.Discrete(2)), **arguments).learn(16)


def refused(folder: Path, complaint: str = ".") -> None:
    with pytest.raises(ModelFormatError, match=complaint):
        from_pretrained(folder, device="cpu")


def change(folder: Path, place: str, value: Any) -> None:
    """Put a value at a place of a model's description: keys with dots between them."""
    description = json.loads((folder / DESCRIPTION).read_text())
    *path, last = place.split(".")
    reduce(getitem, path, description)[last] = value
    (folder / DESCRIPTION).write_text(json.dumps(description))


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    data: Any = 0
    for _ in range(depth):
        data = [data]
    return data


class Payload:
    """Pickled, it creates a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def malicious_zip(folder: Path) -> Path:
    """An SB3 zip file whose loading creates the file "ran"; the path of that file."""
    model = small_model()
    model.innocent = Payload(folder / "ran")  # type: ignore[attr-defined]
    model.save(folder / "model.zip")
    return folder / "ran"


def zip_repository(hub_server: HubServer, tmp_path: Path) -> Path:
    """Put a model into a repository as stock tools do; return the file that its payload creates."""
    ran = malicious_zip(tmp_path)
    hub.push(small_model(), "stranger/model")
    files = {"ppg-Some-v0.zip": (tmp_path / "model.zip").read_bytes(), "config.yml": b"!!python/object/apply:os.system ['ls']"}
    names = list(hub_server.files("stranger/model"))
    hub_server.repositories["stranger/model"].commit("main", files, names)
    return ran

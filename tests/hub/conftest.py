"""A shared model in a folder."""

from pathlib import Path

import pytest

from sb3_ppg.hub import save_pretrained
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION
from tests.hub.small_models import small_model


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    save_pretrained(small_model(), folder)
    return folder


@pytest.fixture
def copied(small, tmp_path) -> Path:
    """To be changed by a test."""
    for name in (DESCRIPTION, ARRAYS):
        (tmp_path / name).write_bytes((small / name).read_bytes())
    return tmp_path

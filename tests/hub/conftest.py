"""A shared model in a folder."""

from pathlib import Path

import pytest

from sb3_ppg.hub import save_pretrained
from tests.hub.small_models import small_model, write


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    save_pretrained(small_model(), folder)
    return folder


@pytest.fixture
def copied(small, tmp_path) -> Path:
    """To be changed by a test."""
    return write({file.name: file.read_bytes() for file in small.iterdir()}, tmp_path)

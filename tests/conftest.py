"""The Hugging Face Hub of the tests is on this machine; the client reads where from the environment, when it is imported."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator

import pytest

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]
HF_HOME = tempfile.mkdtemp(prefix="hf_home_")
os.environ.update(
    HF_ENDPOINT=f"http://127.0.0.1:{PORT}",
    HF_HOME=HF_HOME,
    HF_TOKEN="hf_local",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_TELEMETRY="1",
)

from tests.hub_server import HubServer  # noqa: E402


@pytest.fixture
def hub_server() -> Iterator[HubServer]:
    """An empty Hub, for this process and its children."""
    with HubServer(PORT) as server:
        yield server


def pytest_unconfigure() -> None:
    shutil.rmtree(HF_HOME, ignore_errors=True)

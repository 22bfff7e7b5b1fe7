"""
Fixtures and settings of all tests.

The tests use a Hugging Face Hub on this machine, whose address the client reads from the environment when it is imported.
Temporary files of the tests and their child processes go to a folder of this process, which is removed at the end.
"""

import atexit
import multiprocessing
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TEMPORARY = Path(tempfile.mkdtemp(prefix="sb3_ppg_tests_"))
atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)  # after other exit handlers have removed their files
tempfile.tempdir = str(TEMPORARY)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]
HF_HOME = tempfile.mkdtemp(prefix="hf_home_")
os.environ.update(
    TMPDIR=str(TEMPORARY),
    HF_ENDPOINT=f"http://127.0.0.1:{PORT}",
    HF_HOME=HF_HOME,
    HF_TOKEN="hf_local",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    HF_HUB_DISABLE_TELEMETRY="1",
)

from tests.hub_server import HubServer  # noqa: E402

# Workers of SubprocVecEnv and other processes of multiprocessing are forks that have imported these
multiprocessing.set_forkserver_preload(["torch._dynamo", "stable_baselines3", "sb3_contrib", "sb3_ppg"])


@pytest.fixture
def hub_server(monkeypatch) -> Iterator[HubServer]:
    """Serve an empty Hub to this process and its children; the client retries without waiting."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with HubServer(PORT) as server:
        yield server


@pytest.fixture(autouse=True)
def state_of_the_process_restored() -> Iterator[None]:
    """Switch validation on again after each test: torch's compiler switches it off for the whole process. Advise again."""
    from torch.distributions import Distribution

    from sb3_ppg.errors import ADVISED

    yield
    ADVISED.clear()
    Distribution.set_default_validate_args(True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no process waits long for another at the end."""
    items.sort(key=lambda item: "slow" not in item.keywords)

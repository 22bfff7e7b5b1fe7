"""
Fixtures and settings of all tests.

The tests use a Hugging Face Hub on this machine, whose address the client reads from the environment when it is imported.
Temporary files of the tests and their child processes go to a folder of this process, which must be empty at the end.
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

LEFT_BY_OTHERS = ("pytest-of-", "SB3-", "torchinductor_", "torchelastic_", "pymp-", "sb3_ppg_tests_", ".ses")
TEMPORARY = Path(tempfile.mkdtemp(prefix="sb3_ppg_tests_"))
if "PYTEST_XDIST_WORKER" not in os.environ:
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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if tests leave files behind, except those of SB3's logger and those that other packages remove later."""
    shutil.rmtree(HF_HOME, ignore_errors=True)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folders = [TEMPORARY, *TEMPORARY.glob("sb3_ppg_tests_*")]
    left = [path.name for folder in folders for path in folder.iterdir() if not path.name.startswith(LEFT_BY_OTHERS)]
    if left:
        print(f"\nThe tests have left in the temporary folder: {', '.join(sorted(left))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

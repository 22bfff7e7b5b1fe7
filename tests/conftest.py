"""
The Hugging Face Hub of the tests is on this machine; the client reads where from the environment, when it is imported.

Temporary files of the tests, and of what they start, are in a folder of this process, at whose end it has to be empty.
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
    atexit.register(shutil.rmtree, TEMPORARY, ignore_errors=True)  # after others have removed what they have there
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

# Workers of SubprocVecEnv, and what tests start with multiprocessing, are forks that have these
multiprocessing.set_forkserver_preload(["torch._dynamo", "stable_baselines3", "sb3_contrib", "sb3_ppg"])


@pytest.fixture
def hub_server(monkeypatch) -> Iterator[HubServer]:
    """An empty Hub, for this process and its children; the client does not wait before it tries again."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with HubServer(PORT) as server:
        yield server


@pytest.fixture(autouse=True)
def validated_distributions() -> Iterator[None]:
    """Torch's compiler switches validation off for good, in the process that uses it first: other tests do not see that."""
    from torch.distributions import Distribution

    yield
    Distribution.set_default_validate_args(True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: at the end no process waits long for another one."""
    items.sort(key=lambda item: "slow" not in item.keywords)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests leave nothing behind but what others remove later, or SB3's logger leaves. (Workers' folders are in this one.)"""
    shutil.rmtree(HF_HOME, ignore_errors=True)
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    folders = [TEMPORARY, *TEMPORARY.glob("sb3_ppg_tests_*")]
    left = [path.name for folder in folders for path in folder.iterdir() if not path.name.startswith(LEFT_BY_OTHERS)]
    if left:
        print(f"\nThe tests have left in the temporary folder: {', '.join(sorted(left))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

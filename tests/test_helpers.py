"""Child processes of tests: a fork does what a process of its own does."""

import pytest

from tests.helpers import run_program

pytestmark = pytest.mark.slow

SHOW = """
import multiprocessing, os, sys
print(sys.argv, __name__, sys.modules["__main__"].__spec__, sys.path[0])
print(os.getcwd(), os.environ.get("SHOWN"), sys.stdin.read())
print(multiprocessing.get_start_method(), multiprocessing.current_process().name, multiprocessing.parent_process())
print("an error", file=sys.stderr)
"""


def both(*command: str, **kwargs) -> list[tuple]:
    done = [run_program(*command, anew=anew, **kwargs) for anew in (True, False)]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit('no')",
        "import sys; sys.exit(3)",
        "import os; os._exit(4)",
        "import atexit; atexit.register(print, 1)",
    ],
)
def test_exit_statuses(code, tmp_path):
    alone, forked = both("-c", code, cwd=tmp_path)
    assert forked == alone


def test_an_error_is_shown(tmp_path):
    (status, _, error), (forked_status, _, forked_error) = both("-c", "1 / 0", cwd=tmp_path)
    assert forked_status == status == 1
    assert forked_error.splitlines()[-1] == error.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_what_a_program_sees_of_its_process(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOWN", "yes")
    alone, forked = both("-c", SHOW, "a", "b c", cwd=tmp_path)
    assert forked == alone and "yes" in forked[1] and "an error" in forked[2]
    (tmp_path / "shown.py").write_text(SHOW.replace('sys.modules["__main__"].__spec__', "__spec__.name"))
    alone, forked = both("-m", "shown", "--option", cwd=tmp_path)
    assert forked == alone and "'--option'" in forked[1]


def test_forks_draw_other_numbers(tmp_path):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    one, other = (run_program("-c", code, cwd=tmp_path).stdout.split() for _ in range(2))
    assert one[0] != other[0] and one[1] != other[1]


def test_what_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.helpers.TIME_LIMIT", 1)
    with pytest.raises(AssertionError, match="more than 1 s"):
        run_program("-c", "import time; time.sleep(60)", cwd=tmp_path)
    monkeypatch.undo()
    assert run_program("-c", "print(1)", cwd=tmp_path).stdout == "1\n"


def test_programs_that_a_program_calls(tmp_path):
    called = "import sys; print('called', sys.argv); sys.exit(5)"
    (tmp_path / "called.py").write_text(called)
    calls = [
        "import subprocess, sys; print('before', flush=True)",
        "print(subprocess.call([sys.executable, '-m', 'called', '--option']), flush=True)",
        "print(subprocess.call([sys.executable, '-c', 'print(1)']))",
    ]
    alone, forked = both("-c", "\n".join(calls), cwd=tmp_path)
    assert forked == alone and forked[1].splitlines()[0] == "before" and "--option" in forked[1]

"""Several processes meet, agree, end and go on."""

import importlib
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
import torch.distributed as dist
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from sb3_ppg import PPG, ArgumentError, PhasicCheckpointCallback, aux_buffer_path, latest_checkpoint, process_group
from sb3_ppg.distributed import broadcast, choose_backend, gather, n_processes, rank
from sb3_ppg.errors import NonFiniteError, ProcessGroupError, WorkerError
from tests.distributed.test_processes import N_ENVS, N_STEPS, PHASE, make, random_env, shared_state
from tests.helpers import free_port, in_processes, run_in_a_new_process
from tests.saving.small_models import numbers_of, resumed
from tests.zoo.programs import end_of, program

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ROLLOUT = N_STEPS * N_ENVS  # steps of one process

# ---- ends ----


def act(action: str, model) -> bool:
    """Do something that ends a run; return whether it goes on."""
    match action:
        case "error":
            raise KeyError("boom")
        case "bad environment":
            model.env.envs[1].unwrapped.state = np.full(4, np.nan)
        case "bad rollout":
            model.rollout_buffer.returns[3, 1] = np.nan
        case "dead worker" | "signal to all":
            os.kill(model.env.processes[0].pid, signal.SIGKILL)
    if "signal" in action:
        os.kill(os.getpid(), signal.SIGTERM)
    return action != "stop"


class InProcessOne(BaseCallback):
    """Process 1 does something in its fifth step, or at the end of its second rollout."""

    def __init__(self, action: str, at_the_end: bool):
        super().__init__()
        self.action, self.at_the_end = action, at_the_end

    def _on_step(self) -> bool:
        return rank() != 1 or self.at_the_end or self.n_calls != 5 or act(self.action, self.model)

    def _on_rollout_end(self) -> None:
        if rank() == 1 and self.at_the_end and self.n_calls == 2 * N_STEPS:
            act(self.action, self.model)


WORKERS = ("dead worker", "signal to all")
LOST = "ProcessGroupError: another process does not answer any more"
# What process 1 does, whether at the end of a rollout; the error in it, in the other one
ENDS = [
    ("stop", False, "", ""),
    ("signal", False, "SystemExit: 143", "SystemExit: 143"),
    ("signal to all", False, "SystemExit: 143", "SystemExit: 143"),  # also to the workers of the environments
    # Errors end the group
    ("error", False, "KeyError: 'boom'", LOST),
    ("error", True, "KeyError: 'boom'", LOST),
    ("bad environment", False, "NonFiniteEnvironmentError: The reward|observation", LOST),
    ("bad rollout", True, "NonFiniteLossError: .*policy phase", "NonFiniteLossError: .*policy phase"),
    ("dead worker", False, "WorkerError: A worker process of SubprocVecEnv died", LOST),
]


def end_in_each_way() -> list[tuple[float, int, str]]:
    """Return for each of ``ENDS`` the seconds that the run took, its steps, the error."""
    found, ports = [], broadcast([free_port() for _ in ENDS])
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(rank())  # agents of several nodes count their own restarts
    for number, (action, at_the_end, *_) in enumerate(ENDS):
        os.environ["MASTER_PORT"] = str(ports[number])
        with process_group():  # a new one after an error
            env = make_vec_env("CartPole-v1", N_ENVS, vec_env_cls=SubprocVecEnv if action in WORKERS else None)
            model, message, start = make(env=env), "", time.perf_counter()
            try:
                callbacks = [InProcessOne(action, at_the_end), PhasicCheckpointCallback(1000, f"checkpoints_{number}")]
                model.learn(10_000, callback=callbacks)
            except (KeyError, NonFiniteError, WorkerError, ProcessGroupError, SystemExit) as error:
                message = f"{type(error).__name__}: {error}"
            found.append((time.perf_counter() - start, model.num_timesteps, message))
            if action == "stop":
                model.learn(2 * PHASE)
                weights = th.nn.utils.parameters_to_vector(model.policy.parameters()).sum().item()
                assert len(set(gather(weights))) == 1 and np.isfinite(weights) and model.num_timesteps == 2 * PHASE
    return found


def test_what_ends_one_process_ends_all(found, folder):
    first, second = (process["ends"] for process in found)
    for number, (action, _, error, other_error) in enumerate(ENDS):
        case, others_case = second[number], first[number]
        assert max(case[0], others_case[0]) < 5, action
        assert re.search(error, case[2]) and re.search(other_error, others_case[2]), (action, case, others_case)
        saved = {path.name for path in (folder / f"checkpoints_{number}").glob("*")}
        if action in ("stop", "signal", "signal to all"):
            assert case[1] == others_case[1]  # after the same rollout
            name = f"ppg_model_{case[1] // (2 * ROLLOUT) * 2 * ROLLOUT}_steps"
            assert saved == {f"{name}.zip", *(f"{name}.aux_buffer.{process}_of_2.npz" for process in range(2))}, action
        else:
            assert not saved


SCRIPT = """
import os, time
from pathlib import Path
from stable_baselines3.common.callbacks import ConvertCallback
from sb3_ppg import PPG, PhasicCheckpointCallback, process_group

def fail(_locals, _globals):
    if os.environ["RANK"] == "1" and model.num_timesteps > 2000:
        Path("failed").write_text(str(time.time()))
        raise KeyError("boom")
    return True

with process_group():
    model = PPG("MlpPolicy", "CartPole-v1", n_steps=128, n_policy_iterations=2, device="cpu", compile_updates=False)
    model.learn(10**9, callback=[ConvertCallback(fail), PhasicCheckpointCallback(2, "checkpoints", keep=1)])
"""


def test_torchrun_ends_all_and_reports_the_process_that_failed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, output = end_of(program([*torchrun, "script.py"], tmp_path))
    assert code == 1 and time.time() - float((tmp_path / "failed").read_text()) < 30, output  # not after the group's timeout
    assert "[rank1]: KeyError: 'boom'" in output and "[rank0]: Traceback" not in output
    _, cause = output.split("Root Cause")
    assert "rank      : 1" in cause and "KeyError: 'boom'" in cause and "in fail" in cause
    assert latest_checkpoint(tmp_path / "checkpoints").name == "ppg_model_1536_steps.zip"


# ---- going on ----


def train_and_go_on() -> None:
    """Go on from the middle of a phase: the state is as if nothing had happened."""
    schedule = dict(learning_rate=lambda remaining: 1e-3 * remaining, n_policy_iterations=3, stats_window_size=10)
    model = make(env=VecNormalize(random_env()), **schedule)
    rollout = ROLLOUT * n_processes()
    within = PhasicCheckpointCallback(3, "within", keep=None)
    model.learn(4 * rollout, callback=[within, PhasicCheckpointCallback(2, "checkpoints", keep=1)])
    earlier = PPG.load(f"within/ppg_model_{3 * rollout}_steps.zip", env=VecNormalize(random_env()))
    earlier.learn(rollout, reset_num_timesteps=False)
    assert earlier.ep_info_buffer.maxlen == len(earlier.ep_info_buffer) == 10
    other = resumed("checkpoints", VecNormalize(random_env()))
    other.env.seed(7 + rank() * N_ENVS)
    other.learn(3 * rollout, reset_num_timesteps=False)

    state = (th.get_rng_state(), np.random.get_state())
    model.load_aux_buffer(aux_buffer_path(latest_checkpoint("checkpoints")))  # the generators as they were
    model.env.seed(7 + rank() * N_ENVS)
    model._last_obs = None
    model.learn(3 * rollout, reset_num_timesteps=False)
    assert shared_state(model) == shared_state(other) and len(shared_state(model)) > 20
    assert th.equal(state[0], th.get_rng_state()) and np.array_equal(state[1][1], np.random.get_state()[1])
    assert model.num_timesteps == 7 * rollout == other.num_timesteps


def go_on_with_another_number(folder: Path) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = resumed(folder, VecNormalize(random_env()))
    before, statistics = model.num_timesteps, [array.copy() for array in numbers_of(model.env)]
    model.learn(3 * ROLLOUT * n_processes(), reset_num_timesteps=False)
    taken = model.num_timesteps - before
    return dict(
        warnings=[str(warning.message) for warning in caught],
        before=before,
        taken=taken,
        n_seen=statistics[2],
        first_statistics=[array.tobytes() for array in statistics],
        rate=model.policy.optimizer.param_groups[0]["lr"],
        **shared_state(model),
    )


def test_a_stopped_run_goes_on_exactly_and_with_another_number_of_processes_in_a_new_phase(found, folder, tmp_path):
    names = {path.name for path in (folder / "checkpoints").iterdir()}
    wanted = (".zip", ".aux_buffer.0_of_2.npz", ".aux_buffer.1_of_2.npz")
    assert names == {f"ppg_model_{4 * ROLLOUT * 2}_steps{ending}" for ending in wanted}

    three = in_processes(go_on_with_another_number, tmp_path, folder / "checkpoints", size=3)
    alone = go_on_with_another_number(folder / "checkpoints")
    for process in (*three, alone):
        assert any("from another number of processes: the phase starts over" in text for text in process["warnings"])
        assert process["before"] == 4 * ROLLOUT * 2 and process["n_seen"] > ROLLOUT * 8 / 2
    assert [process["taken"] for process in three] == [3 * ROLLOUT * 3] * 3 and alone["taken"] == 3 * ROLLOUT
    for process in three[1:]:
        assert [name for name in process if process[name] != three[0][name]] == []


# ---- settings ----


def differ_at_the_start() -> list[str]:
    """Return the messages of processes that cannot train together."""
    messages = []
    for changes in (
        dict(gamma=0.9 + rank() / 100),
        dict(learning_rate=lambda remaining: (1 + rank()) * 1e-3 * remaining),
        dict(policy_kwargs=dict(net_arch=[8 + rank()])),
        dict(env="Acrobot-v1" if rank() else "CartPole-v1"),
        dict(env=make_vec_env("CartPole-v1", 1 + rank()), aux_batch_size=N_STEPS),
        dict(seed=rank()),
        dict(env=VecNormalize(random_env(), norm_obs=bool(rank()))),
        dict(save_freq=1 + rank()),
        dict(num_timesteps=rank()),
    ):
        save_freq, num_timesteps = changes.pop("save_freq", 1), changes.pop("num_timesteps", 0)
        try:
            model = make(**changes)
            model.num_timesteps = num_timesteps
            model.learn(10_000, callback=PhasicCheckpointCallback(save_freq, "never"), reset_num_timesteps=False)
        except ArgumentError as error:
            messages.append(str(error))
    return messages


def test_processes_that_do_not_fit_say_so_in_all(found):
    first, second = (process["differences"] for process in found)
    names = ["gamma", "learning_rate", "policy_kwargs", "env", "n_envs", "seed", "VecNormalize"]
    assert [message.split("`")[1] for message in first] == [*names, "PhasicCheckpointCallback", "num_timesteps"]
    assert first == second and "`n_envs` differs between the processes, 1, 2: use one value" in first


# ---- these in two processes, which start once ----


def do_all() -> dict[str, Any]:
    train_and_go_on()
    return {"differences": differ_at_the_start(), "ends": end_in_each_way()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(folder) -> list[dict[str, Any]]:
    return in_processes(do_all, folder)


# ---- meeting ----


@pytest.fixture
def one_of_two(monkeypatch) -> None:
    """Let this process be one of two, of which the other one does not start."""
    variables = dict(RANK=0, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), SB3_PPG_START_TIMEOUT=1)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_a_process_without_the_others_says_so_when_its_time_is_over(one_of_two):
    begin = time.perf_counter()
    with pytest.raises(ProcessGroupError, match="process 0 of 2 has not met the others within 0:00:01"), process_group():
        pass
    assert time.perf_counter() - begin < 10


def test_processes_that_cannot_know_where_to_meet_do_not_train_alone(one_of_two, monkeypatch):
    monkeypatch.delenv("MASTER_ADDR")
    with pytest.raises(ProcessGroupError, match="MASTER_ADDR"), process_group():
        pass
    monkeypatch.setenv("WORLD_SIZE", "1")
    with process_group():
        assert not dist.is_initialized() and n_processes() == 1 and rank() == 0


def test_processes_communicate_by_nccl_if_each_has_a_gpu_of_its_own():
    """Each may see one GPU only, which has the number 0 everywhere."""
    for gpus in (["", ""], ["node 1", "node 1"], ["node 1", ""]):
        assert choose_backend(gpus) == "gloo"
    assert choose_backend(["node 1", "other 1"]) == "cpu:gloo,cuda:nccl"


def train_without_process_groups() -> int:
    """Import and train where torch was built without process groups."""
    dist.is_available = lambda: False
    for name in ("Store", "is_initialized", "PrefixStore", "TCPStore"):
        delattr(dist, name)
    for name in [name for name in sys.modules if name.split(".")[0] == "sb3_ppg"]:
        del sys.modules[name]
    algorithm = importlib.import_module("sb3_ppg").PPG
    model = algorithm("MlpPolicy", "CartPole-v1", n_steps=32, n_policy_iterations=1, device="cpu", compile_updates=False)
    return model.learn(64).n_aux_phases


def test_torch_without_process_groups():
    assert run_in_a_new_process(train_without_process_groups) == 2


def test_a_process_that_trains_alone_is_warned(one_of_two):
    with pytest.warns(UserWarning, match=r"one of 2 processes, but it trains alone: put `with sb3_ppg.process_group\(\):`"):
        make().learn(PHASE)

"""Agreement between processes: an error in one is an error in all, settings are equal, random generators are not."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from os.path import commonprefix
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import set_random_seed

from sb3_ppg.distributed.collectives import gather, has_group, is_shared, mark_shared, n_processes, rank
from sb3_ppg.errors import ArgumentError, ProcessGroupError
from sb3_ppg.protocols import PhasicModel


@contextmanager
def agreed() -> Iterator[None]:
    """
    Run a block in all processes, which must not wait for each other within it. An error in one ends the block in all.

    :raises ProcessGroupError: in the processes that had no error, with the message of the first one that had
    """
    try:
        yield
    except Exception as error:
        if not is_shared(error):  # else a block within this one has told the others
            gather(f"{type(error).__name__}: {error}")
            mark_shared(error)
        raise
    for number, message in enumerate(gather(None)):
        if message is not None:
            raise mark_shared(ProcessGroupError(f"process {number} of {n_processes()}: {message}"))


# ---- weights and settings ----


def check_weights(model: PhasicModel) -> None:
    """
    Compare the weights of all processes, which are equal but for rounding on different processors.

    :raises ProcessGroupError: in all processes, if the weights differ
    """
    if not has_group():
        return
    named = [*model.policy.named_parameters("policy"), *model.objective.named_parameters("objective")]
    norms = np.array(gather(th.stack([parameter.detach().norm() for _, parameter in named]).tolist()))
    differs = ~np.isclose(norms, norms[0], rtol=1e-3).all(axis=0)
    if differing := [name for (name, _), is_other in zip(named, differs, strict=True) if is_other]:
        raise mark_shared(
            ProcessGroupError(
                f"the weights of the processes have become different: {', '.join(differing)}. Does something else than the "
                "gradient change them, in one process only?"
            )
        )


def require_equal(settings: Mapping[str, Any]) -> None:
    """
    Compare settings between the processes, by the same names in each of them.

    :raises ArgumentError: in every process, if something differs
    """
    gathered = gather({name: _describe(value) for name, value in settings.items()})
    for name in gathered[0]:
        values = [one.get(name, "nothing") for one in gathered]
        if len(set(values)) > 1:
            # Long ones are shown from shortly before their first difference
            start = max(0, len(commonprefix(values)) - 40)  # noqa: RUF071 (they are compared by characters)
            shown = ", ".join(f"{'...' * (start > 0)}{value[start : start + 200]}" for value in values)
            raise mark_shared(ArgumentError(f"`{name}` differs between the processes, {shown}: use one value"))


def _describe(value: Any) -> str:
    """Return a text that is the same for equal values in different processes: schedules by their values, no addresses."""
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_describe(one)}' for key, one in sorted(value.items(), key=str))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    if callable(value):
        try:
            return f"a schedule from {value(1.0)} by {value(0.5)} to {value(0.0)}"
        except Exception:
            return getattr(value, "__qualname__", type(value).__qualname__)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def separate_generators(device: th.device) -> None:
    """Seed each process differently where two would otherwise draw the same actions, which are drawn on this device."""
    state = th.cuda.get_rng_state(device) if device.type == "cuda" else th.get_rng_state()
    states = gather(sha256(state.numpy().tobytes()).digest())
    if len(set(states)) < len(states):
        set_random_seed((int.from_bytes(states[0][:4], "little") + rank()) % 2**32)

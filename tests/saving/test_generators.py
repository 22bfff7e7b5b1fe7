"""The global random generators after a block that draws from them."""

import random

import numpy as np
import pytest
import torch as th

from sb3_ppg.saving.generators import generators_kept
from tests.hub.watch import generator_states


def test_generators_are_kept_when_the_block_fails():
    before = generator_states()
    with pytest.raises(KeyError), generators_kept():
        th.manual_seed(np.random.randint(5) + random.randrange(5))
        raise KeyError
    assert generator_states() == before


def test_gpus_draw_as_if_nothing_had_been_read(monkeypatch):
    """Before they are in use, their seed is the last one that anybody has asked for."""
    asked = []
    monkeypatch.setattr(th.cuda, "manual_seed_all", asked.append)
    th.manual_seed(5)
    with generators_kept():
        th.manual_seed(3)
    assert asked[-1] == 5

"""Memory does not grow with training time."""

import pytest

from benchmarks.soak import CASES, in_a_new_process, resident_memory

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", CASES)
def test_resident_memory_is_flat_from_the_second_phase_on(case):
    """Within 5 % up to the eighth. (benchmarks/soak.py goes on much longer.)"""
    memory = in_a_new_process(resident_memory, case, 8)
    assert len(memory) == 8
    assert memory[-1] <= 1.05 * memory[1], memory

"""A sample of the hostile files that ``make attack`` reads."""

from collections import Counter

import pytest

from tests.attack.__main__ import SOURCES, run

PER_FAMILY = {"models": 12, "states": 12}


@pytest.mark.parametrize("source", SOURCES)
def test_a_sample_of_hostile_files(source):
    """Each is refused, or read and works; nothing else happens."""
    results = list(run([source], PER_FAMILY.get(source, 100)))
    assert [result for result in results if result.is_finding] == []
    outcomes = Counter(result.outcome for result in results)
    assert outcomes["refused"] > 50 and outcomes["loaded"] > 5, outcomes

"""Equal parts of rollouts, for memory that has to fit."""

import time

from sb3_ppg.buffers.sequences import longest_equal_part


def test_longest_equal_part_of_large_numbers():
    start = time.process_time()
    assert longest_equal_part(10**12, 10**12) == 10**12 and longest_equal_part(2 * 999_983, 10**6) == 999_983
    assert longest_equal_part(10**10 + 19, 10**5) == 1 and longest_equal_part(12, 5) == 4 and longest_equal_part(7, 7) == 7
    assert time.process_time() - start < 5


def test_longest_equal_part_is_the_largest_divisor_within_the_limit():
    for whole in range(1, 60):
        for limit in range(1, 70):
            expected = max(part for part in range(1, min(whole, limit) + 1) if whole % part == 0)
            assert longest_equal_part(whole, limit) == expected

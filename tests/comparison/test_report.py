"""The verdict, the page and the estimates of a comparison."""

import numpy as np
import pandas as pd
import pytest

from sb3_ppg.comparison import scores
from sb3_ppg.comparison.report import Comparison
from sb3_ppg.comparison.scores import Estimate, improvements, interquartile_means, is_told_apart, seeds_needed

STEPS = np.array([100, 200, 300, 400])


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch):
    monkeypatch.setattr(scores, "BOOTSTRAPS", 200)


def comparison(**ends: list[float]) -> Comparison:
    """Return runs that rise from 0 to these returns, and stay there from half of the steps on; B takes twice A's time."""
    curves = [
        pd.DataFrame({"contestant": name, "seed": seed, "steps": STEPS, "return": end * np.minimum(STEPS / 200, 1)})
        for name, values in ends.items()
        for seed, end in enumerate(values)
    ]
    rows = [
        {"contestant": name, "seed": seed, "mean": end + 1, "machine": "a machine"}
        for name, values in ends.items()
        for seed, end in enumerate(values)
    ]
    speed = pd.DataFrame({"compiling": [0.0, 0.1], "seconds": [1000.0, 2000.0]}, index=["A", "B"])
    return Comparison("Walk", pd.DataFrame(rows), pd.concat(curves), speed, {"A": {"n": 1}, "B": {"n": 2}})


def test_a_lead_that_the_intervals_carry_is_told():
    verdict = comparison(A=[10, 11, 12, 13, 14], B=[1, 2, 3, 4, 5]).verdict()
    assert verdict == (
        "With 5 seeds, A is ahead of B in steps (P 1.00, 1.00 to 1.00); A is ahead of B in seconds (P 1.00, 1.00 to 1.00)."
    )
    assert "A is behind B in steps" in comparison(A=[1, 2, 3, 4, 5], B=[10, 11, 12, 13, 14]).verdict()


def test_a_lead_that_may_be_chance_is_not_told():
    """A is better in 18 of 25 pairs."""
    verdict = comparison(A=[1, 4, 6, 8, 10], B=[2, 3, 5, 0, 7]).verdict()
    assert verdict.count("A and B cannot be told apart in steps (P 0.72") == 1
    assert "about 28 seeds of each would be needed, if this is the true P" in verdict
    assert "ahead" not in verdict and "behind" not in verdict


@pytest.mark.parametrize("n_seeds", [1, 3])
def test_few_seeds_claim_nothing(n_seeds):
    few = comparison(A=[10.0] * n_seeds, B=[1.0] * n_seeds)
    assert "nothing is claimed: the mean returns are A 10.0, B 1.0 after the same steps" in few.verdict()
    page = few.page()
    assert ", mean |" in page and "interquartile" not in page and "ahead" not in page


def test_equals_are_told_apart_in_fewer_than_five_of_a_hundred_comparisons():
    """The interval alone would do so in eight or nine."""
    draws = np.random.default_rng(0).standard_normal((300, 2, 5, 1))
    claims = [is_told_apart(improvements({"A": a}, b)["A"], a[:, 0], b[:, 0]) for a, b in draws]
    assert 0 < np.mean(claims) < 0.05


def test_seconds_are_those_of_the_measured_speed():
    """B's 400 steps take 0.1 s at the beginning and 0.8 s; A's have taken 0.4 s, when B is at 150 steps."""
    found = comparison(A=[10.0] * 4, B=[8.0] * 4)
    assert found.end("steps") == 400 and found.end("seconds") == pytest.approx(0.4)
    np.testing.assert_allclose(found.returns("seconds")["B"], 6.0)
    np.testing.assert_allclose(found.returns("steps")["B"], 8.0)
    assert found.at_target("B", "steps", 8.0) == "200 (4 of 4 seeds)"
    assert found.at_target("B", "seconds", 8.0) == "0.5 (4 of 4 seeds)"
    assert found.at_target("B", "steps", 9.0) == "not reached (0 of 4 seeds)"


def test_the_page_has_settings_machine_and_target():
    page = comparison(A=[10.0] * 4, B=[8.0] * 4).page()
    assert page.startswith("# A or B in Walk?\n") and "a machine" in page and "B:\n  n: 2" in page and "steps to 8.0" in page


def test_the_interquartile_mean_is_that_of_the_middle_half():
    values = {"one": np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 70.0]])}
    estimate = interquartile_means(values)["one"]
    assert estimate.value == 3.5 and estimate.low < 3.5 < estimate.high
    state = np.random.get_state()[1].copy()
    assert estimate == interquartile_means(values)["one"]
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # a guest


def test_the_number_of_seeds_is_noethers():
    """(1.96 + 0.84)^2 / (6 (P - 1/2)^2)"""
    assert seeds_needed(0.7) == 33 and seeds_needed(0.9) == 9 and seeds_needed(0.5) == np.inf
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.50 (0.25 to 0.75)" and str(Estimate(0.5)) == "0.50"

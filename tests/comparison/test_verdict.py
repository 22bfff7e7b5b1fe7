"""The verdict of a comparison, and how often it is wrong."""

import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import PermutationMethod, mannwhitneyu

from sb3_ppg.comparison import scores
from sb3_ppg.comparison.report import Comparison
from sb3_ppg.comparison.scores import corrected_p_values, enough_seeds, error_of, interquartile_means, rank_test, seeds_needed

STEPS = np.arange(11) * 100
SECONDS = {"A": STEPS / 1000, "B": STEPS / 500}


@pytest.fixture(autouse=True)
def few_bootstraps(monkeypatch):
    monkeypatch.setattr(scores, "BOOTSTRAPS", 200)


def comparison(look: int = 1, **ends: list[float]) -> Comparison:
    """Return runs that rise from 0 to these returns, and stay there from half of the steps on; B takes twice A's time."""
    points = [
        pd.DataFrame(
            {"steps": STEPS, "seconds": SECONDS.get(name, SECONDS["A"]), "return": end * np.minimum(STEPS / 500, 1)}
        ).assign(contestant=name, seed=seed, compile_seconds=0.25, training_return=end - 1)
        for name, values in ends.items()
        for seed, end in enumerate(values)
    ]
    return Comparison("Walk", pd.concat(points), {name: {"n": n} for n, name in enumerate(ends)}, look, machine="a machine")


def test_a_lead_that_the_runs_can_tell_is_told():
    head, steps, seconds = comparison(A=[10, 11, 12, 13, 14], B=[1, 2, 3, 4, 5]).verdict()
    assert head == ["A against", "after", "A", "the other", "P", "p", "verdict"]
    assert steps == ["B", "1,000 steps", "12.0", "3.0", "1.00 (1.00 to 1.00)", "0.016", "ahead"]  # 2 / 252, twice
    assert seconds == ["B", "1.0 seconds", "12.0", "2.7", "1.00 (1.00 to 1.00)", "0.016", "ahead"]
    assert comparison(A=[1, 2, 3, 4, 5], B=[10, 11, 12, 13, 14]).verdict()[1][-1] == "behind"


def test_a_lead_that_may_be_chance_is_not_told():
    """A is better in 18 of 25 pairs."""
    _, steps, seconds = comparison(A=[1, 4, 6, 8, 10], B=[2, 3, 5, 0, 7]).verdict()
    assert steps[4].startswith("0.72 (0.") and steps[6].startswith("not apart: ") and "to more than 100 seeds" in steps[6]
    assert seconds[6].startswith("not apart: ")
    # Asked at half of the error of the first verdict, which a second one has
    error, ends = error_of(2) / 2, [float(end) for end in re.findall(r"[\d.]+", steps[4])[1:]]
    assert f"{min(seeds_needed(end, error) for end in ends):.0f} to" in steps[6]


def test_later_verdicts_and_more_contestants_ask_for_more():
    ends = dict(A=[10, 11, 12, 13, 14], B=[1, 2, 3, 4, 5])
    later = comparison(look=2, **ends)
    assert (
        later.verdict()[1][-1].startswith("not apart") and "verdict 2" in later.rule() and "--seeds 6 would do" in later.rule()
    )
    many = comparison(**ends, **{name: [20, 21, 22, 23, 24] for name in "CDEF"})
    assert len(many.verdict()) == 11 and not {"ahead", "behind"} & {row[-1] for row in many.verdict()}
    assert "is 0.008, and 10 comparisons ask for 0.0025; --seeds 6 would do" in many.rule()
    six = comparison(**{name: [number + 10 * ord(name) for number in range(6)] for name in "ABCDEF"})
    assert {row[-1] for row in six.verdict() if "steps" in row[1]} == {"behind"} and "would do" not in six.rule()


def test_a_verdict_about_two_does_not_depend_on_a_third():
    """A third contestant whose runs end after half of the seconds."""
    ends = dict(A=[10, 11, 12, 13, 14], B=[1, 2, 3, 4, 5])
    alone = comparison(**ends)
    both = comparison(**ends, C=[0.0] * 5)
    both.points.loc[both.points["contestant"] == "C", "seconds"] /= 2
    assert [row[:5] for row in both.verdict() if row[0] == "B"] == [row[:5] for row in alone.verdict()[1:]]
    assert ["C", "0.5 seconds"] in [row[:2] for row in both.verdict()]


def test_with_one_seed_nothing_is_claimed():
    single = comparison(A=[10.0], B=[1.0])
    assert [row[-1] for row in single.verdict()[1:]] == ["not apart", "not apart"]
    page = single.page(single.verdict())
    assert page.startswith("# A or B in Walk?\n") and "a machine" in page and "B:\n  n: 1" in page


def test_returns_are_means_of_the_last_three_points_after_equal_steps_or_seconds():
    """When A's runs end after 1 s, B's are at half of their steps."""
    found = comparison(A=[10.0] * 5, B=[8.0] * 5)
    np.testing.assert_allclose(found.returns("steps")["B"], 8.0)
    np.testing.assert_allclose(found.returns("seconds")["B"], 8 * (0.8 + 0.9 + 1) / 3)
    assert found.curves("seconds")["B"].index[-1] == 1 and found.curves("steps")["B"].index[-1] == 1000
    no_late_episodes = found._replace(points=found.points.assign(training_return=[1.0] * 10 + [np.nan] * 100))
    assert no_late_episodes.runs()["training_return"].isna().all()
    rows = found.runs()
    assert list(rows["return_at_end"]) == [10.0] * 5 + [8.0] * 5 and rows["return_of_curve"].iloc[0] == pytest.approx(8.0)
    assert "| B | 8.0 (8.0 to 8.0) | 6.4 | 7.2 (7.2 to 7.2) | 4.4 | 7.0 | 2 | 0 | 500 |" in found.page(found.verdict())


def test_the_rank_test_is_exact_with_equal_returns_too():
    generator = np.random.default_rng(0)
    for n in (3, 5, 6):
        own, other = generator.integers(0, 4, n), generator.integers(1, 5, n)
        method = PermutationMethod(n_resamples=10**6)
        assert rank_test(own, other) == pytest.approx(mannwhitneyu(own, other, method=method).pvalue)
        own, other = generator.normal(size=n), generator.normal(1, size=n)
        assert rank_test(own, other) == pytest.approx(mannwhitneyu(own, other, method="exact").pvalue)
    assert rank_test(np.ones(5), np.ones(5)) == 1
    assert rank_test(np.array([2, 2, 2, 3]), np.array([1, 3, 2, 0])) == pytest.approx(36 / 70)


def test_holms_correction():
    """Three others, whose p-values are 2 / 70, 4 / 70 and 1, times 3, 2 and 1."""
    returns = {"first": np.arange(4), "a": np.arange(4, 8), "b": np.array([3.5, 2.5, 5, 6]), "c": np.arange(4)}
    a, b, c = corrected_p_values((returns["first"], returns[other]) for other in "abc")
    assert a == pytest.approx(6 / 70) and c == 1
    assert b == pytest.approx(2 * rank_test(returns["first"], returns["b"]))


def simulated(draw, n_contestants: int, n_seeds: int, lead: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw the returns of the first contestant, which has a lead, and each other one; those in seconds differ somewhat."""
    steps = draw((n_contestants, n_seeds))
    views = (steps, steps + draw((n_contestants, n_seeds)) / 2)
    return [(own + lead, other) for own, *others in views for other in others]


KINDS = {
    "normal": np.random.Generator.standard_normal,
    "skewed": lambda generator, size: generator.lognormal(size=size),
    "solved or not": lambda generator, size: 500.0 * (generator.random(size) > 0.3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_contestants", [2, 6])
def test_equals_are_told_apart_in_at_most_five_of_a_hundred_comparisons(kind, n_contestants, n_simulations=300):
    """Simulate a first verdict and a second one, after as many seeds again."""
    draw = partial(KINDS[kind], np.random.default_rng(0))
    n_first, n_wrong = enough_seeds(2 * (n_contestants - 1)), np.zeros(2)
    for _ in range(n_simulations):
        returns, is_told = simulated(draw, n_contestants, 2 * n_first), False
        for look, n_seeds in enumerate((n_first, 2 * n_first), 1):
            known = [(own[:n_seeds], other[:n_seeds]) for own, other in returns]
            is_told |= min(corrected_p_values(known)) <= error_of(look)
            n_wrong[look - 1] += is_told
    assert (n_wrong / n_simulations <= 0.05).all(), n_wrong


@pytest.mark.parametrize("n_seeds, power", [(5, (0.09, 0.41)), (8, (0.22, 0.83)), (10, (0.32, 0.94))])
def test_how_often_a_true_difference_of_one_and_two_standard_deviations_is_found(n_seeds, power, n_simulations=300):
    """The guide has these numbers."""
    draw = np.random.default_rng(0).standard_normal
    for lead, expected in zip((1.0, 2.0), power, strict=True):
        p_values = [corrected_p_values(simulated(draw, 2, n_seeds, lead))[0] for _ in range(n_simulations)]
        assert np.mean(np.array(p_values) <= error_of(1)) == pytest.approx(expected, abs=0.07)


def test_the_number_of_seeds_that_can_be_enough():
    """There are 252 orders of 2 x 5 runs, of which one and its reverse are without overlap."""
    assert [enough_seeds(2 * n) for n in (1, 2, 3, 4, 5, 6)] == [5, 6, 6, 6, 6, 7]
    assert 2 / 252 * 2 <= error_of(1) < 2 / 252 * 4 and sum(map(error_of, range(1, 50))) <= 0.05


def test_the_interquartile_mean_is_that_of_the_middle_half():
    values = {"one": np.array([[0.0, 4.0], [1.0, 5.0], [2.0, 6.0], [3.0, 70.0], [2.5, 4.5]])}
    assert str(scores.Estimate(0.5, 0.25, 0.75)) == "0.50 (0.25 to 0.75)" and str(scores.Estimate(0.5)) == "0.50"
    estimate = interquartile_means(values)["one"]
    assert estimate.value == 3.5 and estimate.low < 3.5 < estimate.high
    state = np.random.get_state()[1].copy()
    assert estimate == interquartile_means(values)["one"]
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # a guest


def test_the_number_of_seeds_is_noethers():
    """(1.96 + 0.84)^2 / (6 (P - 1/2)^2)"""
    assert seeds_needed(0.7) == 33 and seeds_needed(0.9) == 9 and seeds_needed(0.5) == np.inf

"""The errors of this package."""


class ArgumentError(ValueError, AssertionError):
    """Arguments that cannot work. Also an ``AssertionError``, because that is what SB3's PPO raises for some of them."""


class NonFiniteLossError(ValueError):
    """
    A loss was NaN or infinite. Policy and optimizer are as they were before the epoch in which it happened.

    It is a ``ValueError`` for hyperparameter searches to prune the trial instead of ending.
    """

"""The errors of this package."""


class ArgumentError(ValueError, AssertionError):
    """Arguments that cannot work. Also an ``AssertionError``, because that is what SB3's PPO raises for some of them."""


class NonFiniteLossError(ValueError):
    """
    A loss was NaN or infinite. Policy and optimizer are as they were before the epoch in which it happened.

    It is a ``ValueError`` for hyperparameter searches to prune the trial instead of ending.
    """


class ModelFormatError(ValueError):
    """A shared model that cannot be written as plain data, or whose files are damaged, not to be trusted or too new."""


class HubError(RuntimeError):
    """A model that cannot be sent to the Hugging Face Hub or fetched from there."""

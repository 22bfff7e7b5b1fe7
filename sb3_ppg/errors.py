"""The errors of this package."""

import difflib
from collections.abc import Iterable


class ArgumentError(ValueError, AssertionError):
    """Arguments that cannot work. Also an ``AssertionError``, because that is what SB3's PPO raises for some of them."""


class NonFiniteError(ValueError):
    """
    A number was NaN or infinite.

    It is a ``ValueError`` for hyperparameter searches to prune the trial instead of ending.
    """


class NonFiniteLossError(NonFiniteError):
    """A loss or a gradient. Policy and optimizer are as they were before the epoch in which it happened."""


class NonFiniteActionError(NonFiniteError):
    """What the policy gives for an observation: an action's parameters or a value. No environment has been given it."""


class NonFiniteEnvironmentError(NonFiniteError):
    """An observation or a reward. The policy has not been trained with it."""


class WorkerError(RuntimeError):
    """The process of an environment has died."""


class ProcessGroupError(RuntimeError):
    """Of several processes that train together another one has failed, has ended, or does not fit. Its message says which."""


MAX_MESSAGE = 2000  # characters


def printable(text: str, longest: int = MAX_MESSAGE) -> str:
    """
    :param text: which may come from a stranger's file
    :param longest: how many characters of it are kept
    :return: what can be printed without harm: control characters (a terminal obeys them), lone surrogates and what changes
        the direction of writing are escaped, and the middle of a long text is left out
    """
    if len(text) > longest:
        text = f"{text[: longest // 2]} [...] {text[-longest // 2 :]}"
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class ModelFormatError(ValueError):
    """A file of a model or of its auxiliary buffer that is damaged, another's, not to be trusted or too new; or a model that
    cannot be written as plain data. Its message is ``printable``, whatever the file says."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class HubError(RuntimeError):
    """A model that cannot be sent to the Hugging Face Hub or fetched from there."""


def nearest(name: str, there: Iterable[str]) -> str:
    """
    :param name: of something that is not there
    :param there: the names of what is
    :return: the end of an error message: "; nearest: ..." or what there is
    """
    folded = {one.lower(): one for one in sorted(there)}
    close = difflib.get_close_matches(name.lower(), folded, n=3)
    if close:
        return f"; nearest: {', '.join(folded[one] for one in close)}"
    if not folded:
        return "; there is none"
    return f"; there are {', '.join(list(folded.values())[:20])}{', ...' if len(folded) > 20 else ''}"

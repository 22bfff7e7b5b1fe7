"""Changes to other packages that are undone."""

import os
import sys
from contextlib import ExitStack
from typing import Any


class Patches(ExitStack):
    """A context in which names stand for something else. At its end they stand for what they stood for before."""

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """
        :param owner: a module or a class
        :param name: of one of its attributes, its own or inherited
        :param value: to put there
        """
        if name in vars(owner):
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def replace_in_the_zoo(self, function: Any, replacement: Any) -> None:
        """
        Scripts import functions by name, so one function has a name in many modules.

        :param function: of the Zoo
        :param replacement: what every module of the Zoo takes instead, also those that are imported within the context
        """
        _swap(function, replacement)
        self.callback(_swap, replacement, function)

    def set_environment_variable(self, name: str, value: str) -> None:
        """
        :param name: of the variable
        :param value: for this process and those that it starts
        """
        if name in os.environ:
            self.callback(os.environ.__setitem__, name, os.environ[name])
        else:
            self.callback(os.environ.pop, name, None)
        os.environ[name] = value


def _swap(old: Any, new: Any) -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "rl_zoo3" and module is not None:
            for name in [name for name, value in vars(module).items() if value is old]:
                setattr(module, name, new)

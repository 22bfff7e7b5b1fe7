"""Makes our algorithms and environments known to RL Zoo, which has no plugin mechanism."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from sb3_ppg import PPG
from sb3_ppg.errors import MissingExtraError, pip_install
from sb3_ppg.family import FAMILY

try:
    import rl_zoo3.exp_manager
    import rl_zoo3.train
    from rl_zoo3 import ALGOS as ZOO_ALGOS
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

    from sb3_ppg.zoo.environments import register_environments
    from sb3_ppg.zoo.manager import Manager
    from sb3_ppg.zoo.repairs import REPAIRS
    from sb3_ppg.zoo.search import CONVERTERS, OFFLINE, SAMPLERS
except ImportError as error:
    is_another_version = type(error) is ImportError and str(error.name).startswith("rl_zoo3")  # a name is not there
    remedy = 'pip install "rl_zoo3==2.9.2"' if is_another_version else pip_install("zoo")
    raise MissingExtraError(f"RL Zoo cannot be used ({error}): {remedy}") from error

ALGOS: dict[str, type[PPG]] = {name: member.algorithm for name, member in FAMILY.items()}


def register() -> None:
    """
    Make our algorithms, their hyperparameter files, schedules and Optuna samplers, and our environments known to RL Zoo's
    scripts in this process: fill the Zoo's tables, and put ``Manager`` in the place of its ``ExperimentManager``.

    Call it before your own code imports ``ExperimentManager``; ``rl_zoo3.train`` may have been imported before. A second call
    changes nothing. It does not fix bugs of the scripts, and the processes that some of them start do not know our algorithms:
    use ``patched()`` for that.

    Example::

        from sb3_ppg.zoo import register

        register()
        from rl_zoo3 import ALGOS
        print(ALGOS["ppg"])
    """
    if rl_zoo3.exp_manager.ExperimentManager is Manager:
        return
    ZOO_ALGOS.update({**ALGOS, **OFFLINE})
    HYPERPARAMS_SAMPLER.update(SAMPLERS)
    HYPERPARAMS_CONVERTER.update(CONVERTERS)
    register_environments()
    rl_zoo3.exp_manager.ExperimentManager = rl_zoo3.train.ExperimentManager = Manager  # type: ignore[misc]


@contextmanager
def patched() -> Iterator[None]:
    """
    Run RL Zoo's scripts as ``sb3-ppg`` runs them: call ``register()``, and fix bugs of the scripts that ``runpy`` runs within
    the block. There, the processes that scripts start know our algorithms, and a MaskablePPG acts under the masks of the
    environment that was made last for playing. For that, functions of the Zoo, ``subprocess.call``, ``pyplot.show`` and
    ``MaskablePPG.predict`` are replaced within the block; at its end everything is as before.
    """
    register()
    with ExitStack() as repairs:
        for repair in REPAIRS:
            repairs.enter_context(repair())
        yield

"""
optuna: a search for PPG's hyperparameters that stops bad trials early, as in SB3's and RL Zoo's examples.

Needs the extra ``zoo``. ``sb3-ppg train -optimize`` searches without a script.
"""

import optuna
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import PPG


class Trial(EvalCallback):
    """Reports each evaluation, and ends the training of a trial that shall be pruned."""

    def __init__(self, trial: optuna.Trial) -> None:
        super().__init__(make_vec_env("CartPole-v1", 1), eval_freq=128, n_eval_episodes=5, verbose=0)
        self.trial = trial

    def _on_step(self) -> bool:
        n_before = self.n_calls // self.eval_freq
        goes_on = super()._on_step()
        if self.n_calls % self.eval_freq == 0:
            self.trial.report(self.last_mean_reward, n_before)
            return goes_on and not self.trial.should_prune()
        return goes_on


def objective(trial: optuna.Trial) -> float:
    """Return the mean return after four phases of 8 x 64 x 2 steps."""
    sampled = dict(
        learning_rate=trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
        n_aux_epochs=trial.suggest_int("n_aux_epochs", 1, 6),
        beta_clone=trial.suggest_float("beta_clone", 0.1, 10, log=True),
    )
    env, callback = make_vec_env("CartPole-v1", 8), Trial(trial)
    PPG("MlpPolicy", env, n_steps=64, n_policy_iterations=2, batch_size=256, seed=0, **sampled).learn(4096, callback)
    if trial.should_prune():
        raise optuna.TrialPruned
    return callback.last_mean_reward


optuna.logging.set_verbosity(optuna.logging.WARNING)
pruner = optuna.pruners.MedianPruner(n_startup_trials=2)
study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
study.optimize(objective, n_trials=4)
print(f"best of {len(study.trials)} trials: {study.best_value:.0f}, {study.best_params}")
assert study.best_value > 30  # random actions return 22

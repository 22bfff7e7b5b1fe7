"""
Updates that torch compiles take the same steps. Most tests have torch capture the updates and run them without its code
generator, which takes many times longer; one runs all of it.
"""

import functools
import logging
import shutil
import warnings
from typing import Any

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from sb3_ppg.errors import NonFiniteLossError
from sb3_ppg.family import with_preset
from sb3_ppg.optim.compiled import CompiledSteps, n_optimizer_steps
from tests.helpers import BOX, MIXED, VECTOR, image_space, masked_envs, random_envs

ROLLOUT = 64
SIZES = dict(n_steps=32, batch_size=16, n_epochs=2, n_policy_iterations=1, n_aux_epochs=2, aux_batch_size=32)


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Run what torch captures as it is, unless a test sets another backend."""
    compile_, chosen = th.compile, ["eager"]

    @functools.wraps(compile_)
    def with_backend(*args: Any, **kwargs: Any) -> Any:
        return compile_(*args, backend=chosen[0], **kwargs)

    monkeypatch.setattr(th, "compile", with_backend)
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)  # pytest would collect all of it
    yield chosen
    th._dynamo.reset()


class InDouble(FlattenExtractor):
    """Give the networks float64."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations).double()


def make(compile_updates: Any, cls: type[PPG] = PPG, policy: str = "MlpPolicy", env: Any = None, **kwargs: Any) -> PPG:
    policy_kwargs = dict(net_arch=[8]) | kwargs.pop("policy_kwargs", {})
    arguments = dict(seed=0, device="cpu", learning_rate=1e-3, policy_kwargs=policy_kwargs) | SIZES | kwargs
    return cls(policy, env() if env else random_envs(), compile_updates=compile_updates, **arguments)


def parameters(model: PPG) -> th.Tensor:
    networks = (model.policy, model.objective)
    return th.cat([one.detach().flatten() for network in networks for one in network.parameters()])


def n_graphs() -> int:
    return th._dynamo.utils.counters["stats"]["unique_graphs"]


def train(model: PPG, n_rollouts: int = 2, **kwargs: Any) -> PPG:
    """Train, and fail if something is not compiled."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*(not compiled|no effect)")
        return model.learn(n_rollouts * ROLLOUT, **kwargs)


def both(*args: Any, **kwargs: Any) -> list[PPG]:
    """Train from the same start, without and with compiled updates."""
    return [train(make(compile_updates, *args, **kwargs)) for compile_updates in (False, True)]


OBJECTIVES = {
    "ppg": {},
    "ewma": dict(objective="ewma"),
    "dcpg": with_preset("dcpg", {}),
    "daac": with_preset("daac", {}),
    "dna": with_preset("dna", {}),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives_take_the_same_steps(objective, backend):
    """By all of the compiler but its code generator, in float64."""
    backend[0] = "aot_eager"
    kwargs = {name: value for name, value in OBJECTIVES[objective].items() if name not in SIZES or name == "n_aux_epochs"}
    policy_kwargs = dict(net_arch=[8], features_extractor_class=InDouble) | kwargs.pop("policy_kwargs", {})
    n_before, trained = n_graphs(), []
    for compile_updates in (False, True):
        model = make(compile_updates, policy_kwargs=policy_kwargs, **kwargs)
        model.policy.double()
        model.objective.double()
        trained.append(parameters(train(model)))
    assert n_graphs() - n_before == (4 if objective == "dna" else 3)  # acting; policy, value function, auxiliary phase
    th.testing.assert_close(*trained, rtol=1e-12, atol=1e-12)


WEIGHT_DECAY = dict(optimizer_class=th.optim.AdamW, optimizer_kwargs=dict(weight_decay=0.1, amsgrad=True))
KINDS: dict[str, dict] = {
    "Box": dict(env=lambda: random_envs(VECTOR, BOX)),
    "MultiDiscrete": dict(env=lambda: random_envs(VECTOR, spaces.MultiDiscrete([2, 3]))),
    "MultiBinary": dict(env=lambda: random_envs(VECTOR, spaces.MultiBinary(3))),
    "gSDE": dict(env=lambda: random_envs(VECTOR, BOX), use_sde=True, policy_kwargs=dict(squash_output=True)),
    "masks": dict(cls=MaskablePPG, env=masked_envs),
    "Dict": dict(policy="MultiInputPolicy", env=lambda: random_envs(MIXED)),
    "images": dict(policy="CnnPolicy", env=lambda: random_envs(image_space(36, 36, 1)), mixed_precision="bf16"),
    "one network": dict(policy_kwargs=dict(architecture="detached"), clip_range_vf=0.2, clip_range=None, kl_coef=1.0),
    "DAAC of MultiDiscrete": dict(
        env=lambda: random_envs(VECTOR, spaces.MultiDiscrete([2, 3])), **dict(OBJECTIVES["daac"], batch_size=16)
    ),
    "another Adam": dict(policy_kwargs=WEIGHT_DECAY, max_grad_norm=None),
    "another optimizer": dict(policy_kwargs=dict(optimizer_class=th.optim.RMSprop)),
    "target_kl": dict(target_kl=10.0),
    "minibatches of several sizes": dict(batch_size=24, n_aux_epochs=1, aux_batch_size=26),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_takes_the_same_steps(kind):
    n_before = n_graphs()
    plain, compiled = both(**KINDS[kind])
    assert n_graphs() - n_before >= 2
    th.testing.assert_close(parameters(compiled), parameters(plain), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_code_takes_the_same_steps(backend, capsys):
    backend[0] = "inductor"
    plain, compiled = both(n_aux_epochs=0, n_epochs=1, verbose=1)
    assert "Compiling the policy update, " in capsys.readouterr().out
    th.testing.assert_close(parameters(compiled), parameters(plain), rtol=1e-4, atol=1e-6)


class Annealing(BaseCallback):
    """Change coefficients and learning rates between rollouts, and count torch's graphs."""

    def _on_rollout_start(self) -> None:
        self.graphs.append(n_graphs()) if self.n_calls else setattr(self, "graphs", [])
        self.model.ent_coef = 0.01 / (1 + self.n_calls)

    def _on_step(self) -> bool:
        return True


def test_nothing_is_compiled_again():
    """Schedules, value units, coefficients and truncated minibatches change nothing; the latter are too few to compile."""
    callback = Annealing()
    schedules = dict(learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, ent_coef=0.1)
    train(make(True, batch_size=20, **schedules), 6, callback=callback)
    assert len(callback.graphs) == 5 and len(set(callback.graphs)) == 1


class Dropout(FlattenExtractor):
    """Draw random numbers."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return nn.functional.dropout(super().forward(observations), training=self.training)


def test_networks_with_dropout_are_left_as_they_are():
    policy_kwargs = dict(features_extractor_class=Dropout)
    plain = make(False, policy_kwargs=policy_kwargs).learn(ROLLOUT)
    with pytest.warns(UserWarning, match="The policy updates are not compiled: they draw random numbers"):
        compiled = make(True, policy_kwargs=policy_kwargs).learn(ROLLOUT)
    assert th.equal(parameters(compiled), parameters(plain))


class Unpredictable(FlattenExtractor):
    """Decide by the data."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations) * (1 if observations.sum() > 0 else 2)


def test_what_torch_cannot_compile_is_left_as_it_is():
    policy_kwargs = dict(features_extractor_class=Unpredictable)
    plain = make(False, policy_kwargs=policy_kwargs).learn(ROLLOUT)
    with pytest.warns(UserWarning, match="The policy updates are not compiled: torch cannot compile these losses"):
        compiled = make(True, policy_kwargs=policy_kwargs).learn(ROLLOUT)
    assert th.equal(parameters(compiled), parameters(plain))


@pytest.mark.parametrize("of", ["module", "parameter", "optimizer"])
def test_hooks_are_called(of):
    model, calls = make(True, n_aux_epochs=0), []
    if of == "module":
        model.policy.mlp_extractor.register_forward_hook(lambda *_: calls.append(1))
        model.policy.action_net.register_forward_hook(lambda *_: calls.append(1))
    elif of == "parameter":
        model.policy.action_net.weight.register_hook(lambda _: calls.append(1))
    else:
        model.policy.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with pytest.warns(UserWarning, match="not call the hooks"):
        model.learn(ROLLOUT)
    assert len(calls) >= 8


def test_callbacks_see_the_gradient_of_the_latest_step():
    gradients = []
    for compile_updates in (False, True):
        model = train(make(compile_updates, n_aux_epochs=0), 1)
        gradients.append([one.grad for one in model.policy.parameters() if one.grad is not None])
    th.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


class Distributions(BaseCallback):
    """Read the latest distribution, as SB3's users do."""

    def _on_step(self) -> bool:
        self.means = [*getattr(self, "means", []), self.model.policy.action_dist.distribution.mean.clone()]
        return True


def test_callbacks_see_the_latest_distribution():
    means = []
    for compile_updates in (False, True):
        callback = Distributions()
        train(make(compile_updates, env=lambda: random_envs(VECTOR, BOX), n_aux_epochs=0), 1, callback=callback)
        means.append(th.stack(callback.means))
    th.testing.assert_close(*means)


def test_a_bad_loss_is_noticed_and_undone():
    model = make(True, n_aux_epochs=0)
    train(model, 1)
    before = parameters(model)
    model.ent_coef = float("inf")
    model.check_arguments = lambda: None
    with pytest.raises(NonFiniteLossError, match="policy phase"):
        model.learn(ROLLOUT, reset_num_timesteps=False)
    assert th.equal(parameters(model), before)


def test_an_interrupted_training_goes_on_exactly(tmp_path):
    """Also where the minibatches of the auxiliary phase differ in size."""
    kwargs = dict(env=lambda: random_envs(episode_length=32), n_policy_iterations=2, aux_batch_size=26)
    first = train(make(True, **kwargs), 1)
    first.save(tmp_path / "model")
    first.save_aux_buffer(tmp_path / "aux_buffer.npz")

    def resumed(**arguments: Any) -> PPG:
        model = PPG.load(tmp_path / "model", env=random_envs(episode_length=32), **arguments)
        model.load_aux_buffer(tmp_path / "aux_buffer.npz")
        return train(model, 1, reset_num_timesteps=False)

    first.set_env(random_envs(episode_length=32))
    train(first, 1, reset_num_timesteps=False)
    assert th.equal(parameters(resumed()), parameters(first))
    th.testing.assert_close(parameters(resumed(compile_updates=False)), parameters(first), rtol=1e-3, atol=1e-5)


def test_set_ups_that_are_not_compiled_are_named():
    lstm = RecurrentPPG("MlpLstmPolicy", random_envs(), n_steps=8, batch_size=8, compile_updates=True)
    idaac = make(True, **dict(with_preset("idaac", {}), n_aux_epochs=0))
    for model, reason in ((lstm, "LSTMs"), (idaac, "adversary"), (make(True, micro_batch_size=4), "micro-batches of 4")):
        with pytest.warns(UserWarning, match=f"`compile_updates`=True has no effect: .*{reason}"):
            assert not CompiledSteps(model, 1e6).enabled


def test_auto_compiles_long_trainings():
    model = make("auto", n_steps=256, batch_size=64, n_epochs=10, n_aux_epochs=6, n_policy_iterations=4, aux_batch_size=64)
    assert n_optimizer_steps(model, 64_000) == 10_000 + 6_000
    assert not CompiledSteps(model, 64_000).enabled
    assert CompiledSteps(model, 1_000_000).enabled == (shutil.which("g++") is not None)
    assert not CompiledSteps(model, float("inf")).enabled  # a callback will end it

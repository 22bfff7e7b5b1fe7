"""
Updates that torch compiles take the same steps. Most tests have torch capture the updates and run them without its code
generator, which takes many times longer; one runs all of it.
"""

import functools
import logging
import random
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from sb3_ppg import PPG, MaskablePPG, MinAtarCNN, MlpPolicy, PhasicCallback, RecurrentPPG, VectorRewards
from sb3_ppg.arrays import map_arrays
from sb3_ppg.errors import NonFiniteLossError
from sb3_ppg.family import with_preset
from sb3_ppg.objectives import Objective
from tests.helpers import (
    BOX,
    MIXED,
    NESTED,
    VECTOR,
    StepsChanged,
    VectorRewardEnv,
    image_space,
    masked_envs,
    needs_compiler,
    random_envs,
)

pytestmark = [needs_compiler, pytest.mark.slow]
ROLLOUT = 64
SIZES = dict(n_steps=32, batch_size=16, n_epochs=2, n_policy_iterations=1, n_aux_epochs=2, aux_batch_size=32)


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Run what torch captures as it is, unless a test sets another backend."""
    compile_, chosen = th.compile, ["eager"]

    @functools.wraps(compile_)
    def with_backend(*args: Any, **kwargs: Any) -> Any:
        return compile_(*args, **dict(backend=chosen[0]) | kwargs)

    monkeypatch.setattr(th, "compile", with_backend)
    generate = th._inductor.compile

    def compiled_graph(graph: th.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        if chosen == ["inductor"]:
            return generate(graph, *args, **kwargs)
        return graph if isinstance(chosen[0], str) else chosen[0](graph, *args, **kwargs)

    monkeypatch.setattr(th._inductor, "compile", compiled_graph)
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


DOUBLE = dict(features_extractor_class=InDouble)


def parameters(model: PPG) -> th.Tensor:
    networks = (model.policy, model.objective)
    return th.cat([parameter.detach().flatten() for network in networks for parameter in network.parameters()])


def n_graphs() -> int:
    return th._dynamo.utils.counters["stats"]["unique_graphs"]


def train(model: PPG, n_rollouts: int = 2, **kwargs: Any) -> PPG:
    """Train, and fail if something is not compiled."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*not compiled")
        return model.learn(n_rollouts * ROLLOUT, **kwargs)


def both(is_double: bool = True, policy_kwargs: Any = None, callbacks: Any = (None, None), **kwargs: Any) -> list[th.Tensor]:
    """Train from the same start, without and with compiled updates; return the parameters."""
    trained = []
    for compile_updates, callback in zip((False, True), callbacks, strict=True):
        model = make(compile_updates, policy_kwargs=(policy_kwargs or {}) | (DOUBLE if is_double else {}), **kwargs)
        if is_double:
            model.policy.double()
            model.objective.double()
        trained.append(parameters(train(model, callback=callback)))
    return trained


@pytest.mark.parametrize("name", ["ppg", "ppg_ewma", "dna"])
def test_objectives_take_the_same_steps(name, backend):
    """Run the whole compiler except code generation, in float64."""
    backend[0] = "aot_eager"
    kwargs = {key: value for key, value in with_preset(name, {}).items() if key not in SIZES or key == "n_aux_epochs"}
    n_before = n_graphs()
    trained = both(**kwargs)
    assert n_graphs() - n_before == (4 if name == "dna" else 3)  # acting; policy, value function, auxiliary phase
    th.testing.assert_close(*trained, rtol=1e-12, atol=1e-12)


def test_value_epochs_that_are_not_due_are_not_missed():
    daac = dict(objective="daac", objective_kwargs=dict(value_frequency=2), n_value_epochs=1, n_aux_epochs=0)
    assert train(make(True, **daac), 2).logger.name_to_value["train/compiled"] == 1


class Freezing(PhasicCallback):
    """Freeze a layer within an auxiliary phase, drop gradients, and change the learning rate."""

    n_epochs = 0

    def on_aux_epoch_end(self) -> None:
        policy = self.model.policy
        self.n_epochs += 1
        policy.zero_grad()
        policy.action_net.weight.requires_grad_(not policy.action_net.weight.requires_grad)
        self.model.aux_optimizer.param_groups[0]["lr"] *= 2


class OwnRate(Objective):
    """Change the learning rate after each step."""

    def after_policy_step(self, policy) -> None:
        policy.optimizer.param_groups[0]["lr"] *= 0.9


def test_what_a_callback_and_an_objective_change_within_an_update_counts():
    callbacks = Freezing(), Freezing()
    th.testing.assert_close(*both(objective=OwnRate, n_aux_epochs=4, callbacks=callbacks), rtol=1e-10, atol=1e-10)
    assert [callback.n_epochs for callback in callbacks] == [8, 8]


class Staged(Objective):
    """The first auxiliary epoch of a phase does not train a network of its own."""

    is_open = False

    def __init__(self, policy, **kwargs):
        super().__init__(policy, **kwargs)
        self.second = nn.Linear(policy.mlp_extractor.latent_dim_pi, 1)

    def evaluated_losses(self, policy, evaluation, batch, coefficients):
        paper = super().evaluated_losses(policy, evaluation, batch, coefficients)
        term = self.second(evaluation.latent_pi).square().mean() if self.is_open else paper.total.new_zeros(())
        return paper._replace(total=paper.total + term, terms={**paper.terms, "second": term})


class Opens(PhasicCallback):
    def on_aux_epoch_end(self) -> None:
        self.model.objective.is_open = self.locals["epoch"] % 2 == 1


def test_what_losses_reach_may_change_from_epoch_to_epoch():
    th.testing.assert_close(*both(objective=Staged, n_aux_epochs=4, callbacks=(Opens(), Opens())), rtol=1e-10, atol=1e-10)


WEIGHT_DECAY = dict(optimizer_class=th.optim.AdamW, optimizer_kwargs=dict(weight_decay=0.1, amsgrad=True))
ONE_NETWORK = dict(policy_kwargs=dict(architecture="detached"), clip_range_vf=0.2, clip_range=None, kl_coef=1.0)
# Each with something else that has a way of its own
KINDS: dict[str, dict] = {
    "MultiDiscrete, another Adam": dict(
        env=lambda: random_envs(VECTOR, spaces.MultiDiscrete([2, 3])), policy_kwargs=WEIGHT_DECAY, max_grad_norm=None
    ),
    "MultiBinary, one network": dict(env=lambda: random_envs(VECTOR, spaces.MultiBinary(3)), **ONE_NETWORK),
    "gSDE, Dict": dict(
        policy="MultiInputPolicy",
        env=lambda: random_envs(MIXED, BOX),
        use_sde=True,
        policy_kwargs=dict(squash_output=True),
    ),
    "nested actions": dict(
        env=lambda: random_envs(VECTOR, NESTED),
        ent_coef=dict(kind=0.1, how=0.0, move=0.1),
        prior="self",
        prior_coef=dict(kind=0.1, how=1.0, move=0.2),
    ),
    "vector rewards, target_kl": dict(
        env=lambda: make_vec_env(lambda: VectorRewards(VectorRewardEnv()), 2, seed=0),
        reward_weights=[0.5, 1.0],
        target_kl=10.0,
        policy_kwargs=dict(optimizer_kwargs=dict(weight_decay=0.1, betas=(0.8, 0.95))),
    ),
    "masks, minibatches of several sizes": dict(
        cls=MaskablePPG,
        env=masked_envs,
        batch_size=24,
        n_aux_epochs=1,
        aux_batch_size=26,
        prior="self",
        policy_kwargs=dict(optimizer_kwargs=dict(maximize=True, amsgrad=True, eps=1e-3)),
    ),
    "images": dict(
        policy="CnnPolicy",
        env=lambda: random_envs(image_space(36, 36, 1)),
        mixed_precision="bf16",
        policy_kwargs=dict(architecture="dual"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_takes_the_same_steps(kind):
    n_before = n_graphs()
    is_double = kind not in ("gSDE, Dict", "nested actions", "images")  # whose actions or inputs are float32
    plain, compiled = both(is_double, **KINDS[kind])
    assert n_graphs() - n_before >= 2
    # Outside compiled code, torch computes log π of MultiBinary actions in float32 if these are, also for float64 logits
    tolerance = {"MultiBinary, one network": 1e-5}.get(kind, 1e-10 if is_double else 1e-3)
    th.testing.assert_close(compiled, plain, rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize(("target_kl", "n_steps"), [(1e-9, {2}), (1e-5, {*range(3, 32)})])
def test_epochs_end_at_the_same_minibatch(target_kl, n_steps):
    """Two rollouts have 32 steps without a limit. With any, the first of each is taken: the policy has not changed yet."""
    trained = [train(make(compiled, target_kl=target_kl, n_epochs=4)) for compiled in (False, True)]
    steps = [int(next(iter(model.policy.optimizer.state.values()))["step"]) for model in trained]
    assert steps[0] == steps[1] and steps[0] in n_steps
    th.testing.assert_close(*map(parameters, trained), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_code_takes_the_same_steps(backend, capsys):
    backend[0] = "inductor"
    smallest = dict(n_aux_epochs=0, n_epochs=1, policy_kwargs=dict(net_arch=[]))  # each kernel takes seconds to compile
    plain, compiled = both(is_double=False, **smallest, verbose=1)
    assert "Compiling the policy update, " in capsys.readouterr().out
    th.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-6)


class Annealing(PhasicCallback):
    """Change coefficients and learning rates between rollouts, and count torch's graphs."""

    def _on_rollout_start(self) -> None:
        self.graphs.append(n_graphs()) if self.n_calls else setattr(self, "graphs", [])
        self.model.ent_coef = 0.01 / (1 + self.n_calls)


def test_nothing_is_compiled_again():
    """Schedules, value units, coefficients and truncated minibatches change nothing; the latter are too few to compile."""
    callback = Annealing()
    schedules = dict(learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, ent_coef=0.1)
    schedules |= dict(prior="self", prior_coef=lambda left: 0.2 * left)
    train(make(True, batch_size=20, **schedules), 6, callback=callback)
    assert len(callback.graphs) == 5 and len(set(callback.graphs)) == 1


def test_a_prior_that_comes_and_goes_counts():
    def train_three_times(compile_updates: bool) -> th.Tensor:
        model = make(compile_updates, n_aux_epochs=0, policy_kwargs=DOUBLE)
        model.policy.double()
        for agent in (None, "self", None):
            model.set_prior(agent, 1.0)
            train(model, 1)
        return parameters(model)

    th.testing.assert_close(*map(train_three_times, (False, True)), rtol=1e-10, atol=1e-10)


class Scaled(FlattenExtractor):
    """Scale the observations by an attribute."""

    factor = 1.0

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations) * self.factor


class Kept(Scaled):
    """Keep the latest features of rollouts."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        features = super().forward(observations)
        if not self.training:
            self.latest = features
        return features


class Changing(PhasicCallback):
    """Change the features extractor between rollouts, and note what it has kept in each step."""

    def _on_training_start(self) -> None:
        self.kept: list[float] = []

    def _on_rollout_start(self) -> None:
        self.model.policy.features_extractor.factor *= -5

    def _on_step(self) -> bool:
        self.kept.append(float(getattr(self.model.policy.features_extractor, "latest", th.zeros(())).sum()))
        return True


class ActsItself(MlpPolicy):
    n_acts = 0

    def act(self, batch):
        self.n_acts += 1
        return super().act(batch)


def test_a_policys_own_act_is_called():
    assert make(True, policy=ActsItself).learn(ROLLOUT).policy.n_acts == ROLLOUT // 2


@pytest.mark.parametrize("extractor", [Scaled, Kept])
def test_the_acting_policy_follows_its_networks(extractor):
    callbacks = Changing(), Changing()
    policy_kwargs = dict(features_extractor_class=extractor)
    th.testing.assert_close(*both(False, policy_kwargs, callbacks, n_aux_epochs=0), rtol=1e-3, atol=1e-5)
    assert callbacks[1].kept == pytest.approx(callbacks[0].kept, rel=1e-5)
    assert len({*callbacks[0].kept}) == (1 if extractor is Scaled else ROLLOUT)  # each step of two environments


def test_a_graph_sees_only_observations_of_its_types(backend, monkeypatch):
    """Here `reset` gives float32, as the space says, and `step` float64: compiled code would take its bits for float32."""
    compiled_for: list[tuple] = []

    def checking(graph: th.fx.GraphModule, inputs: list[Any], **_: Any) -> Any:
        types = [getattr(leaf, "dtype", None) for leaf in inputs]

        def run(*given: Any) -> Any:
            assert [getattr(leaf, "dtype", None) for leaf in given] == types
            return graph(*given)

        compiled_for.append(tuple(types))
        return run

    monkeypatch.setattr(th._inductor, "compile", checking)
    env = StepsChanged(random_envs(MIXED, BOX), lambda obs, *others: (map_arrays(np.float64, obs), *others))
    train(make(True, policy="MultiInputPolicy", env=lambda: env))
    assert len(compiled_for) >= 2


def test_torch_compiles_more_models_than_it_would_of_one_function():
    with th._dynamo.config.patch(accumulated_recompile_limit=3):
        for _ in range(3):
            assert train(make(True)).logger.name_to_value["train/compiled"] == 1


class Dropout(FlattenExtractor):
    """Draw random numbers."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return nn.functional.dropout(super().forward(observations), training=self.training)


class Jitters(FlattenExtractor):
    """Draw random numbers by Python."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations) * (random.uniform(0.5, 1.5) if self.training else 1.0)


class Unpredictable(FlattenExtractor):
    """Decide by the data."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations) * (1 if observations.sum() > 0 else 2)


@pytest.mark.parametrize(
    ("extractor", "reason"),
    [
        (Dropout, "policy update is not compiled: it draws random numbers"),
        (Jitters, "policy update is not compiled: it draws random numbers"),
        (Unpredictable, r"acting policy is not compiled: torch cannot compile it \(Data-dependent branching"),
    ],
)
def test_what_cannot_be_compiled_is_left_as_it_is(extractor, reason):
    policy_kwargs = dict(features_extractor_class=extractor)
    plain = make(False, policy_kwargs=policy_kwargs).learn(ROLLOUT)
    with pytest.warns(UserWarning, match=f"The {reason}"):
        compiled = make(True, policy_kwargs=policy_kwargs).learn(ROLLOUT)
    assert th.equal(parameters(compiled), parameters(plain))


@pytest.mark.parametrize(
    ("of", "compile_updates"), [("module", True), ("parameter", True), ("optimizer", True), ("parameter", "auto")]
)
def test_hooks_are_called_and_compiling_stops(of, compile_updates, monkeypatch):
    """A user who did not ask for compiled updates is told, too: those of wandb's ``gradient_save_freq`` can be left out."""
    monkeypatch.setattr("sb3_ppg.optim.compiled.WORTHWHILE_STEPS", 1)
    model, calls = make(compile_updates, n_aux_epochs=0), []
    if of == "module":
        model.policy.mlp_extractor.register_forward_hook(lambda *_: calls.append(1))
        model.policy.action_net.register_forward_hook(lambda *_: calls.append(1))
    elif of == "parameter":
        model.policy.action_net.weight.register_hook(lambda _: calls.append(1))
    else:
        model.policy.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    with pytest.warns(UserWarning, match="hooks are registered"):
        model.learn(ROLLOUT)
    assert len(calls) >= 8
    assert model.logger.name_to_value["train/compiled"] == 0


def test_users_see_the_latest_distribution_and_the_gradient_of_the_latest_step():
    means, gradients = ([], []), []
    for compile_updates, seen in zip((False, True), means, strict=True):
        in_torch = dict(features_extractor_class=Scaled)  # NumPy does not act for it
        model = make(compile_updates, env=lambda: random_envs(VECTOR, BOX), n_aux_epochs=0, policy_kwargs=in_torch)
        train(model, 1, callback=lambda *_, m=model, s=seen: s.append(m.policy.action_dist.distribution.mean.clone()) or True)
        gradients.append([parameter.grad for parameter in model.policy.parameters() if parameter.grad is not None])
    th.testing.assert_close(*means)
    th.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert gradients[0]


def test_a_bad_loss_is_noticed_and_undone():
    model = make(True, n_aux_epochs=0)
    train(model, 1)
    before = parameters(model)
    model.ent_coef = float("inf")
    model.check_arguments = lambda: None
    with pytest.raises(NonFiniteLossError, match="policy phase"):
        model.learn(ROLLOUT, reset_num_timesteps=False)
    assert th.equal(parameters(model), before)


def test_set_ups_that_are_not_compiled_are_named():
    lstm = RecurrentPPG("MlpLstmPolicy", random_envs(), n_steps=8, batch_size=8, compile_updates=True)
    idaac = make(True, **dict(with_preset("idaac", {}), n_aux_epochs=0))
    for model, reason in ((lstm, "LSTMs"), (idaac, "adversary")):
        with pytest.warns(UserWarning, match=f"The updates are not compiled: .*{reason}"):
            model.begin_compiled_training(1e6)
        assert not model.compiled_training.is_enabled
    with pytest.warns(UserWarning, match="policy update is not compiled: minibatches run in micro-batches of 4"):
        make(True, micro_batch_size=4).learn(ROLLOUT)


def test_auto_compiles_long_trainings():
    model = make("auto", n_steps=256, batch_size=64, n_epochs=10, n_aux_epochs=6, n_policy_iterations=4, aux_batch_size=64)
    has_compiler = shutil.which("g++") is not None
    # 64,000 timesteps have 10,000 steps of the policy phase and 6,000 of the auxiliary phase
    for budget, is_long in ((79_000, False), (80_000, has_compiler), (float("inf"), False)):
        model.begin_compiled_training(budget)  # of the infinite one, a callback decides the length
        assert model.compiled_training.is_enabled == is_long


@pytest.mark.parametrize(("side", "is_small"), [(10, True), (36, False)])
def test_auto_compiles_convolutions_of_small_images(side, is_small):
    """2M steps of MinAtar have 16,000 optimizer steps, which take longer than those of an MLP."""
    env = random_envs(spaces.Box(0.0, 1.0, (side, side, 4)))
    minatar = dict(n_steps=4096, batch_size=512, n_aux_epochs=1, n_policy_iterations=16, aux_batch_size=512)
    model = make(
        "auto", policy="CnnPolicy", env=lambda: env, policy_kwargs=dict(features_extractor_class=MinAtarCNN), **minatar
    )
    model.begin_compiled_training(2_000_000)
    assert model.compiled_training.is_enabled == (is_small and shutil.which("g++") is not None)


def test_a_run_that_goes_on_keeps_the_choice_that_it_began_with(tmp_path, monkeypatch):
    """Compiled updates round differently, so the budget of the second half must not matter."""
    monkeypatch.setattr("sb3_ppg.optim.compiled.WORTHWHILE_STEPS", 30)  # a rollout has 8
    short = train(make("auto", n_aux_epochs=0), 1)
    assert not short.compiled_training.is_enabled and short.logger.name_to_value["train/compiled"] == 0
    short.save(tmp_path / "short.zip")
    for model in (short, PPG.load(tmp_path / "short.zip", env=random_envs(), device="cpu")):
        assert not train(model, 10, reset_num_timesteps=False).compiled_training.is_enabled
    long = train(make("auto", n_aux_epochs=0), 10)
    assert long.compiled_training.is_enabled and long.logger.name_to_value["train/compiled"] == 1
    assert train(long, 1, reset_num_timesteps=False).compiled_training.is_enabled
    assert not train(long, 1).compiled_training.is_enabled  # another run


def test_without_a_compiler_updates_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr("sb3_ppg.optim.compiled.WORTHWHILE_STEPS", 1)
    model = train(make("auto", n_aux_epochs=0), 1)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="The updates are not compiled: torch needs a C.. compiler"):
        make(True).learn(ROLLOUT)
    with pytest.warns(UserWarning, match="The updates are not compiled: torch needs a C.. compiler"):
        model.learn(ROLLOUT, reset_num_timesteps=False)


def failing(at: int) -> Any:
    """Return a backend that fails at the n-th graph, as Inductor does: its error has the cause inside."""
    graphs: list[th.fx.GraphModule] = []

    def backend(graph: th.fx.GraphModule, _: Any, **options: Any) -> Any:
        graphs.append(graph)
        if len(graphs) == at:
            try:
                raise OSError("no space left\nfor kernels")
            except OSError as error:
                raise RuntimeError("while compiling:\nsomething") from error
        return graph

    return backend


@pytest.mark.parametrize(
    ("failure", "compile_updates"), [("stance", "auto"), ("torch.compile", True), (1, "auto"), (1, True), (2, "auto")]
)
def test_a_run_goes_on_without_a_compiler_that_is_switched_off_or_fails(
    failure, compile_updates, backend, monkeypatch, recwarn
):
    """At the first graph or a later one; users switch it off to debug, and containers do."""
    kwargs = dict(n_aux_epochs=2, n_epochs=1, n_steps=16, batch_size=8, n_policy_iterations=1)
    plain = make(False, **kwargs).learn(32)
    reason = "no space left"
    if failure == "torch.compile":
        monkeypatch.setattr("torch._dynamo.optimize", lambda *_, **__: 1 / 0)
        reason = "division by zero"
    elif failure == "stance":
        reason = "switches torch's compiler off"
    else:
        backend[0] = failing(failure)
    monkeypatch.setattr("sb3_ppg.optim.compiled.WORTHWHILE_STEPS", 1)
    model = make(compile_updates, **kwargs)
    with th.compiler.set_stance("force_eager" if failure == "stance" else "default"):
        model.learn(32)
    said = [str(warning.message) for warning in recwarn if "not compiled" in str(warning.message)]
    assert len(said) == 1 and reason in said[0] and "\n" not in said[0]
    if failure != 2 and (failure, compile_updates) != (1, True):  # then the other phase is compiled
        assert th.equal(parameters(model), parameters(plain))
    th.testing.assert_close(parameters(model), parameters(plain))
    assert model.logger.name_to_value["train/compiled"] == (failure == 2)  # before the auxiliary phase, which fails

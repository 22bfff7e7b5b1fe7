"""The documentation's code runs, and does what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parent.parent / "docs"


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


@pytest.mark.slow
def test_a_new_objective_as_the_page_shows_it(tmp_path):
    (code,) = code_blocks("extending.md")
    assert len(code.splitlines()) < 60
    names: dict = {}
    exec(code, names)  # ours
    model, cls = names["model"], names["RewardPrediction"]
    assert type(model.criterion) is cls and model._n_aux_phases == 4
    # Rewards of CartPole are 1: it knows, and what is kept belongs together
    assert model.criterion.head.bias.abs().sum() > 0

    from sb3_ppg import RecurrentPPG, hub
    from tests.helpers import learn_and_log

    recurrent = RecurrentPPG("MlpLstmPolicy", "CartPole-v1", n_steps=64, n_policy_iterations=2, objective=cls)
    assert learn_and_log(recurrent, 128)["aux/reward_loss"] >= 0
    with pytest.raises(Exception, match="RewardPrediction"):
        hub.save_pretrained(model, tmp_path)
    hub.save_pretrained(model, tmp_path, custom_objects={"RewardPrediction": cls})
    loaded = hub.from_pretrained(tmp_path, custom_objects={"RewardPrediction": cls})
    np.testing.assert_array_equal(loaded.criterion.head.bias.detach().numpy(), model.criterion.head.bias.detach().numpy())


def test_what_an_objective_keeps_belongs_to_its_observations():
    """RandomEnv's reward is the first number of the observation that follows: kept rewards and observations agree."""
    from gymnasium import spaces
    from stable_baselines3.common.env_util import make_vec_env

    from sb3_ppg import PPG
    from sb3_ppg.objectives import PaperObjective
    from tests.helpers import VECTOR, RandomEnv

    class KeepsRewards(PaperObjective):
        kept = ("rewards", "actions", "episode_starts")

    env = make_vec_env(lambda: RandomEnv(VECTOR, spaces.Discrete(3), episode_length=100), 3, seed=0)
    model = PPG("MlpPolicy", env, n_steps=8, batch_size=8, n_policy_iterations=3, objective=KeepsRewards, device="cpu")
    model.learn(2 * 24)
    for observations, context in zip(model.aux_buffer.observations, model.aux_buffer.context, strict=True):
        np.testing.assert_allclose(context["rewards"][:, :-1, 0], observations[:, 1:, 0], rtol=1e-6)
        assert context["actions"].shape == context["episode_starts"].shape == (3, 8, 1)

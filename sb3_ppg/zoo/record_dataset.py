"""Record a Minari data set from a trained agent, with the options of ``enjoy``."""

from huggingface_sb3 import EnvironmentName

from sb3_ppg.offline.recording import check_new, record, save_as_minari
from sb3_ppg.zoo.report import agent_parser, is_deterministic, load_agent


def main() -> None:
    """Run the command."""
    parser = agent_parser(__doc__)
    parser.add_argument("--env", type=EnvironmentName, default="CartPole-v1", help="environment ID")
    parser.add_argument("--dataset", required=True, help="name of the new data set, for instance cartpole/ppg-v0")
    parser.add_argument("-n", "--n-timesteps", default=100_000, type=int, help="number of steps to record")
    noise = "exploration noise: standard deviation (Box actions in [-1, 1]), or probability of a random action"
    parser.add_argument("--noise", default=0.0, type=float, help=noise)
    parser.add_argument("--random-episodes", default=0.0, type=float, help="part of the episodes with random actions alone")
    args = parser.parse_args()
    check_new(args.dataset)
    model, _, _ = load_agent(args)
    env = model.get_env()
    assert env is not None
    options = dict(deterministic=is_deterministic(args), noise=args.noise, random_episodes=args.random_episodes)
    data = record(model, env, args.n_timesteps, **options, seed=args.seed)
    save_as_minari(data, args.dataset, env.observation_space, env.action_space, args.env.gym_id, args.algo)
    returns = data.episode_returns()
    print(f"Recorded {len(data)} steps as {args.dataset}: {len(returns)} episodes, mean return {returns.mean():.2f}")

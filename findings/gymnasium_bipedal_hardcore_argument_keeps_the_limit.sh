#!/usr/bin/env bash
# Package: gymnasium 1.4.0, with Box2D 2.3.10.
# Common guess: `make("BipedalWalker-v3", hardcore=True)` is BipedalWalkerHardcore-v3 under another name.
# Behavior: the argument changes the terrain and not the entry of the registry: episodes are cut off after 1,600 steps,
#   where BipedalWalkerHardcore-v3 allows 2,000. The course is as long in both, so a walker that is slow but never falls
#   gets a different return. Results of the two are not comparable. (Source: `gymnasium/envs/__init__.py`)
# Output seen: "limits: hardcore=True 1600 of hardcore terrain, BipedalWalkerHardcore-v3 2000 of hardcore terrain"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "gymnasium[box2d]==1.4.0" Box2D==2.3.10 numpy==2.4.6
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
import gymnasium as gym

named = {
    "hardcore=True": gym.make("BipedalWalker-v3", hardcore=True),
    "BipedalWalkerHardcore-v3": gym.make("BipedalWalkerHardcore-v3"),
}
seen = []
for name, env in named.items():
    env.reset(seed=0)
    n_steps, truncated = 0, False
    env.unwrapped.step = lambda action: (env.observation_space.sample(), 0.0, False, False, {})  # which never falls
    while not truncated:
        truncated = env.step(env.action_space.sample())[3]
        n_steps += 1
    seen.append(f"{name} {n_steps} of {'hardcore' if env.unwrapped.hardcore else 'easy'} terrain")
print("limits:", ", ".join(seen))
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "limits: hardcore=True 1600 of hardcore terrain, BipedalWalkerHardcore-v3 2000 of hardcore terrain" ]] || exit 1

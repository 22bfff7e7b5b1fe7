#!/usr/bin/env bash
# Package: pettingzoo 1.27.0.
# Common guess: in a loop that plays all sides with one agent, `env.step(action); _, reward, *_ = env.last()` gives the
#   reward of the action, as `step` of Gymnasium does.
# Behavior: after `step` it is the next player's turn, and `last` returns the next player's reward: the move that wins gets the
#   loser's -1, and an agent trained so learns to avoid winning. `env.rewards[player]`, read after `step`, is the mover's.
# Output seen: "player_1 wins: last() gives -1, rewards['player_1'] is 1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "pettingzoo[classic]==1.27.0" numpy==2.4.6
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY' | tail -n 1
from pettingzoo.classic import tictactoe_v3

env = tictactoe_v3.env()
env.reset(seed=0)
for action in (0, 3, 1, 4, 2):  # player_1 takes 0, 1, 2: a line
    player = env.agent_selection
    env.step(action)
_, reward, terminated, _, _ = env.last()
assert terminated
print(f"{player} wins: last() gives {reward}, rewards['{player}'] is {env.rewards[player]}")
PY
)
echo "pettingzoo 1.27.0: $seen"
[[ "$seen" == "player_1 wins: last() gives -1, rewards['player_1'] is 1" ]] || exit 1

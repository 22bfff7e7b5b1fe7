#!/usr/bin/env bash
# Runs Stable-Baselines3's own tests of PPO with PPG in PPO's place, from the source distribution of the installed version.
# The one change: a custom policy in test_gae.py derives from our base class, as PPG asks for.
#   usage: run.sh PYTHON
set -euo pipefail
python=$(realpath --no-symlinks "$1")
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
version=$("$python" -c 'import stable_baselines3 as sb3; print(sb3.__version__)')
"$python" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation "stable-baselines3==$version"
tar -xzf stable_baselines3-*.tar.gz --strip-components=1
rm -rf stable_baselines3  # the installed one is tested
cp "$here/conftest.py" tests/
sed -i 's/^from stable_baselines3.common.policies import ActorCriticPolicy$/from sb3_ppg import MlpPolicy as ActorCriticPolicy/' tests/test_gae.py
cd tests
files=$(grep -lw PPO test_*.py)
"$python" -m pytest -q -p no:cacheprovider -k "PPO or ppo" $files

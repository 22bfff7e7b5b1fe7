#!/usr/bin/env bash
# Runs the own tests of Stable-Baselines3 and sb3-contrib for PPO, RecurrentPPO and MaskablePPO with ours in their place, from the
# source distributions of the installed versions. The one change: a custom policy in test_gae.py derives from our base class, as
# PPG asks for.
#   usage: run.sh PYTHON
set -euo pipefail
python=$(realpath --no-symlinks "$1")
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

run() { # package, words that its tests are chosen by
  local version
  mkdir "$folder/$1" && cd "$folder/$1"
  version=$("$python" -c "import $1; print($1.__version__)")
  "$python" -m pip download --quiet --no-deps --no-binary :all: --no-build-isolation "${1//_/-}==$version"
  tar -xzf ./*.tar.gz --strip-components=1
  rm -rf "$1" # the installed one is tested
  cp "$here/conftest.py" tests/
  cd tests
  sed -i 's/^from stable_baselines3.common.policies import ActorCriticPolicy$/from sb3_ppg import MlpPolicy as ActorCriticPolicy/' \
    test_gae.py 2>/dev/null || true
  # shellcheck disable=SC2046
  "$python" -m pytest -q -p no:cacheprovider -k "$2" $(grep -lwE PPO\|RecurrentPPO\|MaskablePPO test_*.py)
}

failed=0
run stable_baselines3 "PPO or ppo" || failed=1
run sb3_contrib "PPO or ppo or test_lstm or test_invalid_actions or on_policy" || failed=1
exit $failed

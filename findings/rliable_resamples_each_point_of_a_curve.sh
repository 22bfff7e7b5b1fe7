#!/usr/bin/env bash
# Packages: rliable 1.2.0, arch 7.2.0, numpy 2.4.6, scipy 1.17.1.
# Common guess: for scores of the shape (runs, tasks, evaluations), which `get_interval_estimates` accepts for learning
#   curves, the bootstrap draws runs, each with its whole curve.
# Behavior: it draws a run anew for each evaluation, so that a resampled curve is patched together from several runs. The
#   interval at a single evaluation is right. Statistics over the curve, such as its mean (the area under it), its best
#   point or its gain, get one as if the points were independent: with 100 points of flat curves, a tenth as wide as it should
#   be, so that an algorithm seems better with certainty whose runs do not tell it apart. Reduce each curve to a number first, and pass
#   (runs, tasks). (Source: StratifiedBootstrap.update_indices, and StratifiedIndependentBootstrap._get_indices for pairs,
#   draw as many indices as there are scores)
# Output seen: "mean of the curve, 5 runs: 1.8 to 4.2 with 1 point, 2.9 to 3.1 with 100 points, 1.8 to 4.2 reduced first;
#   P of a higher mean, 0.6: 1.0 to 1.0 with 100 points, 0.2 to 0.9 reduced first"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet rliable==1.2.0 arch==7.2.0 numpy==2.4.6 scipy==1.17.1 pandas==2.3.3
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
import numpy as np
from rliable.library import get_interval_estimates


def interval(scores, statistic):
    np.random.seed(0)
    low, high = get_interval_estimates({"": scores}, statistic, reps=2000)[1][""].ravel()
    return f"{low:.1f} to {high:.1f}"


def flat_curves(values, n_points):  # (runs, one task, evaluations)
    return np.repeat(values[:, None, None], n_points, axis=2)


def mean(scores):
    return np.array([scores.mean()])


def is_better(own, others):
    own, others = (scores.reshape(len(scores), -1).mean(axis=1) for scores in (own, others))
    return np.array([(own[:, None] > others).mean()])


levels = np.arange(1.0, 6.0)
curves, others = flat_curves(levels, 100), flat_curves(levels - 0.9, 100)
reduced = curves.mean(axis=2), others.mean(axis=2)
print(f"mean of the curve, 5 runs: {interval(flat_curves(levels, 1), mean)} with 1 point, ", end="")
print(f"{interval(curves, mean)} with 100 points, {interval(reduced[0], mean)} reduced first; ", end="")
print(f"P of a higher mean, {is_better(curves, others)[0]:.1f}: {interval((curves, others), is_better)} with 100 points, ", end="")
print(f"{interval(reduced, is_better)} reduced first")
PY
)
echo "rliable 1.2.0: $seen"
expected="mean of the curve, 5 runs: 1.8 to 4.2 with 1 point, 2.9 to 3.1 with 100 points, 1.8 to 4.2 reduced first; "
expected+="P of a higher mean, 0.6: 1.0 to 1.0 with 100 points, 0.2 to 0.9 reduced first"
[[ "$seen" == "$expected" ]] || exit 1

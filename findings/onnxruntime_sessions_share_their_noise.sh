#!/usr/bin/env bash
# Packages: onnxruntime 1.32.0, onnx 1.23.2.
# Common guess: two sessions of a stochastic policy (one with RandomNormalLike and no `seed`) draw different noise, unless
#   seeds are set.
# Behavior: all sessions of a process start from the same seed, drawn once a process: each new session repeats the noise
#   of the first one, so that actors with a session each, or episodes that open a session each, act with the same noise.
# Output seen: "two calls of one session: different, first calls of two sessions: equal"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

noise = helper.make_node("RandomNormalLike", ["mean"], ["noise"])
action = helper.make_node("Add", ["mean", "noise"], ["action"])
mean, sample = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("mean", "action"))
graph = helper.make_graph([noise, action], "policy", [mean], [sample])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def act(session):
    return session.run(None, {"mean": np.zeros(3, dtype=np.float32)})[0]


def compare(one, other):
    return "equal" if np.array_equal(one, other) else "different"


first, second = (ort.InferenceSession(model, providers=["CPUExecutionProvider"]) for _ in range(2))
one, two = act(first), act(first)
print(f"two calls of one session: {compare(one, two)}, first calls of two sessions: {compare(one, act(second))}")
PY
)
echo "onnxruntime 1.32.0: $seen"
[[ "$seen" == "two calls of one session: different, first calls of two sessions: equal" ]] || exit 1

#!/usr/bin/env bash
# Packages: onnxruntime 1.32.0, onnx 1.23.2.
# Common guess: a policy that `quantize_dynamic` made of an exported one is less precise, but still computes each row of a
#   batch by itself.
# Behavior: the scale of activations is taken over the whole batch, at each call: what an observation gets depends on the
#   others, and one large observation blurs the small ones. A result with a batch of 1 is none for vector environments.
# Output seen: "alone: 0.131 0.171, beside a large observation: 0.134 0.134; not quantized: 0.130 0.170, 0.130 0.170"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
seen=$("$folder/env/bin/python" - "$folder" <<'PY'
import logging
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

logging.disable()
exported, quantized = f"{sys.argv[1]}/exported.onnx", f"{sys.argv[1]}/quantized.onnx"
weights = numpy_helper.from_array(np.array([[1.0, -1.0], [0.5, 0.5]], dtype=np.float32), "weights")
layer = helper.make_node("MatMul", ["observations", "weights"], ["logits"])
inputs, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("observations", "logits"))
graph = helper.make_graph([layer], "policy", [inputs], [outputs], [weights])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), exported)
quantize_dynamic(exported, quantized, weight_type=QuantType.QInt8)


def first_row(path, *observations):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    logits = session.run(None, {"observations": np.array(observations, dtype=np.float32)})[0]
    return " ".join(f"{value:.3f}" for value in logits[0])


small, large = (-0.02, 0.3), (8.0, -9.0)
alone, beside = first_row(quantized, small), first_row(quantized, small, large)
print(f"alone: {alone}, beside a large observation: {beside}", end="; ")
alone, beside = first_row(exported, small), first_row(exported, small, large)
print(f"not quantized: {alone}, {beside}")
PY
)
echo "onnxruntime 1.32.0: $seen"
[[ "$seen" == "alone: 0.131 0.171, beside a large observation: 0.134 0.134; not quantized: 0.130 0.170, 0.130 \
0.170" ]] || exit 1

#!/usr/bin/env bash
# Packages: openvino 2026.4.1, onnx 1.23.2.
# Common guess: `openvino.save_model` writes the model that it is given, so that the file computes what the model in memory
#   does.
# Behavior: by default it rounds constants to float16, also the means that normalize observations: 100,000 becomes 65,504, the
#   largest number of this type, and 1,000.3 becomes 1,000.5, so that an action changes its sign. With compress_to_fp16=False
#   they stay. (The docstring of `save_model` speaks of a compression of weights.)
# Output seen: "mean 100000: 0.8, saved 1.0, compress_to_fp16=False 0.8;
#   mean 1000.3: 0.1, saved -0.1, compress_to_fp16=False 0.1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet openvino==2026.4.1 onnx==1.23.2 numpy==2.4.6
seen=$("$folder/env/bin/python" - "$folder" 2> /dev/null <<'PY' | tail -n 1
import sys

import numpy as np
import onnx.parser
import openvino as ov


def action(model, observation):
    output = ov.compile_model(model, "CPU")(np.array([[observation, 0.0]], dtype=np.float32))[0]
    return f"{output[0, 0]:.1f}"


seen = []
onnx_file, file = f"{sys.argv[1]}/policy.onnx", f"{sys.argv[1]}/policy.xml"
for mean, observation in ((100_000.0, 100_001.0), (1000.3, 1000.4)):
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        policy (float[n, 2] observation) => (float[n, 2] action) <float[2] mean = {{{mean}, 0.0}}> {{
            centered = Sub(observation, mean)
            action = Tanh(centered)
        }}"""
    onnx.save(onnx.parser.parse_model(text), onnx_file)
    model = ov.convert_model(onnx_file)
    in_memory = action(model, observation)
    ov.save_model(model, file)
    saved = action(file, observation)
    ov.save_model(model, file, compress_to_fp16=False)
    full = action(file, observation)
    seen.append(f"mean {mean:g}: {in_memory}, saved {saved}, compress_to_fp16=False {full}")
print("; ".join(seen))
PY
)
echo "openvino 2026.4.1: $seen"
expected="mean 100000: 0.8, saved 1.0, compress_to_fp16=False 0.8; mean 1000.3: 0.1, saved -0.1, compress_to_fp16=False 0.1"
[[ "$seen" == "$expected" ]] || exit 1

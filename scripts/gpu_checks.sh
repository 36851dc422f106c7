#!/usr/bin/env bash
# Runs the GPU tests and writes the figures of one parity check and one draft run into FOLDER.
#
#   scripts/gpu_checks.sh PYTHON FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
out=$2
mkdir -p "$out"
"$python" -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU"; print(torch.cuda.get_device_name())' \
  | tee "$out/device.txt"
"$python" -m pytest -m gpu tests/parity/test_gpu.py | tee "$out/tests.txt"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
demo=mtpconv/demo/checkpoint
"$python" -m mtpconv hf2mcore $demo "$work/mcore" >"$out/hf2mcore.txt"
for dtype in float32 bfloat16; do
  "$python" -m mtpconv parity $demo "$work/mcore" --device cuda --dtype $dtype --draft \
    --report "$out/parity-$dtype.json" | tee "$out/parity-$dtype.txt"
done
"$python" -m mtpconv draft $demo --device cuda --report "$out/draft.json" | tee "$out/draft.txt"

#!/usr/bin/env bash
# The first minutes on a machine with a GPU: tests, the classes of the MNIST test images beside those of the CPU, answers
# of the service, the speed of each contender. Every part has a limit of time, 15 minutes together, and what it has found
# is in OUT at once. The first three, which say whether the answers are right, take at most 7 minutes.
#
#   OUT=out PYTHON=.venv-gpu/bin/python benchmarks/gpu/first_contact.sh                     all parts
#   OUT=out PYTHON=.venv-gpu/bin/python benchmarks/gpu/first_contact.sh tests agreement     some
#   DEVICE=cpu benchmarks/gpu/first_contact.sh answers                                      one, on a CPU to try it
#
#   PYTHON   an interpreter with torch and onnxruntime-gpu (python3)
#   OUT      gets the log and JSON files (out)
#   DEVICE   cuda or cpu (cuda)
#   IMAGES   of MNIST's test set, for `agreement` (10000); CAPSNET_DATA holds the data set
#   BATCHES  sizes that contenders are measured at (1,64,512,1024)
#   WORKERS  processes that share the tests, where pytest-xdist is there (8)
#
# Tests are named by file: a bare machine lacks packages that other tests import. The limits are those of compiling some
# hundred kernels. Parts are stopped as by Ctrl-C: pytest still names what failed, and a service ends with its client.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${OUT:-out}
device=${DEVICE:-cuda}
images=${IMAGES:-10000}
batches=${BATCHES:-1,64,512,1024}
workers=${WORKERS:-8}
if [ "$device" = cuda ]; then precisions="float32 half"; else precisions=float32; fi
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 CUDA_MODULE_LOADING=LAZY

limited() { timeout --signal INT --kill-after 10 "$@"; }

tests() {
  local shared=()
  if "$python" -c "import xdist" 2>/dev/null; then shared=(--numprocesses "$workers"); fi
  limited 150 "$python" -m pytest -v ${shared[@]+"${shared[@]}"} --durations=10 --continue-on-collection-errors -m gpu \
    -p no:cacheprovider -p no:benchmark -k "not tensorrt" \
    tests/training/models/cuda tests/training/fit/test_step.py tests/training/fit/test_loop.py \
    tests/training/data/transforms tests/service/inference/test_engine.py tests/service/inference/test_gpu_session.py
}

# Of the contenders with these names; fails if one of them does.
measure() {
  local name failed=0
  for name in "$@"; do
    limited 100 "$python" -m benchmarks.gpu.throughput --device "$device" --quick --batches "$batches" --only "$name" \
      --json "$out/${name// /-}.json" || failed=1
  done
  return "$failed"
}

speed() { measure "ONNX Runtime" "as served" "torch eager"; }

compile() { measure "torch.compile"; }

routing() { limited 100 "$python" -m benchmarks.gpu.routing --json "$out/routing.json"; }

agreement() {
  local precision
  for precision in $precisions; do
    limited 60 "$python" -m benchmarks.gpu.agreement models/capsnet-mnist --device "$device" --precision "$precision" \
      --images "$images" --json "$out/agreement.jsonl" || return
  done
}

# What the service answers to a photograph.
answers() {
  local precision failed=0
  for precision in $precisions; do
    limited 60 "$python" -m benchmarks.gpu.answers --device "$device" --precision "$precision" || failed=1
  done
  if [ "$device" = cuda ]; then nvidia-smi; fi
  return "$failed"
}

parts=("$@")
if [ $# = 0 ]; then parts=(tests agreement answers speed routing compile); fi
for part in "${parts[@]}"; do
  if [[ ! $part =~ ^(tests|agreement|answers|speed|routing|compile)$ ]]; then
    echo "first_contact.sh: there is no part $part; there are tests, agreement, answers, speed, routing and compile" >&2
    exit 2
  fi
done
{
  failed=0
  for part in "${parts[@]}"; do
    echo "-- $part"
    "$part"
    status=$?
    echo "-- $part ended with status $status"
    if [ "$status" != 0 ]; then failed=1; fi
  done
  exit "$failed"
} 2>&1 | tee -a "$out/first_contact.log"

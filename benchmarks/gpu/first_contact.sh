#!/usr/bin/env bash
# The first minutes on a machine with a GPU: tests, the speed of each contender, answers of the service. Every part has
# a limit of time, 12 minutes together, and what it has found is in OUT.
#
#   OUT=out PYTHON=.venv-gpu/bin/python benchmarks/gpu/first_contact.sh            all parts
#   OUT=out PYTHON=.venv-gpu/bin/python benchmarks/gpu/first_contact.sh tests routing   some, at most 7 minutes
#   DEVICE=cpu benchmarks/gpu/first_contact.sh answers                             one, on a CPU to try it
#
#   PYTHON   an interpreter with torch and onnxruntime-gpu (python3)
#   OUT      gets the log and a JSON file of each contender (out)
#   DEVICE   cuda or cpu (cuda)
#   PORT     of the service (8009)
#
# Tests are named by file: a bare machine lacks packages that other tests import. The limits are those of compiling some
# hundred kernels; pytest is stopped as by Ctrl-C, so that it still names what failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=${OUT:-out}
device=${DEVICE:-cuda}
port=${PORT:-8009}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 CUDA_MODULE_LOADING=LAZY

tests() {
  timeout --signal INT --kill-after 20 220 "$python" -m pytest -v --durations=10 --continue-on-collection-errors -m gpu \
    -p no:cacheprovider -k "not tensorrt" \
    tests/training/models/cuda tests/training/fit/test_step.py tests/training/fit/test_loop.py \
    tests/training/data/transforms tests/service/inference/test_engine.py tests/service/inference/test_gpu_session.py
}

speed() {
  local name
  for name in "ONNX Runtime" "as served" torch; do
    timeout 70 "$python" -m benchmarks.gpu.throughput --device "$device" --quick --only "$name" --json "$out/${name// /-}.json"
  done
}

routing() { timeout 150 "$python" -m benchmarks.gpu.routing; }

# What the service answers to a photograph, in half precision on a GPU.
answers() {
  if [ "$device" = cuda ]; then export CAPSNET_PRECISION=half; fi
  CAPSNET_DEVICE=$device CAPSNET_PORT=$port timeout 110 "$python" -m service.cli &
  local service=$!
  for _ in $(seq 100); do
    if curl --silent --fail "localhost:$port/readyz"; then break; fi
    sleep 1
  done
  curl --silent --fail-with-body -F images=@docs/seven.jpg "localhost:$port/classify?top_k=1"
  curl --silent --fail-with-body -F image=@docs/seven.jpg "localhost:$port/reconstruct" | head --bytes 300
  curl --silent --fail-with-body "localhost:$port/models"
  if [ "$device" = cuda ]; then nvidia-smi; fi
  kill -TERM "$service"
  wait "$service"
}

parts=("$@")
if [ $# = 0 ]; then parts=(tests speed routing answers); fi
for part in "${parts[@]}"; do
  if [[ ! $part =~ ^(tests|speed|routing|answers)$ ]]; then
    echo "first_contact.sh: there is no part $part; there are tests, speed, routing and answers" >&2
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
} 2>&1 | tee "$out/first_contact.log"

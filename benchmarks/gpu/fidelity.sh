#!/usr/bin/env bash
# Trains one preset to the end, in slices if need be, and leaves the network in files that are small enough to be
# sent anywhere.
#
#   benchmarks/gpu/fidelity.sh NAME [OPTION...]     options of `capsnet-train fit`: --seed, --epochs, ...
#
#   benchmarks/gpu/fidelity.sh mnist                                              to the end
#   MINUTES=9 RUN=/tmp/mnist-1 OUT=out benchmarks/gpu/fidelity.sh mnist --seed 1  nine minutes; again to go on
#
#   MINUTES        of training in this slice, beside some seconds before and after it (default: to the end)
#   RUN            folder of the run, where the next slice finds it (runs/NAME)
#   OUT            gets the best network so far, after every slice (RUN/parts)
#   PART_BYTES     of a file in OUT, at most (15000000)
#   PYTHON         an interpreter with torch (python3)
#   CAPSNET_DATA   holds one folder per data set (data)
#
# OUT holds a tar archive in parts, named after RUN, and their checksums: at most 8 files for up to 26 million
# weights. Where it shall be used it is put together by
#
#   (cd out && sha256sum --check mnist-1.sha256)
#   mkdir -p runs/mnist-1 && cat out/mnist-1.part-* | tar --extract --directory runs/mnist-1
#
# and is a run that `capsnet-train evaluate`, `capsnet-export bundle` and `capsnet-train fit --start-from` take; the
# first two measure it on the test images, which nothing here does.
# `capsnet-train evaluate RUN --full` measures multimnist on 10 million pairs and affnist on affNIST.
#
# `timeout 9m benchmarks/gpu/fidelity.sh mnist` ends like MINUTES; a training that has not begun leaves nothing. A signal
# must go to all of its processes, as from `timeout` and Ctrl-C.
#
# Experiments need no such script: `timeout --signal INT 9m capsnet-train experiment affnist`, again to go on.
set -euo pipefail

fail() {
  echo "fidelity.sh: $*" >&2
  exit 2
}

if [ $# = 0 ]; then fail "the name of a preset is missing: benchmarks/gpu/fidelity.sh mnist"; fi
number='^[0-9]+([.][0-9]+)?$'
if [[ -n ${MINUTES:-} && ! $MINUTES =~ $number ]]; then fail "MINUTES must be a number, got $MINUTES"; fi
if [[ ! ${PART_BYTES:-1} =~ ^[1-9][0-9]*$ ]]; then fail "PART_BYTES must be a whole number, got $PART_BYTES"; fi
asked="$*"
run=${RUN:-runs/$1}
out=${OUT:-$run/parts}
name=$(basename "$run")
python=${PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"

if compgen -G "$run/checkpoints/step-*" >/dev/null; then
  begun=$(cat "$run/asked-for" 2>/dev/null || echo "something else")
  if [ "$begun" != "$asked" ]; then fail "$run was begun as '$begun', not as '$asked'; give another RUN"; fi
  what=(--resume) # it keeps the options that it was begun with
else
  mkdir -p "$run"
  echo "$asked" >"$run/asked-for"
  what=(--preset "$@")
fi
# A signal ends the training with a checkpoint, and not this.
trap : INT TERM HUP
status=0
"$python" -m training.cli fit --out "$run" "${what[@]}" ${MINUTES:+--max-minutes "$MINUTES"} || status=$?
# Whatever ended it: what it has reached is not to be lost.
if [ "$status" != 0 ] && ! compgen -G "$run/checkpoints/step-*" >/dev/null; then exit "$status"; fi

best=$("$python" -c "from pathlib import Path; from training.runs import checkpoint
import sys; print(checkpoint.best_checkpoint(Path(sys.argv[1])).name)" "$run")
files=(config.json log.jsonl "checkpoints/$best/"{config.json,model.safetensors,progress.json})
for measured in result.json measured.jsonl; do # once `capsnet-train evaluate` has been asked
  if [ -f "$run/$measured" ]; then files+=("$measured"); fi
done
mkdir -p "$out"
aside=$(mktemp -d "$out/.parts.XXXXXX") # the parts of the slice before stay until these are whole
trap 'rm -rf "$aside"' EXIT
tar --create --directory "$run" "${files[@]}" |
  split --bytes "${PART_BYTES:-15000000}" --numeric-suffixes - "$aside/$name.part-"
(cd "$aside" && sha256sum "$name".part-* >"$name.sha256")
rm -f "$out/$name".part-* "$out/$name.sha256"
mv "$aside/$name".* "$out"
echo "$best is in $out/$name.part-*"
exit "$status"

#!/usr/bin/env bash
# Trains CAPSNET_PRESET, or resumes its run, and publishes the result as the next version of the model
# CAPSNET_MODEL_NAME. Does nothing if that is done already. A signal stops the training with a checkpoint.
# With PET_NNODES, which torchrun reads, it trains together with the sidecars of other machines; each publishes to the
# models that it sees, once.
set -euo pipefail

preset=${CAPSNET_PRESET:-mnist-short}
model=${CAPSNET_MODEL_NAME:-capsnet-trained}
run=runs/$model/$preset
published=$run/published
trained=$run/trained # the other machines have ended: nobody would come to train further

stopped=no
child=

# While a child runs in the foreground, bash delays its traps: the signal would not stop the child.
attend() {
  local status=0
  if [ "$stopped" = yes ]; then leave; fi
  "$@" &
  child=$!
  if [ "$stopped" = yes ]; then stop; fi # the signal came before the child was known
  while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done # a signal ends `wait`, not the child
  wait "$child" || status=$? # of the child that has ended
  child=
  if [ "$stopped" = yes ] && [ "$status" != 0 ]; then leave; fi
  return "$status"
}

leave() {
  echo "stopped; the next start resumes from here"
  exit 143
}

stop() {
  stopped=yes
  if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null || true; fi
}
trap stop TERM INT

if [ -e "$published" ]; then
  echo "$(cat "$published") is published already; to train another model, set CAPSNET_MODEL_NAME or CAPSNET_PRESET"
  exit 0
fi

# What brings the preset's data: "download mnist", "make toys", or nothing.
bring=$(python -c 'import sys; from training.config import load_preset; print(load_preset(sys.argv[1]).data.spec.command)' "$preset")
case $bring in
"") ;;
make\ *) if [ ! -e "$CAPSNET_DATA/${bring#make }" ]; then attend capsnet-train $bring; fi ;; # several minutes
*) attend capsnet-train $bring ;; # what is there already is only checked
esac

if [ -n "${PET_NNODES:-}" ]; then
  if [ ! -e "$trained" ]; then
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # else a machine that is started again cannot join (torch 2.13)
    attend torchrun -m training.cli fit --preset "$preset" --out "$run" # goes on from a checkpoint by itself
    touch "$trained"
  fi
elif compgen -G "$run/checkpoints/step-*" >/dev/null; then
  attend capsnet-train fit --out "$run" --resume # does nothing if the run is finished
else
  attend capsnet-train fit --preset "$preset" --out "$run"
fi

exec {publishing}>>"$run/.publishing" # another machine may share the folder, and publish right now
flock "$publishing"
if [ ! -e "$published" ]; then
  attend capsnet-export bundle "$run" --out "models/$model"
  echo "models/$model" >"$published"
fi

#!/usr/bin/env bash
# Builds the images, runs them with compose as a user would, and checks what they answer: one line per check.
# Needs Docker Engine 25 and Compose 2.24 or later, curl and Python; `make docker-test` runs it. All of it
# happens in a compose project of its own, on a free port, and is gone at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
image_python=$(sed -n 's/^FROM python:\([0-9.]*\).*/\1/p' docker/training.Dockerfile)
limit_bytes=395000000 # of the image, without the shipped bundles
sample=docs/seven.jpg # a photograph of a seven
answers_within_s=30   # a published bundle is served

export CAPSNET_PORT=127.0.0.1:0 # any free port
export CAPSNET_PROMETHEUS_PORT=127.0.0.1:0 CAPSNET_GRAFANA_PORT=127.0.0.1:0
export CAPSNET_PRESET=drawn CAPSNET_MODEL_NAME=capsnet-drawn
unset CAPSNET_DATA CAPSNET_COMMIT

scratch=$(mktemp -d)
passed=0
failed=0

# Neither the variables nor the service see the `.env` of whoever runs this; see gather_torch for the second.
compose() { docker compose --env-file /dev/null --project-name capsnet-test --profile train --profile monitoring --file docker-compose.yml --file "$scratch/test.yml" "$@"; }

# check CLAIM COMMAND...: the command's output is shown only when it fails.
check() {
  local claim=$1
  shift
  if "$@" >"$scratch/output" 2>&1; then
    passed=$((passed + 1))
    echo "ok    $claim"
  else
    failed=$((failed + 1))
    echo "FAIL  $claim"
    tail -n 40 "$scratch/output" | sed 's/^/      /'
    return 1
  fi
}

finish() {
  local status=$?
  if [ "$failed" != 0 ] || [ "$status" != 0 ]; then compose logs --tail 40 2>&1 | sed 's/^/      /' || true; fi
  compose down --volumes --rmi local --timeout 20 >/dev/null 2>&1 || echo "docker compose down failed" >&2
  rm -rf "$scratch"
  if [ "$status" != 0 ] && [ "$failed" = 0 ]; then failed=1; fi
  echo "$passed passed, $failed failed"
  if [ "$failed" != 0 ]; then exit 1; fi
}

# -- what is checked ------------------------------------------------------------------------------------------

in_service() { compose exec -T service "$@"; }
not() { if "$@"; then return 1; fi; }

address() { compose port service 8000; }

# answers PATH EXPRESSION [CURL OPTION...]: the status is 200, and the expression of Python, in which `it` is
# the JSON that came, is true.
answers() {
  local path=$1 expression=$2
  shift 2
  curl --silent --show-error --fail-with-body --max-time 30 "$@" "http://$(address)$path" >"$scratch/answer" || {
    cat "$scratch/answer"
    return 1
  }
  "$python" -c '
import base64, json, sys
it = json.load(open(sys.argv[1]))
sys.exit(0 if eval(sys.argv[2]) else f"not so: {sys.argv[2]}\n{json.dumps(it)[:2000]}")
' "$scratch/answer" "$expression"
}

soon() { # the same, within answers_within_s
  local deadline=$((SECONDS + answers_within_s))
  until answers "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then break; fi
    sleep 1
  done
  answers "$@"
}

classifies_the_sample() { # MODEL
  answers "/classify?model=$1" "it['model'] == '$1' and it['results'][0]['label'] == '7' and len(it['results'][0]['classes']) == 10" \
    --form "images=@$sample"
}

classifies_the_pair() {
  answers '/classify?model=matrix-capsnet-toys' "it['results'][0]['label'] == 'truck' and len(it['results'][0]['classes'][0]['pose']) == 16" \
    --form images=@docs/left.png --form images=@docs/right.png
}

reconstructs_the_sample() {
  answers /reconstruct "base64.b64decode(it['reconstructions'][0]['image']).startswith(b'\\x89PNG')" --form "image=@$sample"
}

is_small() {
  local size bundles
  size=$(docker image inspect --format '{{.Size}}' capsnet-test-service)
  bundles=$(($(du -sk models | cut -f 1) * 1024))
  echo "$size bytes, $bundles of them bundles"
  [ $((size - bundles)) -lt "$limit_bytes" ]
}

has_no_capabilities() { in_service grep -q '^CapEff:.*0000000000000000$' /proc/self/status; }
has_no_training_code() { not docker run --rm capsnet-test-service sh -c 'command -v capsnet-train || python -c "import training"'; }
scores_the_sample() { docker run --rm --interactive capsnet-test-service sh -c 'cat >/tmp/7.jpg && capsnet-score /tmp/7.jpg --local' <"$sample" | tee "$scratch/answer" | grep -q '^/tmp/7.jpg,7,'; }
has_no_torch() { docker run --rm capsnet-test-service python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is not None)'; }
# Zeros and nothing are how Docker shows that there is no limit.
is_limited() {
  local format='{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}} {{(index .HostConfig.Ulimits 0).Soft}} {{index .HostConfig.LogConfig.Config "max-size"}}'
  docker inspect --format "$format" "$(compose ps --quiet service)" | tee "$scratch/answer"
  grep -qE '^[1-9][0-9]* [1-9][0-9]* [1-9][0-9]* [1-9][0-9]*m$' "$scratch/answer"
}

ends_by_itself() { # as one of which an inference thread died does, but at once
  in_service python -c '
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    if int(process.name) not in (1, os.getpid()) and b"capsnet-serve" in (process / "cmdline").read_bytes():
        os.kill(int(process.name), signal.SIGKILL)' || true # its container ends under this command
}

is_started_again() { # within answers_within_s
  ends_by_itself
  soon /readyz "it['status'] == 'ready'"
  [ "$(docker inspect --format '{{.RestartCount}}' "$(compose ps --quiet service)")" -ge 1 ]
}

is_not_root() { in_service sh -c 'test "$(id -u)" != 0'; }

sidecar_logs() { # within three minutes
  for _ in $(seq 180); do
    if compose exec -T training test -s runs/capsnet-drawn/drawn/log.jsonl 2>/dev/null; then return 0; fi
    sleep 1
  done
  compose logs --tail 20 training
  return 1
}

in_volumes() { compose run --rm --no-deps -T --entrypoint bash training -c "$1"; }

compiles_and_loads() { # a library in the folder for temporary files, as Triton does
  compose exec -T training sh -c 'cd /tmp && echo "int one = 1;" | cc -shared -fPIC -x c - -o one.so &&
    python -c "import ctypes; ctypes.CDLL(\"/tmp/one.so\")"'
}

sidecar_ends_with() { # STATUS, within ten minutes
  local container state deadline=$((SECONDS + 600))
  container=$(compose ps --all --quiet training)
  while state=$(docker inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$container") &&
    [[ $state != exited* ]] && [ "$SECONDS" -lt "$deadline" ]; do
    sleep 1
  done
  compose logs --tail 5 training
  echo "$state"
  [ "$state" = "exited $1" ]
}

stops_within_its_grace() {
  compose stop service
  local status
  status=$(docker inspect --format '{{.State.ExitCode}}' "$(compose ps --all --quiet service)")
  echo "exit status $status"
  [ "$status" = 0 ]
}

prometheus_knows_the_model() { # within answers_within_s
  local deadline=$((SECONDS + answers_within_s))
  until compose exec -T prometheus wget -q -O - 'http://127.0.0.1:9090/api/v1/query?query=capsnet_model_loaded' | tee "$scratch/answer" | grep -q capsnet-digits; do
    if [ "$SECONDS" -ge "$deadline" ]; then cat "$scratch/answer"; return 1; fi
    sleep 1
  done
}

in_grafana() { compose exec -T grafana "$@"; }
grafana_has_the_dashboard() { in_grafana wget -q -O - http://127.0.0.1:3000/api/dashboards/uid/capsnet | grep -q capsnet_requests_total; }
grafana_lets_admin_in() { in_grafana wget -q -O - http://admin:admin@127.0.0.1:3000/api/org/users; }

# torch as this machine's pip finds it for the image's Python, so that a machine with a mirror of builds for the CPU
# uses that; TORCH_INDEX names one for the build itself.
gather_torch() {
  mkdir -p "$scratch/wheels"
  if [ -z "${TORCH_INDEX:-}" ]; then
    "$python" -m pip --disable-pip-version-check download -qq --no-deps --python-version "$image_python" --only-binary :all: --constraint constraints.txt --dest "$scratch/wheels" torch ||
      echo "pip finds no torch here; the build will look for it itself"
  fi
  cat >"$scratch/test.yml" <<EOF
services:
  service:
    env_file: !reset []
  training:
    build: {additional_contexts: {wheels: "$scratch/wheels"}}
    environment: {OMP_NUM_THREADS: 1} # enough for a tiny network, and no fight for a busy machine's cores
EOF
}

# -- the checks -----------------------------------------------------------------------------------------------

trap finish EXIT
set +e # a check that fails is counted; what cannot go on without it ends here
gather_torch
compose down --volumes >/dev/null 2>&1 # what a run that was killed has left

check 'the image of the service builds' compose build service || exit
check "without its bundles it is smaller than $((limit_bytes / 1000000)) MB" is_small
check 'it holds no torch' has_no_torch
check 'nor code that trains' has_no_training_code
check 'capsnet-score works in it' scores_the_sample
check 'docker compose up serves and turns healthy' compose up --detach --wait --wait-timeout 120 service || exit
check 'the shipped model reads a seven' classifies_the_sample capsnet-digits
check 'and reconstructs it' reconstructs_the_sample
check 'the shipped model of stereo pairs sees a truck' classifies_the_pair
check 'the process is not root' is_not_root
check 'it has no capabilities' has_no_capabilities
check 'its memory, processes, open files and log are limited' is_limited
check 'its own files are read-only' not in_service touch /srv/new
check 'so is the volume of models, for the service' not in_service touch /var/lib/capsnet/models/new
check 'the cache can be written' in_service touch /var/cache/capsnet/new

check 'a service that ends by itself is started again' is_started_again

if compose pull --quiet prometheus grafana >/dev/null 2>&1; then
  check 'Prometheus and Grafana start and turn healthy' compose up --detach --wait --wait-timeout 120 prometheus grafana
  check 'Prometheus asks the service' prometheus_knows_the_model
  check 'Grafana shows the dashboard to everybody' grafana_has_the_dashboard
  check 'and lets nobody in as its admin' not grafana_lets_admin_in
  check 'Prometheus is not root' compose exec -T prometheus sh -c 'test "$(id -u)" != 0'
  check 'nor is Grafana' in_grafana sh -c 'test "$(id -u)" != 0'
  compose stop prometheus grafana >/dev/null 2>&1
else
  echo "skip  Prometheus and Grafana: their images cannot be pulled here"
fi

check 'the image of the training sidecar builds' compose build training || exit
check 'the sidecar starts to train' compose up --detach training || exit
check 'it logs its steps' sidecar_logs || exit
check 'it can compile and load what it needs on a GPU' compiles_and_loads
check 'told to stop, it stops' compose stop training
check 'with a status that says so' sidecar_ends_with 143
check 'it has left a checkpoint and no bundle' in_volumes 'compgen -G "runs/*/drawn/checkpoints/step-*" && ! compgen -G "models/*"'
check 'started again, it goes on' compose up --detach training
check 'it comes to the end' sidecar_ends_with 0
check 'the service lists the new model, without a restart' soon /models "'capsnet-drawn' in [one['name'] for one in it['models']]"
check 'and reads a seven with it' classifies_the_sample capsnet-drawn
check 'started once more, the sidecar finds nothing to do' compose up --detach training
check 'and says so' sidecar_ends_with 0
check 'nothing was published twice' in_volumes '[ "$(echo models/*/*)" = models/capsnet-drawn/1 ]'

check 'the service stops when told to' stops_within_its_grace
check 'and comes back' compose up --detach --wait --wait-timeout 120 --force-recreate service
check 'with the shipped models beside what the volume holds' answers /models "{one['name'] for one in it['models']} == {'capsnet-digits', 'capsnet-mnist', 'capsnet-multimnist', 'matrix-capsnet-toys', 'capsnet-drawn'}"
check 'which still reads the seven' classifies_the_sample capsnet-digits
exit 0

#!/usr/bin/env bash
# Submits a run and shows its log; fails if the run does. Ctrl-C leaves the run going.
#
#   deploy/submit.sh [OVERRIDE...]
#   deploy/submit.sh strategy=heterofl fleet.clients=3 clients_per_round=3 rounds=10 deadline=120
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name_link
field() { python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }
told=$(check_link) || die "$told"

cd "$APP"
run=$(flwr run . nestfl --format json --run-config "hydra=\"$*\"" | field '["run-id"]')
echo "run $run"
flwr log "$run" nestfl --stream
status=$(flwr ls nestfl --run-id "$run" --format json | field '["runs"][0]["status"]')
echo "run $run: $status"
[[ $status == finished:completed ]]

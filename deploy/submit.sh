#!/usr/bin/env bash
# Submits a run and shows its log; fails if the run does. Ctrl-C leaves the run going. On the server,
# as the SuperLink's user: nobody else is answered.
#
#   deploy/submit.sh [OVERRIDE...]
#   deploy/submit.sh strategy=heterofl fleet.clients=3 clients_per_round=3 rounds=10 deadline=120
#   PLUGIN=mine.py deploy/submit.sh model=twin strategy=heterofl
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name_link
field() { python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }
told=$(check_control) || die "$told"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
code=$(nestfl fingerprint "$APP" ${PLUGIN:+--plugin "$PLUGIN"} --copy "$copy/nestfl")
run=$(flwr run "$copy/nestfl" nestfl --format json --run-config "hydra=\"$*\"" | field '["run-id"]')
echo "run $run of the code $code"
PYTHONUNBUFFERED=1 flwr log "$run" nestfl --stream
status=$(flwr ls nestfl --run-id "$run" --format json | field '["runs"][0]["status"]')
echo "run $run: $status"
[[ $status == finished:completed ]]

#!/usr/bin/env bash
# A SuperNode, with its own budget and data, started again whenever it dies.
#
#   deploy/supernode.sh NODE 'budget=0.25 partition-id=0 num-partitions=3'
#   deploy/supernode.sh NODE 'budget=0.5 data="/data/photos"'
#   deploy/supernode.sh NODE 'data="/data/photos"'             the budget is measured
#
# It runs the code of this checkout and no other, unless code="FINGERPRINT ..." or code="any" says so.
# NODE_PORT (9094) is for its own processes, on loopback; on one machine each node needs another.
# For a minute after a crash the SuperLink takes the node for online and refuses it, so a refusal is
# final only after PATIENCE seconds (120).
set -euo pipefail
source "$(dirname "$0")/settings.sh"
(($# == 2)) || die "usage: deploy/supernode.sh NODE 'key=value ...'"
node=$1 config=$2
umask 077  # the code that it is sent, and what it remembers
[[ -f $STATE/nodes/$node ]] || die "no $STATE/nodes/$node: run deploy/keys.sh $node first"
certificate=()  # for a proxy that asks for one
[[ ! -f $STATE/nodes/$node.crt ]] || certificate=(--client-certificate "$STATE/nodes/$node.crt")

child= stopped=
trap 'stopped=1; [[ -z $child ]] || kill -TERM "$child" 2> /dev/null' TERM INT
patience=${PATIENCE:-120}

pause() {
  sleep 5 & child=$!
  wait "$child" || true
  [[ ! $stopped ]] || exit 0
}

# Waits until the SuperLink can be reached, and says what is in the way: for one that does not
# answer as long as it takes, for one that is not ours as long as a refusal is sat out.
reach_link() {
  local began=$SECONDS said= told code
  while true; do
    code=0
    told=$(check_link ${certificate[@]:+--certified}) || code=$?
    [[ ! $stopped ]] || exit 0
    if ((code == 0)); then
      [[ ! $said ]] || well=$SECONDS  # what was waited is no refusal
      return
    fi
    [[ $told == "$said" ]] || echo "$node: $told; trying again every 5 s" >&2
    said=$told
    ((code != 1)) || began=$SECONDS
    ((SECONDS - began < patience)) || ((code == 1)) || die "$node: gave up: $told"
    pause
  done
}

well=$SECONDS  # when it last ran
while true; do
  reach_link
  began=$SECONDS
  nestfl-supernode "${certificate[@]}" \
    --superlink "$LINK_HOST:$LINK_PORT" --root-certificates "$STATE/ca.crt" \
    --auth-supernode-private-key "$STATE/nodes/$node" \
    --port "${NODE_PORT:-9094}" --node-config "$config" &
  child=$!
  code=0
  wait "$child" || code=$?
  if [[ $stopped ]]; then
    wait "$child" || true
    exit 0
  fi
  ((SECONDS - began < 30)) || well=$SECONDS
  ((SECONDS - well <= patience)) || die "$node: gave up (exit code $code), see above"
  echo "$node: ended (exit code $code), starting again in 5 s" >&2
  pause
done

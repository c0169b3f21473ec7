#!/usr/bin/env bash
# A key pair for each SuperNode. On several machines, run it on the device: the private key stays.
#
#   deploy/keys.sh NODE...
set -euo pipefail
source "$(dirname "$0")/settings.sh"
umask 077  # private keys are their owner's alone
(($#)) || die "usage: deploy/keys.sh NODE..."

mkdir -p "$STATE/nodes"
for node in "$@"; do
  key=$STATE/nodes/$node
  [[ -f $key ]] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$key"
  echo "$key.pub"
done

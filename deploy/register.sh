#!/usr/bin/env bash
# Lets SuperNodes in, by their public keys. Once a node: the SuperLink keeps them in its database.
# Keys that are in it already are passed over. On the server, as the SuperLink's user.
#
#   deploy/register.sh [PUBLIC_KEY...]     default: all of $STATE/nodes
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name_link

keys=("$@")
(($#)) || keys=("$STATE"/nodes/*.pub)
[[ -e ${keys[0]} ]] || die "no ${keys[0]}: run deploy/keys.sh first"
told=$(check_control) || die "$told"

failed=
for key in "${keys[@]}"; do
  if told=$(flwr supernode register "$key" nestfl 2>&1); then
    echo "$key: $told"
  elif [[ $told == *"already in use"* ]]; then
    echo "$key: is registered already"
  else
    echo "$key: not registered: $told" >&2
    failed=1
  fi
done
flwr supernode list nestfl
[[ ! $failed ]]

#!/usr/bin/env bash
# Lets SuperNodes in, by their public keys. Once a node: the SuperLink keeps them in its database.
#
#   deploy/register.sh [PUBLIC_KEY...]     default: all of $STATE/nodes
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name_link

keys=("$@")
(($#)) || keys=("$STATE"/nodes/*.pub)
for key in "${keys[@]}"; do
  flwr supernode register "$key" nestfl
done
flwr supernode list nestfl

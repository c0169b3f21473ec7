#!/usr/bin/env bash
# A certificate authority, and the SuperLink's certificate under every name that it is reached by.
#
#   deploy/certificates.sh [NAME...]      default: localhost 127.0.0.1
#   DAYS=365 deploy/certificates.sh fleet.example.org 192.0.2.7
#
# Run it again to renew the certificate or to change its names: the authority stays the same. What
# was there is replaced only when all that is new is whole.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
umask 077  # private keys are their owner's alone
days=${DAYS:-90}
[[ $days =~ ^[1-9][0-9]{0,3}$ ]] || die "DAYS is '$days': expected a whole number from 1 to 9999"

names=("$@")
(($#)) || names=(localhost 127.0.0.1)
sans=()
for name in "${names[@]}"; do
  if [[ $name =~ ^[0-9.]+$|: ]]; then sans+=("IP:$name"); else sans+=("DNS:$name"); fi
done
mkdir -p "$STATE"
cd "$STATE"
[[ -f ca.key || ! -f ca.crt ]] || die "$STATE has ca.crt but no ca.key: bring it, or move ca.crt away"
[[ -f ca.crt || ! -f ca.key ]] || die "$STATE has ca.key but no ca.crt: bring it, or move ca.key away"
new=$(mktemp -d "$STATE/new.XXXXXX")
trap 'rm -rf "$new"' EXIT

# Runs openssl; what it says is shown only if it fails.
quietly() {
  local said
  said=$(openssl "$@" 2>&1) || die "$said"$'\n'"openssl $1 failed: nothing was changed"
}

authority=$STATE
if [[ ! -f ca.key ]]; then
  authority=$new
  quietly req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=nestfl-ca \
    -keyout "$new/ca.key" -out "$new/ca.crt"
fi
echo "subjectAltName=$(IFS=,; echo "${sans[*]}")" > "$new/names"
quietly req -newkey rsa:2048 -nodes -subj "/CN=${names[0]}" \
  -keyout "$new/server.key" -out "$new/server.csr"
quietly x509 -req -in "$new/server.csr" -days "$days" -extfile "$new/names" \
  -CA "$authority/ca.crt" -CAkey "$authority/ca.key" -CAserial "$new/serial" -CAcreateserial \
  -out "$new/server.pem"
quietly verify -CAfile "$authority/ca.crt" "$new/server.pem"
[[ $authority == "$STATE" ]] || mv "$new/ca.crt" "$new/ca.key" .
mv "$new/server.key" "$new/server.pem" .
echo "$STATE/server.pem: ${sans[*]}, for $days days"

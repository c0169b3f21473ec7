#!/usr/bin/env bash
# A certificate authority, and the server's certificate under every name that it is reached by; on
# its own machine that is localhost and 127.0.0.1, besides those given.
#
#   deploy/certificates.sh [NAME...]
#   DAYS=365 deploy/certificates.sh fleet.example.org 192.0.2.7
#   deploy/certificates.sh phone.pub...   for a proxy that asks devices for certificates: phone.crt
#
# Run it again to renew the certificate or to change its names: the authority stays the same. What
# was there is replaced only when all that is new is whole.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
umask 077  # private keys are their owner's alone
days=${DAYS:-90}
[[ $days =~ ^[1-9][0-9]{0,3}$ ]] || die "DAYS is '$days': expected a whole number from 1 to 9999"

names=() keys=()
for given in "$@"; do
  if [[ $given == *.pub ]]; then keys+=("$(realpath "$given")"); else names+=("$given"); fi
done
((${#names[@]} == 0 || ${#keys[@]} == 0)) || die "names of the server, or keys of devices: not both"
names+=(localhost 127.0.0.1)
sans=()
for name in "${names[@]}"; do
  if [[ $name =~ ^[0-9.]+$|: ]]; then san=IP:$name; else san=DNS:$name; fi
  [[ " ${sans[*]} " == *" $san "* ]] || sans+=("$san")
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

if ((${#keys[@]})); then
  [[ $authority == "$STATE" ]] || die "no $STATE/ca.key: run deploy/certificates.sh for the server first"
  echo "extendedKeyUsage=clientAuth" > "$new/use"
  for key in "${keys[@]}"; do
    device=$(basename "$key" .pub)
    ssh-keygen -e -m PKCS8 -f "$key" > "$new/$device.pem" || die "$key is no public key of keys.sh"
    quietly req -new -newkey rsa:2048 -nodes -subj "/CN=$device" -keyout /dev/null -out "$new/csr"
    quietly x509 -req -in "$new/csr" -force_pubkey "$new/$device.pem" -days "$days" \
      -extfile "$new/use" -CA ca.crt -CAkey ca.key -CAserial "$new/serial" -CAcreateserial \
      -out "$new/$device.crt"
    mv "$new/$device.crt" "${key%.pub}.crt"
    echo "${key%.pub}.crt: for $days days"
  done
  exit
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

#!/usr/bin/env bash
# A certificate authority, and the SuperLink's certificate under every name that it is reached by.
#
#   deploy/certificates.sh [NAME...]      default: localhost 127.0.0.1
#   DAYS=365 deploy/certificates.sh fleet.example.org 192.0.2.7
#
# Run it again to renew the certificate or to change its names: the authority stays the same.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
umask 077  # private keys are their owner's alone

names=("$@")
(($#)) || names=(localhost 127.0.0.1)
sans=()
for name in "${names[@]}"; do
  if [[ $name =~ ^[0-9.]+$|: ]]; then sans+=("IP:$name"); else sans+=("DNS:$name"); fi
done
mkdir -p "$STATE"
cd "$STATE"

if [[ ! -f ca.key ]]; then
  openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -keyout ca.key -out ca.crt \
    -subj /CN=nestfl-ca 2> /dev/null
fi
openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr \
  -subj "/CN=${names[0]}" 2> /dev/null
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days "${DAYS:-90}" \
  -out server.pem -extfile <(echo "subjectAltName=$(IFS=,; echo "${sans[*]}")") 2> /dev/null
rm server.csr
echo "$STATE/server.pem: ${sans[*]}"

#!/usr/bin/env bash
# The SuperLink, over TLS, for registered SuperNodes alone. Needs ca.crt, server.pem and server.key.
#
#   deploy/superlink.sh                         this machine only
#   BIND=0.0.0.0 deploy/superlink.sh            other machines too
#
# Registrations and the list of runs are in $STATE/superlink.db and outlive it. Run directories are
# made in `runs` below the directory that it is started in, unless a run says otherwise.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
[[ -f $STATE/server.pem ]] || die "no $STATE/server.pem: run deploy/certificates.sh first"
[[ $(openssl x509 -in "$STATE/server.pem" -noout -pubkey) == \
   $(openssl pkey -in "$STATE/server.key" -pubout) ]] ||
  die "$STATE/server.key is not the key of server.pem: run deploy/certificates.sh again"

# Who trains, what was submitted and all messages are in the database: its owner's alone. SQLite
# gives the files beside it the same mode.
(umask 077; touch "$STATE/superlink.db")
chmod go= "$STATE"/superlink.db* "$STATE/server.key"

exec flower-superlink \
  --host "${BIND:-127.0.0.1}" --port "$LINK_PORT" \
  --ssl-ca-certfile "$STATE/ca.crt" --ssl-certfile "$STATE/server.pem" \
  --ssl-keyfile "$STATE/server.key" \
  --enable-supernode-auth \
  --disable-runtime-dependency-installation \
  --database "$STATE/superlink.db" "$@"

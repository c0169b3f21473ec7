#!/usr/bin/env bash
# The SuperLink, over TLS, for registered SuperNodes alone. It listens on loopback, and answers to its
# own user: devices come in by deploy/proxy.sh, operators submit here. Needs what certificates.sh made.
#
#   deploy/superlink.sh
#   PROXY_USER=www-data deploy/superlink.sh     where nginx runs as another user
#
# Registrations and the list of runs are in $STATE/superlink.db and outlive it. Run directories are
# made in `runs` below the directory that it is started in, unless a run says otherwise.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
check_certificate

# Who trains, what was submitted and all messages are in the database, what came of it in `runs`: its
# owner's alone. SQLite gives the files beside the database the same mode.
umask 077
touch "$STATE/superlink.db"
chmod go= "$STATE"/superlink.db* "$STATE/server.key"

exec nestfl-superlink \
  --host 127.0.0.1 --port "$CONTROL_PORT" \
  --ssl-ca-certfile "$STATE/ca.crt" --ssl-certfile "$STATE/server.pem" \
  --ssl-keyfile "$STATE/server.key" \
  --enable-supernode-auth \
  --disable-runtime-dependency-installation \
  --database "$STATE/superlink.db" "$@"

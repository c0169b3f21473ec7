#!/usr/bin/env bash
# The one public port of the server: nginx in front of the SuperLink, which lets SuperNodes through
# and nothing else. Needs nginx, and the certificates of the SuperLink.
#
#   deploy/proxy.sh                             this machine only
#   BIND=0.0.0.0 deploy/proxy.sh                other machines too
#   CLIENT_CERTIFICATES=on deploy/proxy.sh      only those with a certificate of certificates.sh
#
# For each address: RATE requests a second (500, and BURST at once: 1000), CONNECTIONS at once (64).
# No request is larger than BODY (8m: Flower sends arrays in pieces of 5 MiB).
set -euo pipefail
source "$(dirname "$0")/settings.sh"
PATH=$PATH:/usr/sbin
command -v nginx > /dev/null || die "no nginx: install it (Debian: apt-get install nginx-light)"
check_certificate

case ${CLIENT_CERTIFICATES:-off} in
  on) verify="ssl_client_certificate ../ca.crt; ssl_verify_client on;" ;;
  off) verify= ;;
  *) die "CLIENT_CERTIFICATES is '$CLIENT_CERTIFICATES': expected on or off" ;;
esac
umask 077  # what is on its way may pass through files here
mkdir -p "$STATE/nginx"
sed -e "s|@CLIENT_CERTIFICATES@|$verify|" \
  -e "s|@BIND@|${BIND:-127.0.0.1}|" -e "s|@LINK_PORT@|$LINK_PORT|" \
  -e "s|@CONTROL_PORT@|$CONTROL_PORT|" -e "s|@BODY@|${BODY:-8m}|" -e "s|@RATE@|${RATE:-500}|" \
  -e "s|@BURST@|${BURST:-1000}|" -e "s|@DELAY@|$((${BURST:-1000} / 2))|" -e "s|@CONNECTIONS@|${CONNECTIONS:-64}|" \
  "$APP/deploy/nginx.conf" > "$STATE/nginx/nginx.conf"

# As its own user, which the SuperLink answers to. Started by root it would change to another; better
# let none of all this be root's.
user=$( ((EUID)) || echo "user $(id -un) $(id -gn);")
exec nginx -p "$STATE/nginx/" -c "$STATE/nginx/nginx.conf" -e stderr -g "daemon off; $user"

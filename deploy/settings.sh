# What all scripts here share. Each line is a default: set the variable to change it.
APP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)   # the checkout
STATE=$(realpath -m "${STATE:-$APP/deploy/state}")     # keys, certificates, the SuperLink's database
LINK_HOST=${LINK_HOST:-127.0.0.1}                      # the fleet's door, as devices reach it
LINK_PORT=${LINK_PORT:-8000}
CONTROL_PORT=${CONTROL_PORT:-8001}                     # the SuperLink itself, on loopback

export FLWR_HOME=${FLWR_HOME:-$STATE/flwr}             # not ~/.flwr: that is for simulations
export FLWR_TELEMETRY_ENABLED=${FLWR_TELEMETRY_ENABLED:-0}
export FLWR_DISABLE_UPDATE_CHECK=${FLWR_DISABLE_UPDATE_CHECK:-1}
[[ -d $APP/.venv/bin ]] && PATH=$PATH:$APP/.venv/bin   # after a virtualenv that is active

# Tells `flwr` where the SuperLink is, on its own machine: the connection "nestfl".
name_link() {
  mkdir -p "$FLWR_HOME"
  cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "nestfl"

[superlink.nestfl]
address = "127.0.0.1:$CONTROL_PORT"
root-certificates = "$STATE/ca.crt"
TOML
}

# Say what is in the way of a device, or of an operator: 1 if the SuperLink may come, 2 if it is wrong.
check_link() { python3 "$APP/deploy/check_link.py" "$LINK_HOST" "$LINK_PORT" "$STATE/ca.crt" "$@"; }
check_control() { python3 "$APP/deploy/check_link.py" 127.0.0.1 "$CONTROL_PORT" "$STATE/ca.crt"; }

check_certificate() {
  [[ -f $STATE/server.pem ]] || die "no $STATE/server.pem: run deploy/certificates.sh first"
  [[ $(openssl x509 -in "$STATE/server.pem" -noout -pubkey) == \
     $(openssl pkey -in "$STATE/server.key" -pubout) ]] ||
    die "$STATE/server.key is not the key of server.pem: run deploy/certificates.sh again"
}

die() { echo "$*" >&2; exit 1; }

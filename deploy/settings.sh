# What all scripts here share. Each line is a default: set the variable to change it.
APP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)   # the checkout
STATE=$(realpath -m "${STATE:-$APP/deploy/state}")     # keys, certificates, the SuperLink's database
LINK_HOST=${LINK_HOST:-127.0.0.1}                      # the SuperLink, as the others reach it
LINK_PORT=${LINK_PORT:-8000}

export FLWR_HOME=${FLWR_HOME:-$STATE/flwr}             # not ~/.flwr: that is for simulations
export FLWR_TELEMETRY_ENABLED=${FLWR_TELEMETRY_ENABLED:-0}
export FLWR_DISABLE_UPDATE_CHECK=${FLWR_DISABLE_UPDATE_CHECK:-1}
[[ -d $APP/.venv/bin ]] && PATH=$PATH:$APP/.venv/bin   # after a virtualenv that is active

# Tells `flwr` where the SuperLink is: the connection "nestfl".
name_link() {
  mkdir -p "$FLWR_HOME"
  cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "nestfl"

[superlink.nestfl]
address = "$LINK_HOST:$LINK_PORT"
root-certificates = "$STATE/ca.crt"
TOML
}

# Says what is in the way of a connection to the SuperLink: 1 if it may come, 2 if it is wrong.
check_link() { python3 "$APP/deploy/check_link.py" "$LINK_HOST" "$LINK_PORT" "$STATE/ca.crt"; }

die() { echo "$*" >&2; exit 1; }

#!/usr/bin/env bash
# The service of compose.yaml as processes of this machine, where no container engine is:
#
#     PostgreSQL ◀── MLflow ◀── Ray head ◀── Ray worker 1 … N          each waited for until it answers
#
#     docker/up.sh [--state DIRECTORY] [--workers N] [--cpus N|all] [--upgrade] [--only database]
#
#     --state      where data, secrets, logs and pids lie [AUTOTUNE_STATE, else /var/lib/autotune-service; not root:
#                  ~/.local/state/autotune-service]
#     --workers    Ray workers [as many as were started last, else 1]; fewer than run: the last ones are ended
#     --cpus       cores each worker offers from its next start on [as said last, else all]
#     --upgrade    bring MLflow's database up to the MLflow that is installed; back it up first
#     --only       nothing but PostgreSQL, to restore a backup into
#
# All of it listens on 127.0.0.1. Ports are the usual ones where they are free, others where not, or what MLFLOW_PORT,
# RAY_DASHBOARD_PORT, RAY_PORT and AUTOTUNE_DB_PORT say; once chosen they are kept. Called again it starts what does not run.
# Needs mlflow, ray[default] and psycopg2 (pip install '.[service]' in the repository) and PostgreSQL's server (apt install postgresql).
set -euo pipefail
umask 077
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/processes.sh"

state=$(default_state) workers="" cpus="" upgrade="" only=""
while (($#)); do
    case $1 in
    --state | --workers | --cpus | --only)
        (($# > 1)) || fail "$1 needs a value" "docker/up.sh --workers 2"
        declare "${1#--}=$2"
        shift 2
        ;;
    --upgrade)
        upgrade=yes
        shift
        ;;
    *) fail "unknown option $1" "see the first lines of $0" ;;
    esac
done
[[ $workers =~ ^[0-9]{0,3}$ ]] || fail "--workers is '$workers', which is no number" "docker/up.sh --workers 2"
[[ $cpus =~ ^([0-9]*|all)$ ]] || fail "--cpus is '$cpus', neither a number nor all" "docker/up.sh --cpus 4"
[[ -z $only || $only == database ]] || fail "--only is '$only'" "docker/up.sh --only database"

for program in python ray mlflow; do
    command -v "$program" >/dev/null || fail "$program is not on PATH" "activate the environment autotune is installed in"
done
python -c 'import psycopg2, ray.dashboard.optional_deps' 2>/dev/null || fail "this environment lacks what the service needs" "pip install '.[service]' in the repository"
PATH=$(postgresql "$state/database" /usr/lib/postgresql) # where Debian keeps it, off PATH
command -v initdb >/dev/null || fail "PostgreSQL's server is not installed" "apt install postgresql"

mkdir -p "$state"/{logs,pids,ports,artifacts,runs}
state=$(cd "$state" && pwd -P)
exec 9>"$state/lock"
flock 9
[[ -z $workers ]] || echo "$workers" >"$state/workers"
[[ ! -s $state/workers ]] || workers=$(<"$state/workers")
[[ -n $workers ]] || workers=$(find "$state/pids" -name 'ray-worker-*' | wc -l) # one that an older script started
((workers)) || workers=1
[[ -z $cpus ]] || echo "$cpus" >"$state/cpus"
[[ ! -s $state/cpus ]] || cpus=$(<"$state/cpus")
"$here/secrets.sh" "$state/secrets"

# PostgreSQL refuses to run as root, so root runs it as the user that Debian's package makes.
as_database=()
if ((EUID == 0)); then
    id postgres >/dev/null 2>&1 || fail "there is no user 'postgres' to run PostgreSQL as" "apt install postgresql, or call this as another user than root"
    as_database=(setpriv --reuid postgres --regid postgres --init-groups --)
    chmod 711 "$state"
    "${as_database[@]}" test -x "$state" || fail "user 'postgres' cannot enter $state" "choose another directory with --state"
fi

port() { # variable, usual port: sets and keeps it
    local file=$state/ports/$1
    if [[ -n ${!1:-} ]]; then
        if [[ -s $file && ${!1} != "$(<"$file")" ]] && anything_runs; then
            fail "$1 is ${!1}, but the service runs with $(<"$file")" "$here/down.sh --state $state, then this again; or leave $1 out"
        fi
        echo "${!1}" >"$file"
    elif [[ ! -s $file ]]; then
        python "$here/free_port.py" "$2" >"$file"
    fi
    declare -gx "$1=$(<"$file")"
}
port AUTOTUNE_DB_PORT 5432
port MLFLOW_PORT 5000
port RAY_PORT 6379
port RAY_DASHBOARD_PORT 8265
port RAY_HEAD_AGENT_PORT 0 # nobody asks for it by number, and the usual one is that of every other Ray on this machine

database() { # an empty one if there is none; then the server
    local data=$state/database
    if [[ ! -s $data/PG_VERSION ]]; then
        rm -rf "$data"
        install --directory --mode 700 "$data"
        install --mode 600 "$state/secrets/db_password" "$state/pw"
        ((EUID != 0)) || chown postgres "$data" "$state/pw"
        (cd / && "${as_database[@]}" "$(command -v initdb)" --pgdata "$data" --username mlflow --pwfile "$state/pw" --auth scram-sha-256 \
            --data-checksums --encoding UTF8 --locale C.UTF-8) >>"$state/logs/initdb.log" 2>&1 || fail "initdb failed" "see $state/logs/initdb.log"
        rm -f "$state/pw"
    fi
    start postgres "${as_database[@]}" "$(command -v postgres)" -D "$data" -p "$AUTOTUNE_DB_PORT" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories=
    wait_for postgres 60 pg_isready --host 127.0.0.1 --port "$AUTOTUNE_DB_PORT" --username mlflow --dbname postgres

    echo "127.0.0.1:$AUTOTUNE_DB_PORT:*:mlflow:$(<"$state/secrets/db_password")" >"$state/secrets/pgpass"
    cat >"$state/mlflow.env" <<ENV
# For docker/services/mlflow (upgrade, gc) and PostgreSQL's own programs (pg_dump). It says where the secrets lie, not what they are.
export AUTOTUNE_DB_HOST=127.0.0.1 AUTOTUNE_DB_PORT=$AUTOTUNE_DB_PORT
export AUTOTUNE_ARTIFACTS="$state/artifacts" MLFLOW_HOST=127.0.0.1 MLFLOW_PORT=$MLFLOW_PORT
export PGHOST=127.0.0.1 PGPORT=$AUTOTUNE_DB_PORT PGUSER=mlflow PGDATABASE=mlflow PGPASSFILE="$state/secrets/pgpass"
ENV
    local programs
    programs=$(dirname "$(command -v postgres)")
    if [[ $programs == /usr/lib/postgresql/* ]]; then # else they are on PATH already, perhaps beside another python
        echo "export PATH=\"$programs:\$PATH\"" >>"$state/mlflow.env"
    fi
    # shellcheck source=/dev/null
    . "$state/mlflow.env"
    local sql=(psql --no-psqlrc --dbname postgres --tuples-only --no-align --command)
    if [[ $("${sql[@]}" "SELECT 1 FROM pg_database WHERE datname = 'mlflow'") != 1 ]]; then
        "${sql[@]}" "CREATE DATABASE mlflow" >/dev/null
    fi
}

tracking() {
    if [[ -n $upgrade ]]; then
        stop mlflow TERM
        "$here/services/mlflow" upgrade >>"$state/logs/mlflow.log" 2>&1 || fail "the upgrade of MLflow's database failed" "see $state/logs/mlflow.log"
    fi
    start mlflow "$here/services/mlflow" server
    wait_for mlflow 180 "$here/services/healthy" "http://127.0.0.1:$MLFLOW_PORT/health"
}

cluster() {
    # shellcheck disable=SC2153 # set by port
    cat >"$state/env" <<ENV
# For those who submit runs: . $state/env
export RAY_API_SERVER_ADDRESS=http://127.0.0.1:$RAY_DASHBOARD_PORT RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$state/secrets/ray_token"
export MLFLOW_TRACKING_URI=http://127.0.0.1:$MLFLOW_PORT
ENV
    # shellcheck source=/dev/null
    . "$state/env"
    unset RAY_API_SERVER_ADDRESS RAY_ADDRESS # a client's; Ray's own processes would take them for theirs
    RAY_TEMP_DIR=$(ray_directory)
    export AUTOTUNE_RUNS=$state/runs RAY_NODE_IP=127.0.0.1 RAY_DASHBOARD_HOST=127.0.0.1 RAY_HEAD=127.0.0.1:$RAY_PORT RAY_TEMP_DIR
    private=$(dirname "$RAY_TEMP_DIR")
    mkdir -m 700 "$private" 2>/dev/null || [[ -d $private && ! -L $private && -O $private ]] || fail "$private is not this user's" "remove it, or choose another directory with --state"
    chmod 700 "$private"
    mkdir -p "$RAY_TEMP_DIR"
    RAY_AGENT_PORT=$RAY_HEAD_AGENT_PORT start ray-head "$here/services/ray-head"
    # Its agent starts runs: a head that answers without it refuses them.
    wait_for ray-head 120 "$here/services/healthy" "http://127.0.0.1:$RAY_DASHBOARD_PORT/api/gcs_healthz" \
        "http://127.0.0.1:$RAY_HEAD_AGENT_PORT/api/local_raylet_healthz"

    local n agent
    for ((n = 1; n <= workers; n++)); do
        agent=RAY_WORKER_${n}_AGENT_PORT
        port "$agent" 0
        RAY_AGENT_PORT=${!agent} RAY_WORKER_CPUS=${cpus#all} start "ray-worker-$n" "$here/services/ray-worker"
        # Not all at once: Ray gives a node 30 s to start (ray/_private/node.py), which on a busy machine they would take from each other.
        wait_for "ray-worker-$n" 120 "$here/services/healthy" "http://127.0.0.1:${!agent}/api/local_raylet_healthz"
    done
    while [[ -e $state/pids/ray-worker-$n ]]; do
        stop "ray-worker-$n" TERM
        n=$((n + 1))
    done
}

database
[[ -z $only ]] || exit 0
tracking
cluster
cat <<SUMMARY
MLflow      http://127.0.0.1:$MLFLOW_PORT
Ray         http://127.0.0.1:$RAY_DASHBOARD_PORT, $workers worker(s)
to use it   . $state/env
to end it   $here/down.sh --state $state
SUMMARY

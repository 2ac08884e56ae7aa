# shellcheck shell=bash
# shellcheck disable=SC2154 # state is set by who reads this
# Services as processes of this machine, for up.sh and down.sh: started apart from the terminal, known by pid and start time, ended
# with everything they have started. $state is the service's directory.

fail() { # what, then what to do
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    shift
    printf '  what to do: %s\n' "$@" >&2
    exit 2
}

# A pid is reused over time; together with its start time it identifies one process.
identity() { # pid
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    set -- "$1" "${stat##*) }"
    # shellcheck disable=SC2086 # the fields of stat, as words
    set -- "$1" $2
    [[ $2 != Z ]] && echo "$1 ${21}"
}

pid_of() { # name: the pid of a service that runs, or nothing
    local known
    known=$(cat "$state/pids/$1" 2>/dev/null) || return 1
    [[ -n $known && $(identity "${known%% *}") == "$known" ]] && echo "${known%% *}"
}

anything_runs() {
    local file
    for file in "$state"/pids/*; do
        if pid_of "$(basename "$file")" >/dev/null; then return 0; fi
    done
    return 1
}

start() { # name, command …: unless it runs
    local name=$1
    shift
    pid_of "$name" >/dev/null && return
    sweep "$name" # children that outlived a service which was killed hold its port
    AUTOTUNE_SERVICE=$state/$name setsid "$@" >>"$state/logs/$name.log" 2>&1 </dev/null 9>&- &
    identity $! >"$state/pids/$name.new" || true # it may have ended already: wait_for says so
    mv "$state/pids/$name.new" "$state/pids/$name"
}

wait_for() { # name, seconds, question …: until the question is answered with 0
    local name=$1 deadline=$((SECONDS + $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ! pid_of "$name" >/dev/null; then
            tail -n 20 "$state/logs/$name.log" >&2
            fail "$name has ended; above are the last lines it wrote" "see $state/logs/$name.log"
        fi
        ((SECONDS < deadline)) || fail "$name does not answer" "see $state/logs/$name.log"
        sleep 0.3
    done
}

descendants() { # pids …
    local pid
    for pid in "$@"; do
        # shellcheck disable=SC2046 # one word a pid
        echo "$pid" $(descendants $(cat "/proc/$pid/task/"*/children 2>/dev/null))
    done
}

stop() { # name, signal: it and all it has started; after 20 s without asking
    local name=$1 signal=$2 pid family process deadline
    if pid=$(pid_of "$name"); then
        family=()
        for process in $(descendants "$pid"); do family+=("$(identity "$process" || true)"); done
        kill -"$signal" "$pid" 2>/dev/null || true
        deadline=$((SECONDS + 20))
        while pid_of "$name" >/dev/null && ((SECONDS < deadline)); do sleep 0.2; done
        end "${family[@]}"
    fi
    sweep "$name"
    rm -f "$state/pids/$name"
}

end() { # identities …: kill what is left of them
    local known
    for known in "$@"; do
        if [[ -n $known && $(identity "${known%% *}") == "$known" ]]; then kill -KILL "${known%% *}" 2>/dev/null || true; fi
    done
}

sweep() { # name: kill what that service has started and let go; it carries the service's mark
    local environ
    for environ in /proc/[0-9]*/environ; do
        if tr '\0' '\n' 2>/dev/null <"$environ" | grep -qxF "AUTOTUNE_SERVICE=$state/$1"; then
            kill -KILL "$(basename "$(dirname "$environ")")" 2>/dev/null || true
        fi
    done
}

default_state() {
    if [[ -n ${AUTOTUNE_STATE:-} ]]; then
        echo "$AUTOTUNE_STATE"
    elif ((EUID == 0)); then
        echo /var/lib/autotune-service
    else
        echo "${XDG_STATE_HOME:-$HOME/.local/state}/autotune-service"
    fi
}

# PATH with PostgreSQL's programs: of the version that made the data, which no other can read; else last, and the newest there is.
postgresql() { # data directory, where the versions lie
    local made_by
    made_by=$2/$(cat "$1/PG_VERSION" 2>/dev/null || true)/bin
    if [[ -x $made_by/postgres ]]; then
        echo "$made_by:$PATH"
    else
        echo "$PATH:$(printf '%s\n' "$2"/*/bin | sort -V | tail -n 1)"
    fi
}

# Ray's sockets lie in it, and a socket's whole path may have 107 characters.
# Ray opens all below it to everyone, runs' files included: its parent is private (up.sh).
ray_directory() { echo "/tmp/autotune-ray-$(cksum <<<"$state" | cut -d ' ' -f 1)/r"; }

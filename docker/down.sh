#!/usr/bin/env bash
# Ends what up.sh has started, and everything that those processes have started; runs that were going on are killed and can be
# resumed. Data, secrets and logs stay.
#
#     docker/down.sh [--state DIRECTORY] [--purge]
#
#     --purge    remove data, secrets and logs as well: all studies are gone; other files there (backups) stay
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/processes.sh"

state=$(default_state) purge=""
while (($#)); do
    case $1 in
    --state)
        (($# > 1)) || fail "--state needs a value" "docker/down.sh --state DIRECTORY"
        state=$2
        shift 2
        ;;
    --purge)
        purge=yes
        shift
        ;;
    *) fail "unknown option $1" "see the first lines of $0" ;;
    esac
done
[[ -d $state/pids ]] || fail "$state holds no service" "name the directory that up.sh was given with --state"
state=$(cd "$state" && pwd -P)
exec 9>"$state/lock"
flock 9

for file in "$state"/pids/ray-worker-*; do
    if [[ -e $file ]]; then stop "$(basename "$file")" TERM; fi
done
stop ray-head TERM
stop mlflow TERM
stop postgres INT # ends open sessions and writes everything out; TERM would wait for them
if [[ -n $purge ]]; then
    rm -rf "$(dirname "$(ray_directory)")" "$state"/{database,artifacts,runs,secrets,logs,pids,ports,cpus,workers,env,mlflow.env,pw,lock}
    rmdir "$state" 2>/dev/null || find "$state" -mindepth 1 -maxdepth 1 -printf 'left, because the service has not made it: %p\n'
fi

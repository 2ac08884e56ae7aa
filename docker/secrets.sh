#!/usr/bin/env bash
# Makes the service's two secrets, each in a file of its own; what is there already is kept.
#
#     docker/secrets.sh [--for-compose] DIRECTORY
#
#     db_password    of PostgreSQL, between it and MLflow
#     ray_token      of the Ray cluster: whoever has it can run commands there; clients need it (--token-file)
#
# The directory is closed to others and so are the files (0600). Compose hands files to containers with the owner and mode they have
# here, and the containers run as users of their own: with --for-compose the files are readable (0444) inside the closed directory.
set -euo pipefail
umask 077

mode=600
if [[ ${1:-} == --for-compose ]]; then
    mode=444
    shift
fi
directory=${1:?"the directory for the secrets"}

mkdir -p "$directory"
chmod 700 "$directory"
for name in db_password ray_token; do
    file=$directory/$name
    if [[ ! -s $file ]]; then
        head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$file.new"
        mv "$file.new" "$file"
    fi
    chmod "$mode" "$file"
done

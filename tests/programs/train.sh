#!/bin/sh
# What a cluster's users start: settings, then Python, then what comes after.
set -e
export PYTHONUNBUFFERED=1
cd "$(dirname "$0")"
python -m package.train "$@"
echo finished

#!/bin/sh
# Prints which lock this machine's pip can install: `cpu` where it finds the CPU build of torch for its interpreter
# (a wheels folder or an index of its configuration), else `cuda`, the build that the public index serves.
#
#   requirements/variant.sh .venv/bin/pip
set -eu
pip=${1:?usage: variant.sh PIP}
torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$(dirname "$0")/train-cpu.lock")
if "$pip" install --quiet --dry-run --no-deps --ignore-installed "$torch" >/dev/null 2>&1; then
    echo cpu
else
    echo cuda
fi

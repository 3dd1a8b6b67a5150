#!/usr/bin/env bash
# Resolves pyproject.toml into the locks; reads metadata only, installs nothing. Needs `uv` on the PATH.
#
#   requirements/lock.sh [WHEELS]     WHEELS: a folder with the CPU build of torch, if no configured index has it
#
# train-cuda.lock   the extra `train`, with the torch that the public index serves (on Linux: CUDA libraries, several GB)
# train-cpu.lock    the same with the CPU build of torch. The exact local version, so that pip can never take the other
#                   build, whose CUDA packages are not listed here
# dev.lock          what the program and its tools need, without torch: the base install, the extra `dev`, the build backend
set -euo pipefail
cd "$(dirname "$0")/.."
torch=2.13.0

compile() { # compile OUTPUT ARGUMENT...: requirements on standard input
    local output=$1
    shift
    uv pip compile - --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url \
        --custom-compile-command requirements/lock.sh "$@" -o "$output"
}

declared() { # declared TABLE: the requirements of [project] dependencies, an extra, or the build backend
    python3 - "$1" <<'PYTHON'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    tree = tomllib.load(file)
project = tree["project"]
tables = {"base": project["dependencies"], "build": tree["build-system"]["requires"], **project["optional-dependencies"]}
print(*tables[sys.argv[1]], sep="\n")
PYTHON
}

cuda=requirements/train-cuda.lock
declared train | compile "$cuda" --constraint <(echo "torch==$torch")
# The other two agree with the first on every package they share.
declared train | compile requirements/train-cpu.lock --constraint "$cuda" --constraint <(echo "torch==$torch+cpu") \
    ${1:+--find-links "$1"}
{ for table in base dev build; do declared "$table"; done; echo editables; } |
    compile requirements/dev.lock --constraint "$cuda"

#!/usr/bin/env bash
# Bootstraps a Debian base image without an image registry. Does nothing when the image is there.
#
#   tests/lab/base.sh SUITE IMAGE [PACKAGE...]      say: bookworm muster-lab-base
#
# Packages come from this machine's own Debian mirror, or from MUSTER_LAB_MIRROR=URI. Needs root and debootstrap.
set -euo pipefail
suite=${1:?SUITE is missing} image=${2:?IMAGE is missing}
packages=$(echo ca-certificates python3 python3-venv python3-pip "${@:3}" | tr ' ' ',')

say() { printf 'base: %s\n' "$*" >&2; }

mirror() { # the first source of a plain suite: security, updates and backports are no base
    local files
    files=$(find /etc/apt -maxdepth 2 \( -name '*.sources' -o -name '*.list' \))
    [ -n "$files" ] || return 0
    # shellcheck disable=SC2086 - apt reads no file whose name has a space
    awk '
        FNR == 1 || /^$/ { uri = "" }
        FILENAME ~ /sources$/ && /^URIs:/ { uri = $2 }
        FILENAME ~ /sources$/ && /^Suites: *[a-z]+( |$)/ && uri { print uri; exit }
        FILENAME ~ /list$/ && /^deb / { sub(/\[[^]]*\] */, ""); if ($3 ~ /^[a-z]+$/ && $4 == "main") { print $2; exit } }
    ' $files
}

docker image inspect "$image" >/dev/null 2>&1 && exit 0
if ! command -v debootstrap >/dev/null || [ "$(id -u)" != 0 ]; then
    say "$image cannot be made: it needs root and debootstrap"
    say "next: sudo tests/lab/engine.sh install"
    exit 3
fi
uri=${MUSTER_LAB_MIRROR:-$(mirror)}
if [ -z "$uri" ]; then
    say "no Debian mirror in /etc/apt; next: set MUSTER_LAB_MIRROR=URI"
    exit 3
fi

root=$(mktemp -d "${TMPDIR:-/var/tmp}/muster-base.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
say "bootstrapping $suite as $image (about a minute)"
bootstrap() { debootstrap --variant=minbase --include="$packages" "$@" "$suite" "$root" "$uri" >"$root.log" 2>&1; }
# A mirror may drop one of two hundred downloads; what has arrived is kept and checked, so going on fetches the rest.
bootstrap --download-only || say "$(tail -n 1 "$root.log"); once more"
bootstrap || {
    say "debootstrap failed; the end of $root.log:"
    tail -n 20 "$root.log" >&2
    exit 3
}
rm -rf "$root.log" "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
# What would tell two machines apart or reach back into this one does not belong into a base.
rm -f "$root/etc/machine-id"
# Empty, not absent: a build step would have to make them, and date the folder by that.
for file in hostname hosts resolv.conf; do : >"$root/etc/$file"; done
tar -C "$root" --sort=name --numeric-owner -c . |
    docker import --change 'CMD ["bash"]' --message "debootstrap $suite" - "$image" >/dev/null
say "$image is ready"

#!/usr/bin/env bash
# Brings a Docker Engine with compose v2 and buildx to an empty Debian 12 machine, and starts it. Idempotent.
#
#   tests/lab/engine.sh install    the packages the lab needs (root, apt)
#   tests/lab/engine.sh start      starts dockerd by hand where nothing has; waits until it answers
#   tests/lab/engine.sh stop       stops the engine that `start` began, by its pid file, and no other
#
# Debian 12 ships engine 20.10 and compose v1. The next suite's packages need only libc6 >= 2.34, so they install
# beside Debian 12's own runc: the suite is added with a low pin, and only the packages named below come from it.
set -euo pipefail
STATE=${MUSTER_ENGINE_STATE:-/var/lib/muster-engine}

say() { printf 'engine: %s\n' "$*" >&2; }

install() {
    export DEBIAN_FRONTEND=noninteractive
    local missing=()
    for tool in sshd:openssh-server ssh:openssh-client debootstrap:debootstrap lspci:pciutils iptables:iptables \
        sudo:sudo ip:iproute2 make:make git:git; do
        command -v "${tool%%:*}" >/dev/null 2>&1 || [ -x "/usr/sbin/${tool%%:*}" ] || missing+=("${tool##*:}")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        say "installing ${missing[*]}"
        apt-get update -q
        apt-get install -q -y --no-install-recommends "${missing[@]}"
    fi
    if command -v dockerd >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; then
        return
    fi
    . /etc/os-release
    local suite="" packages=(docker.io docker-cli containerd docker-buildx docker-compose)
    if [ "${VERSION_CODENAME:-}" = bookworm ]; then
        suite=trixie
        local stanza
        # This machine's own mirror: the first stanza (or one-line entry) that serves bookworm's main archive.
        stanza=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null |
            awk -v RS= '/Suites:[^\n]*bookworm( |\n|$)/ && !/security/ {print; exit}' || true)
        if [ -n "$stanza" ]; then
            printf '%s\n' "$stanza" | sed -e '/^#/d' -e 's/^Suites:.*/Suites: trixie/' \
                >/etc/apt/sources.list.d/muster-trixie.sources
        else
            grep -hE '^deb .* bookworm( |$)' /etc/apt/sources.list | head -n 1 | sed 's/ bookworm / trixie /' \
                >/etc/apt/sources.list.d/muster-trixie.list
        fi
        printf 'Package: *\nPin: release n=trixie\nPin-Priority: 100\n' >/etc/apt/preferences.d/muster-trixie
    fi
    say "installing ${packages[*]}${suite:+ from $suite}"
    apt-get update -q
    apt-get install -q -y --no-install-recommends "${packages[@]/%/${suite:+/$suite}}"
}

start() {
    if docker info >/dev/null 2>&1; then
        return
    fi
    mkdir -p "$STATE"
    # A machine that went down hard leaves pid files whose numbers other processes have by now.
    local file name
    for file in "$STATE/dockerd.pid" /var/run/docker/containerd/containerd.pid; do
        [ -s "$file" ] || continue
        name=$(cat "/proc/$(tr -cd 0-9 <"$file")/comm" 2>/dev/null || true)
        case $name in dockerd | containerd) ;; *) rm -f "$file" ;; esac
    done
    setsid dockerd --data-root "$STATE/data" --pidfile "$STATE/dockerd.pid" >"$STATE/dockerd.log" 2>&1 </dev/null &
    for _ in $(seq 120); do
        docker info >/dev/null 2>&1 && return
        sleep 0.5
    done
    say "dockerd did not answer within 60 s; the end of its log:"
    tail -n 30 "$STATE/dockerd.log" >&2
    return 3
}

stop() {
    [ -s "$STATE/dockerd.pid" ] || return 0
    local pid
    pid=$(tr -cd 0-9 <"$STATE/dockerd.pid")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null || true)" = dockerd ] || return 0 # the number is somebody else's by now
    kill -TERM "$pid" 2>/dev/null || return 0
    for _ in $(seq 60); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.5
    done
}

case "${1:-}" in
install | start | stop) "$1" ;;
*)
    sed -n '2,9p' "$0" >&2
    exit 2
    ;;
esac

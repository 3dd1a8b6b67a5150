#!/bin/sh
# Starts the host's own engine and sshd. The engine's containers live below this host's own control group, so that
# pausing or removing the host takes them along.
set -eu

# A killed host leaves these behind, and a new process may have the old number.
rm -f /run/docker.pid /run/docker/containerd/containerd.pid
mkdir -p /run/sshd

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then # version 2: a group with children holds no processes itself
    own=$(sed -n 's/^0:://p' /proc/self/cgroup)
    mkdir -p "/sys/fs/cgroup$own/init"
    while read -r pid; do
        echo "$pid" >"/sys/fs/cgroup$own/init/cgroup.procs" 2>/dev/null || :
    done <"/sys/fs/cgroup$own/cgroup.procs"
    sed -e 's/ / +/g' -e 's/^/+/' "/sys/fs/cgroup$own/cgroup.controllers" >"/sys/fs/cgroup$own/cgroup.subtree_control"
else
    own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
fi

# No bridge and no firewall rules: containers of a run use the host's network, as on a real cluster.
dockerd --iptables=false --bridge=none --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent="$own/engine" \
    >/var/log/dockerd.log 2>&1 &
exec /usr/sbin/sshd -D -e

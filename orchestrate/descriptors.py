"""Makes room for many connections: raises this process's own limit of open files. Changes nothing that outlives it."""

from __future__ import annotations

import resource

from orchestrate.errors import CannotTell

A_HOST = 12  # a socket, a pipe for each channel, a ProxyCommand's pair; rounded up
OURS = 64  # what is open anyway: output, evidence, logs


def room_for(hosts: int) -> int:
    """Raise the soft limit as far as so many hosts at once need it, and return how many fit.

    Raise CannotTell when the hard limit leaves no room for even one.
    """
    hosts = max(hosts, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OURS + hosts * A_HOST
    able = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < able:
        resource.setrlimit(resource.RLIMIT_NOFILE, (able, hard))
        soft = able
    fit = hosts if soft == resource.RLIM_INFINITY else min(hosts, (soft - OURS) // A_HOST)
    if fit < 1:
        raise CannotTell(
            f"this process may open {soft} files, and needs {OURS + A_HOST} for a single host",
            where="ulimit -n",
            next_step=f"raise the hard limit: ulimit -Hn {OURS + hosts * A_HOST}",
        )
    return fit

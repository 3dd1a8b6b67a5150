"""The probe for mounts, run for real: a file system that never answers delays nothing but itself."""

import os
import shutil
import subprocess
import time

import pytest

from hostsetup.facts import mounts

LIST = """\
/dev/sda1 / ext4 rw 0 0
nas:/a /data nfs4 rw 0 0
nas:/b /with\\040blank nfs rw 0 0
dead:/c /stale nfs rw,hard 0 0
x:/d /bad fuse.sshfs rw 0 0
lxcfs /var/lib/lxcfs fuse.lxcfs rw 0 0
"""
STAT = """#!/bin/sh
case "$*" in
  *stale*) trap '' TERM; sleep 3; exit 0 ;;
  *bad*) exit 1 ;;
  *"/with blank"|*/data) exit 0 ;;
esac
exit 9
"""


@pytest.mark.parametrize("shell", [name for name in ("sh", "dash", "bash") if shutil.which(name)])
@pytest.mark.parametrize("limit", ["timeout 1", ""])
def test_a_silent_file_system_is_named_and_not_waited_for(tmp_path, shell, limit):
    (tmp_path / "mounts").write_text(LIST)
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "stat").chmod(0o755)
    (probe,) = mounts.PROBES
    command = probe.command.replace("/proc/mounts", f"{tmp_path}/mounts").replace("timeout 5", limit).replace("30", "6")
    began = time.monotonic()
    with (tmp_path / "out").open("wb") as out:  # what is left behind still holds the file, as in a real audit
        done = subprocess.run(
            [shell, "-c", command],
            stdout=out,
            check=False,
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            timeout=30,
        )
    told = mounts.parse_mounts((tmp_path / "out").read_text())
    assert done.returncode == 0
    assert time.monotonic() - began < 2.9
    assert told.silent == {"/stale"}
    assert told.failed == {"/bad"}
    assert told.asked == {"/data", "/with blank", "/stale", "/bad"}

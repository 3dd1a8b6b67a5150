"""The limit of open files is raised to what is needed; where that cannot be, fewer hosts are asked at once."""

import subprocess
import sys

import pytest

ASK = """
import resource, sys
soft, hard, hosts = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from orchestrate import descriptors
from orchestrate.errors import CannotTell
try:
    print(descriptors.room_for(hosts), *resource.getrlimit(resource.RLIMIT_NOFILE))
except CannotTell as error:
    print(error.what, error.next_step)
"""


def room(soft, hard, hosts):
    argv = [sys.executable, "-c", ASK, str(soft), str(hard), str(hosts)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("soft", "hard", "hosts", "told"),
    [
        (4096, 4096, 32, "32 4096 4096"),  # enough: untouched
        (256, 4096, 32, "32 448 4096"),  # raised as far as needed
        (256, 256, 32, "16 256 256"),  # not to be raised: fewer at once
        (100, 100, 32, "3 100 100"),
        (4096, 4096, 0, "1 4096 4096"),  # nobody to ask needs no room
    ],
)
def test_as_many_hosts_as_fit(soft, hard, hosts, told):
    assert room(soft, hard, hosts) == told


def test_no_room_for_one_host_is_told():
    assert "needs 76" in room(70, 70, 32)
    assert "ulimit -Hn 448" in room(70, 70, 32)

"""What a host sent is kept, whatever becomes of its connection afterwards."""

import base64
import json
import re

from orchestrate import collect, remote
from orchestrate.errors import RemoteError
from orchestrate.inventory import Host
from orchestrate.shell import Completed


class Slow:
    """A host that answers its program late, and is gone when its clock is asked once more."""

    def run(self, command, *, stdin=b"", **_):
        if command != "sh -s":
            raise RemoteError("closed", "the host closed the connection", where="gpu01", next_step="try again")
        mark = re.search(rb"^mark=(\w+)$", stdin, re.MULTILINE)[1]
        uname = base64.b64encode(b"Linux gpu01\n")
        frame = b"\n%b now 100.5\n\n%b uname 0 base64\n%b\n%b.err\n\n%b.end\n" % (mark, mark, uname, mark, mark)
        return Completed(0, frame, b"", span=(100.0, 105.0))

    def close(self):
        pass


def test_answers_outlive_a_connection_that_ends_while_the_clock_is_sampled(monkeypatch):
    monkeypatch.setattr(remote, "connect", lambda *_args, **_options: Slow())
    replies = collect.ask(Host("gpu01", "gpu01"), timeout_s=30).replies
    assert replies["uname"].stdout == b"Linux gpu01\n"
    assert replies["clock"].stdout.split() == [b"100.000000", b"100.5", b"105.000000"]
    assert "closed the connection" in json.loads(replies["ssh"].stdout)["error"]

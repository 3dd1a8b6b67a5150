"""A paramiko transport that sends nothing on a channel after its close. Knows no host and no key.

paramiko looks whether a channel is open, and then sends, without a lock over both; a close that comes between the two goes
out first. sshd ends the whole connection over one message for a channel that it has freed, and with it whatever else the
connection carries: every host behind a jump host, or every stream of an engine.
"""

from __future__ import annotations

from typing import Any

import paramiko
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_EXTENDED_DATA,
    MSG_CHANNEL_REQUEST,
    MSG_CHANNEL_WINDOW_ADJUST,
)

_OF_A_CHANNEL = {
    *(MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_EOF),
    *(MSG_CHANNEL_EXTENDED_DATA, MSG_CHANNEL_REQUEST, MSG_CHANNEL_WINDOW_ADJUST),
}


class Transport(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """paramiko's transport, with the order of its messages kept where they leave: there they are sent one by one."""

    def __init__(self, sock: Any, **options: Any) -> None:
        self._left: set[int] = set()  # the host's numbers of channels that we have closed
        super().__init__(sock, **options)
        security = self.get_security_options()
        # Their tag is checked in C. The MAC of the others is compared byte by byte in Python, a third of a packet's cost.
        security.ciphers = sorted(security.ciphers, key=lambda name: "-gcm@" not in name)

    def _send_message(self, data: paramiko.Message) -> None:
        """Send one message (the caller holds paramiko's lock for sending), unless its channel was closed before."""
        body = data.asbytes()
        if body[0] in _OF_A_CHANNEL:
            number = int.from_bytes(body[1:5], "big")
            if number in self._left:
                return
            if body[0] == MSG_CHANNEL_CLOSE:
                self._left.add(number)
        super()._send_message(data)

    def _parse_channel_open_success(self, m: paramiko.Message) -> None:
        """Note that the host gives a number to a new channel."""
        m.get_int()
        self._left.discard(m.get_int())
        m.rewind()
        super()._parse_channel_open_success(m)

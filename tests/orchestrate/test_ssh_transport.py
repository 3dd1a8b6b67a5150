"""Nothing is sent on a channel after its close: sshd would end the whole connection, with all that it carries."""

import socket

import paramiko
import pytest
from paramiko.common import (
    MSG_CHANNEL_CLOSE,
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EOF,
    MSG_CHANNEL_WINDOW_ADJUST,
    MSG_GLOBAL_REQUEST,
    cMSG_CHANNEL_OPEN,
)

from orchestrate.ssh.transport import Transport


@pytest.fixture
def sent(monkeypatch):
    ours, theirs = socket.socketpair()
    transport = Transport(ours)
    out = []
    monkeypatch.setattr(transport.packetizer, "send_message", lambda data: out.append(data.asbytes()))
    yield transport, out
    ours.close()
    theirs.close()


def message(kind, number):
    told = paramiko.Message()
    told.add_byte(bytes([kind]))
    told.add_int(number)
    told.add_string(b"x")
    return told


def opened(ours, theirs):
    told = paramiko.Message()
    for number in (ours, theirs, 1 << 20, 1 << 15):
        told.add_int(number)
    told.rewind()
    return told


@pytest.mark.parametrize("late", [MSG_CHANNEL_DATA, MSG_CHANNEL_EOF, MSG_CHANNEL_WINDOW_ADJUST, MSG_CHANNEL_CLOSE])
def test_what_comes_after_the_close_of_a_channel_is_dropped_and_other_channels_go_on(sent, late):
    transport, out = sent
    for kind, number in ((MSG_CHANNEL_DATA, 7), (MSG_CHANNEL_CLOSE, 7), (late, 7), (MSG_CHANNEL_DATA, 8)):
        transport._send_message(message(kind, number))
    assert [(body[0], body[4]) for body in out] == [
        (MSG_CHANNEL_DATA, 7),
        (MSG_CHANNEL_CLOSE, 7),
        (MSG_CHANNEL_DATA, 8),
    ]


def test_a_number_that_the_host_gives_again_is_a_new_channel(sent):
    transport, out = sent
    transport._send_message(message(MSG_CHANNEL_CLOSE, 7))
    transport._parse_channel_open_success(opened(0, 7))
    transport._send_message(message(MSG_CHANNEL_DATA, 7))
    assert [body[0] for body in out] == [MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA]


def test_what_belongs_to_no_channel_is_never_held_back(sent):
    transport, out = sent
    transport._send_message(message(MSG_CHANNEL_CLOSE, 7))
    for kind in (MSG_GLOBAL_REQUEST, cMSG_CHANNEL_OPEN[0]):
        transport._send_message(message(kind, 7))
    assert len(out) == 3

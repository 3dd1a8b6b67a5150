"""A host that means ill: sshd runs this in place of every command, with the word for what it is to do.

It reads the program that it is sent, mark and all, and may answer what it likes. It harms nothing on the machine.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ACTS = "\x1b]0;owned\x07 \x1b[2J\x1b[31m \x9b1;31m \u202eevil\u202c \x08\x08\r \u200b\ufeff"
RECORDED = Path(__file__).parents[1] / "machines" / "hgx-h100"
KINDS = (
    "banner", "escapes", "zeros", "forged", "endless", "complaints", "latin", "newlines", "large", "open", "middle",
    "dropped", "deep", "crowd", "silent", "trickle", "clock",
)  # fmt: skip


def main() -> None:
    kind = sys.argv[1]
    command = os.environ["SSH_ORIGINAL_COMMAND"]
    if kind == "banner":
        os.write(1, f"Welcome {ACTS}\n{'0' * 32} id 0 base64\n".encode() * 50)
        os.write(2, f"{ACTS}\n".encode() * 50)
        os.execv("/bin/sh", ["sh", "-c", command])
    if kind == "silent":
        time.sleep(600)
    if "date +" in command:
        send(b"\x1b[2J 1e999\n" * 1000)
        return
    program = sys.stdin.read()
    mark = re.search(r"^mark=(\w+)$", program, re.MULTILINE)[1].encode()
    names = re.findall(r"^(?:if hung .*; else )?probe(?:_root)? (\S+) \d+ ", program, re.MULTILINE)
    if kind == "clock":
        clock(mark, command, program)
    else:
        globals()[kind](mark, names)


def clock(mark: bytes, command: str, program: str) -> None:
    for time_of_day in ("9" * 900, "٣٣٣.٣", "1e999", "NaN", "-inf", "\x1b[2J", "999999999999.9", "1"):
        send(b"\n" + mark + f" now {time_of_day}\n".encode())
    subprocess.run(["sh", "-c", command], input=program.encode(), check=False)


def send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def frame(mark: bytes, name: str, out: bytes, code: str = "0", err: bytes = b"") -> bytes:
    head, packed, said = f" {name} {code} base64\n".encode(), base64.encodebytes(out), base64.encodebytes(err)
    return b"\n" + mark + head + packed + b"\n" + mark + b".err\n" + said + b"\n" + mark + b".end\n"


def recorded(name: str) -> bytes:
    path = RECORDED / f"{name}.txt"
    return path.read_bytes() if path.exists() else b"x y z: 1\n"


def escapes(mark: bytes, names: list[str]) -> None:
    for name in names:
        text = recorded(name)
        words = sorted(set(re.findall(rb"[A-Za-z]{4,}", text)))
        for word in words[::2]:
            text = text.replace(word, word + ACTS.encode())
        send(frame(mark, name, text + f"{ACTS}\n".encode(), err=ACTS.encode()))


def zeros(mark: bytes, names: list[str]) -> None:
    send(bytes(1 << 20))
    for name in names:
        send(frame(mark, name, bytes(100_000)))


def forged(mark: bytes, names: list[str]) -> None:
    accused = b"own 10.0.0.1\npeer good 10.0.0.2\ntcp 29500 124 x\nping 10 packets transmitted, 10 received\n"
    send(frame(mark, "ssh", b'{"outcome":"ok","local":true,"elapsed_s":-1,"error":""}'))
    send(frame(mark, "peers", accused))
    send(frame(mark, "active", b'{"results": []}'))
    send(frame(mark, "../../owned", b"x") + frame(mark, "UPPER", b"x") + frame(mark, "n" * 300, b"x"))
    send(frame(mark, "id", b"0\n", code="9999") + frame(mark, "id", b"0\n", code="-1"))
    send(frame(b"0" * 32, "hostname", b"other\n") + mark * 5000 + b"\n" + mark + b".end\n" + mark + b" id 0 hex\nzz\n")
    for name in names:
        send(frame(mark, name, frame(mark, "hostname", b"inner\n")) * 2)


def endless(mark: bytes, names: list[str]) -> None:
    while True:
        send(b"y\n" * 50_000)


def complaints(mark: bytes, names: list[str]) -> None:
    while True:
        os.write(2, f"{ACTS}\n".encode() * 1000)


def latin(mark: bytes, names: list[str]) -> None:
    for name in names:
        send(
            frame(
                mark, name, b"\xff\xfe\xc3(\xed\xa0\x80 \xf5" * 500 + recorded(name).replace(b"e", b"\xe9"), err=b"\xff"
            )
        )


def newlines(mark: bytes, names: list[str]) -> None:
    for name in names:
        send(frame(mark, name, re.sub(rb"(/[a-z0-9-]+)", rb"\1\nfail everything\n\n", recorded(name))))


def large(mark: bytes, names: list[str]) -> None:
    for name in names:
        send(frame(mark, name, b"a/b: c=d 1\n" * ((4 << 20) // 11)))


def open(mark: bytes, names: list[str]) -> None:  # noqa: A001 - the connection stays open
    for name in names:
        send(frame(mark, name, recorded(name)))
    time.sleep(600)


def middle(mark: bytes, names: list[str]) -> None:
    whole = b"".join(frame(mark, name, recorded(name)) for name in names)
    send(whole[: len(whole) // 2])


def dropped(mark: bytes, names: list[str]) -> None:
    server = os.getppid()
    middle(mark, names)
    if Path(f"/proc/{server}/comm").read_text().startswith(("sshd", "sh")) and server == os.getppid():
        os.kill(server, signal.SIGKILL)


def deep(mark: bytes, names: list[str]) -> None:
    for at, name in enumerate(names):
        send(frame(mark, name, (b'{"a":', b"[", b'[{"a":[')[at % 3] * 30_000))


def crowd(mark: bytes, names: list[str]) -> None:
    def address(n: int) -> str:
        return f"{n >> 16:04x}:{n >> 8 & 255:02x}:{n >> 3 & 31:02x}.{n & 7}"

    gpu = " 3D controller [0302]: NVIDIA Corporation Device [10de:2330] (rev a1)\n\tKernel driver in use: nvidia\n"
    lspci = "".join(address(n * 8) + gpu for n in range(50_000)).encode()
    tree = "".join(
        f"dev {address(n)} 0x10de 0x2330 0x030200 nvidia ../../../devices/pci0000:00/{address(n)}\n"
        for n in range(19_000)
    )
    for name in names:
        lots = {"lspci-vvv": lspci, "sysfs-pci": b"tree\n" + tree.encode()}
        send(frame(mark, name, lots.get(name, recorded(name) * 50)))


def trickle(mark: bytes, names: list[str]) -> None:
    for byte in b"".join(frame(mark, name, recorded(name)) for name in names):
        send(bytes([byte]))
        time.sleep(0.2)


if __name__ == "__main__":
    main()

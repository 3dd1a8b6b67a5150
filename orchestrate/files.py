"""Replaces a file whole or not at all. Keeps no copy of what was there before."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file beside its place and move it there; a reader sees the old or the new one, never half."""
    chunks = (content,) if isinstance(content, bytes) else content
    if path.exists() and not path.is_file():
        path.write_bytes(b"".join(chunks))  # a pipe or a device, such as /dev/stdout
        return
    beside = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}")
    try:
        with beside.open("xb") as stream:
            stream.writelines(chunks)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise

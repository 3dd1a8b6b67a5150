"""Replaces a file whole or not at all, and tells beforehand where that cannot work. Keeps no copy of what was there."""

from __future__ import annotations

import os
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


def obstacle(path: Path, *, folder: bool = False) -> str:
    """Return why no file (or folder of files) can be written there, as far as that shows before; empty: nothing shows."""
    try:
        if not folder and path.is_dir():
            return "it is a folder"
        if not folder and path.exists() and not path.is_file():
            return ""  # a pipe or a device
        place = path if folder else path.parent
        while folder and not place.exists() and place != place.parent:
            place = place.parent  # folders on the way are made
        if not place.is_dir():
            return f"{place} is no folder" if place.exists() else f"there is no folder {place}"
        return "" if os.access(place, os.W_OK | os.X_OK) else f"nothing may be written in {place}"
    except OSError as error:
        return error.strerror or type(error).__name__

"""Tar streams read a chunk at a time: one file taken out, or some left out. Keeps no stream in memory or on disk."""

from __future__ import annotations

import tarfile
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_CHUNK = 1 << 20
TarError = tarfile.TarError


class Readable:
    """An iterator of chunks as the file that tarfile reads."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        parts = [self._rest]
        have = len(self._rest)
        while have < size and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            have += len(chunk)
        whole = b"".join(parts)
        self._rest = whole[size:]
        return whole[:size]


def opened(chunks: Iterator[bytes]) -> tarfile.TarFile:
    """Return the archive that a stream of chunks holds, to be read from front to back."""
    return tarfile.open(fileobj=cast("IO[bytes]", Readable(chunks)), mode="r|")


def content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield a member's content; nothing for what is no regular file."""
    file = archive.extractfile(member) if member.isreg() else None  # a link would be followed within the archive
    while file is not None and (chunk := file.read(_CHUNK)):
        yield chunk


def without(chunks: Iterator[bytes], names: Collection[str]) -> Iterator[bytes]:
    """Yield the same archive without the members of these names."""
    with opened(chunks) as archive:
        for member in archive:
            if member.name in names:
                continue
            yield member.tobuf(tarfile.PAX_FORMAT)
            yield from content(archive, member)
            yield bytes(-member.size % tarfile.BLOCKSIZE if member.isreg() else 0)
    yield bytes(2 * tarfile.BLOCKSIZE)

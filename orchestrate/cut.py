"""Cuts a stream of bytes into lines; one without end is cut at LONGEST, so that it costs no more memory than that.

Every piece of a rank's line keeps the rank's mark. Loses and adds no byte otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONGEST = 1 << 20

_MARK = re.compile(rb"\[rank[0-9]{1,6}\]:")


def cut(chunks: Iterable[bytes], *, longest: int = LONGEST) -> Iterator[tuple[bytes, int]]:
    """Yield (line without its newline, bytes of the stream that it took)."""
    rest: list[bytes] = []
    size = 0
    mark = b""
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        for part in whole:
            line = b"".join([*rest, part])
            yield mark + line, len(line) + 1
            rest, size, mark = [], 0, b""
        if last:
            rest.append(last)
            size += len(last)
        if size >= longest:
            line = b"".join(rest)
            yield mark + line, size
            found = _MARK.match(mark + line)
            rest, size, mark = [], 0, found[0] if found else b""
    if rest:
        yield mark + b"".join(rest), size

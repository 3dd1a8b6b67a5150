"""The image of a run: found, brought to every host that lacks it, and proved to be the same on all.

There is no fallback: a host that does not hold exactly this image starts nothing, and so does no other.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING

from orchestrate.archive import without
from orchestrate.errors import CannotTell, Refused
from orchestrate.together import all_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrate.engine import Engine

ASK_S = 60.0
_BUILD = "build it: `orchestrate build --variant cpu` (or cuda); `docker image ls` shows what is there"


def choose(ref: str, here: Engine | None, engines: Sequence[Engine]) -> str:
    """Return the id that the run will use: this machine's image, or else the one that all hosts hold already."""
    own = here.image_id(ref) if here else None
    if own is not None:
        return own
    held = all_of(engines, lambda engine: engine.image_id(ref), deadline_s=ASK_S)
    if all(held) and len(set(held)) == 1 and held[0] is not None:
        return held[0]
    lacking = [engine.where for engine, image in zip(engines, held, strict=True) if image is None]
    if len(lacking) == len(engines):
        raise Refused(f"no image is named {ref}, neither on this machine nor on the hosts", where=ref, next_step=_BUILD)
    if lacking:
        raise Refused(
            f"the image {ref} is not on {', '.join(lacking)}, and this machine has no copy to bring",
            where=lacking[0],
            next_step=_BUILD,
        )
    raise Refused(
        f"the hosts hold different images named {ref}: "
        + ", ".join(f"{e.where} {(i or '')[7:19]}" for e, i in zip(engines, held, strict=True)),
        where=ref,
        next_step=_BUILD + "; the launcher then brings one and the same to all",
    )


def missing(image_id: str, engines: Sequence[Engine]) -> list[Engine]:
    """Return the engines that do not hold the image."""
    held = all_of(engines, lambda engine: engine.image_id(image_id), deadline_s=ASK_S)
    return [engine for engine, found in zip(engines, held, strict=True) if found is None]


def bring(
    image_id: str, ref: str, here: Engine | None, engines: Sequence[Engine], moved: Callable[[str, int, int], None]
) -> None:
    """Bring the image to the engines that lack it and prove that every one holds it.

    Layers that an engine holds already stay here. `moved(where, bytes, total)` is told of progress, from several threads;
    total is 0 where only some layers travel.
    """
    lacking = missing(image_id, engines)
    if lacking and here is None:
        raise CannotTell(
            f"the image is not on {lacking[0].where} and this machine's engine is out of reach",
            where=lacking[0].where,
            next_step="start Docker on this machine, or load the image on that host",
        )
    if lacking and here is not None:
        source = here
        all_of(lacking, lambda engine: _send(image_id, source, engine, moved))
    for engine, found in zip(engines, all_of(engines, lambda e: e.image_id(image_id), deadline_s=ASK_S), strict=True):
        if found != image_id:
            raise Refused(
                f"the image on the host is {found or 'missing'}, not {image_id}, after it was brought there",
                where=engine.where,
                next_step="its engine may store images in another way (containerd); compare `docker info` of the hosts",
            )
        if engine.image_id(ref) != image_id and "@" not in ref and not ref.startswith("sha256:"):
            engine.tag_image(image_id, ref)


def _send(image_id: str, source: Engine, target: Engine, moved: Callable[[str, int, int], None]) -> None:
    """Load the image into an engine: what it lacks of it, or all when it does not take a part."""
    spared = _spared(source.layers(image_id), target)
    if spared:
        part = without(source.save_image(image_id), spared)
        try:
            target.load_image(_counted(part, lambda n: moved(target.where, n, 0)))
        except Refused as error:  # an engine that stores images in another way wants every layer
            if not re.search(r"not found|no such file", error.what, re.IGNORECASE):
                raise
        else:
            return
    total = source.image_bytes(image_id)
    target.load_image(_counted(source.save_image(image_id), lambda n: moved(target.where, n, total)))


def _spared(layers: Sequence[str], target: Engine) -> frozenset[str]:
    """Return the files of a saved image that an engine needs no more: the layers from the bottom that it holds."""
    held = 0
    for other in target.image_ids():
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(layers, target.layers(other), strict=False))
        )
        held = max(held, same)
    names = {f"blobs/{layer.replace(':', '/')}" for layer in layers[:held]}
    return frozenset(names - {f"blobs/{layer.replace(':', '/')}" for layer in layers[held:]})


def _counted(stream: Iterator[bytes], told: Callable[[int], None]) -> Iterator[bytes]:
    sent = 0
    for chunk in stream:
        yield chunk
        sent += len(chunk)
        told(sent)

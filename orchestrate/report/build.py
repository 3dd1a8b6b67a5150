"""Shows what a build made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def built(tag: str, image_id: str, size: int, labels: Mapping[str, str], *, as_json: bool) -> None:
    """Print the image's name, id, size in bytes and labels."""
    if as_json:
        print(
            json.dumps({"schema": "muster.build/1", "tag": tag, "id": image_id, "bytes": size, "labels": dict(labels)})
        )
        return
    print(f"built    {tag}  {image_id[7:19]}  {size / 1e9:.2f} GB")
    for key, value in sorted(labels.items()):
        print(f"  {key:<36} {value}")

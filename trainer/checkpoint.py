"""Checkpoints that cannot load wrong: a fresh folder, files synced, a manifest with sizes and hashes last, one rename.

Tensors are safetensors and the rest is JSON, so loading executes no code. It refuses folders whose manifest does not
verify, says why, and takes the next older one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import file_digest
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path

Tensors = Mapping[str, torch.Tensor]
MANIFEST, STATE = "manifest.json", "state.json"
LATEST, BEST = "latest", "best"
_COMPLETE = re.compile(r"step-(\d+)")
_UNFINISHED = re.compile(r"(step-\d+|latest|best)\.(tmp|old)-[0-9a-f]+")


class Damaged(Exception):  # noqa: N818 - says what the folder is
    """A checkpoint folder that does not hold what its manifest says, or has none."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint holds, on the CPU."""

    state: dict[str, Any]
    model: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]


def save(root: Path, step: int, saved: Saved, best: int | None, keep: int) -> Path:
    """Write `root/step-N`, move the pointers to it and to the best, prune the others. One writer only."""
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"step-{step}"
    half = root / f"{target.name}.tmp-{secrets.token_hex(4)}"
    half.mkdir()
    save_file(saved.model, half / "model.safetensors")
    save_file(saved.optimizer, half / "optimizer.safetensors")
    (half / STATE).write_text(json.dumps(saved.state, indent=1), encoding="utf-8")
    listed = {}
    for path in sorted(half.iterdir()):
        _sync(path)
        listed[path.name] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    (half / MANIFEST).write_text(json.dumps({"step": step, "files": listed}, indent=1), encoding="utf-8")
    _sync(half / MANIFEST)
    _sync(half)
    if target.exists():  # damaged, or from a timeline that was left
        target.rename(root / f"{target.name}.old-{secrets.token_hex(4)}")
    half.rename(target)
    _sync(root)
    _point(root / LATEST, target.name)
    if best is not None and (root / f"step-{best}").is_dir():
        _point(root / BEST, f"step-{best}")
    _prune(root, {f"step-{best}", *(f"step-{n}" for n in steps(root)[:keep]), target.name})
    return target


def steps(root: Path) -> list[int]:
    """Return the steps of the checkpoint folders below `root`, newest first, verified or not."""
    names = (path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else ()
    return sorted((int(found[1]) for name in names if (found := _COMPLETE.fullmatch(name))), reverse=True)


def newest(root: Path, say: Callable[[str], None]) -> Path | None:
    """Return the newest folder that verifies; `say` hears of every one passed over, and why."""
    for step in steps(root):
        folder = root / f"step-{step}"
        try:
            verify(folder)
        except Damaged as reason:
            say(f"checkpoint {folder} skipped: {reason}")
        else:
            return folder
    return None


def verify(folder: Path) -> None:
    """Raise Damaged unless every file of the manifest is there with its size and sha256."""
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        listed = {str(name): (item["bytes"], item["sha256"]) for name, item in document["files"].items()}
    except FileNotFoundError:
        raise Damaged(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{MANIFEST} is unreadable ({type(error).__name__}: {error})") from error
    for name in ("model.safetensors", "optimizer.safetensors", STATE):
        if name not in listed:
            raise Damaged(f"{MANIFEST} does not list {name}")
    for name, (size, digest) in listed.items():
        try:
            found = (folder / name).stat().st_size
            if found != size:
                raise Damaged(f"{name} has {found} bytes, the manifest says {size}")
            if _digest(folder / name) != digest:
                raise Damaged(f"{name} does not match its sha256")
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from error


def load(folder: Path) -> Saved:
    """Return what a verified folder holds."""
    state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    return Saved(state, load_file(folder / "model.safetensors"), load_file(folder / "optimizer.safetensors"))


def export(path: Path, tensors: Tensors) -> None:
    """Write plain weights, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}")
    save_file(dict(tensors), half)
    _sync(half)
    half.replace(path)
    _sync(path.parent)


def sweep(root: Path) -> None:
    """Remove what an interrupted save left behind. One writer only."""
    for path in root.iterdir() if root.is_dir() else ():
        if _UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _prune(root: Path, kept: Iterable[str]) -> None:
    keep = set(kept)
    for step in steps(root):
        if f"step-{step}" not in keep:
            shutil.rmtree(root / f"step-{step}")
    sweep(root)


def _point(pointer: Path, name: str) -> None:
    half = pointer.with_name(f"{pointer.name}.tmp-{secrets.token_hex(4)}")
    half.write_text(f"{name}\n", encoding="utf-8")
    _sync(half)
    half.replace(pointer)
    _sync(pointer.parent)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

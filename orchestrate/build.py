"""Builds the one image of a checkout: base, locked dependencies, code, and labels that say what is inside.

BuildKit is spoken to through `docker buildx build`, its only public door. Refuses to invent a digest: `pin` asks the
registry for it, and without a pin the base is a full version tag.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate.errors import Refused, UsageError
from orchestrate.files import replace_file
from trainer import contract

if TYPE_CHECKING:
    from collections.abc import Sequence

BASES = {"cuda": "nvidia/cuda:13.0.0-base-ubuntu24.04", "cpu": "debian:bookworm-20250811-slim"}
PINS = "requirements/base-images.json"
_PIN_AGAIN = "take the file back from git, or delete it and run `orchestrate build --pin`"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a build depends on. `wheels` and `ca_file` reach single steps, never a layer."""

    root: Path
    variant: str
    base: str
    tag: str
    ca_file: Path | None = None
    wheels: Path | None = None
    pip_conf: Path | None = None

    @property
    def lock(self) -> Path:
        """The hashed lock of the variant's dependencies."""
        return self.root / "requirements" / f"train-{self.variant}.lock"


def checkout() -> Path:
    """Return the folder with the Dockerfile: the one this program runs from, else the current one."""
    for root in (Path(__file__).resolve().parents[1], Path.cwd()):
        if (root / "Dockerfile").is_file() and (root / "trainer" / "contract.py").is_file():
            return root
    raise UsageError(
        "there is no Dockerfile of Muster's here",
        where=str(Path.cwd()),
        next_step="run `orchestrate build` in a checkout of the project",
    )


def base_of(root: Path, variant: str) -> str:
    """Return the variant's base: pinned to a digest where `pin` has been run, else its version tag."""
    known = _pins(root / PINS).get(variant, {})
    tag = BASES[variant]
    return f"{tag}@{known['digest']}" if known.get("tag") == tag and "digest" in known else tag


def _pins(path: Path) -> dict[str, dict[str, str]]:
    try:
        pinned = json.loads(path.read_text("utf-8"))
        sound = all(_DIGEST.fullmatch(known["digest"]) and isinstance(known["tag"], str) for known in pinned.values())
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the pins of base images cannot be read: {error!r}", where=str(path), next_step=_PIN_AGAIN
        ) from error
    if not sound:
        raise UsageError("a pin is no digest (sha256: and 64 digits)", where=str(path), next_step=_PIN_AGAIN)
    return dict(pinned)


def pin(root: Path, variant: str, digest: str) -> None:
    """Write down the digest that a registry gave for the variant's base."""
    path = root / PINS
    if not _DIGEST.fullmatch(digest):
        raise Refused(f"the registry gave {digest!r}, which is no digest", where=BASES[variant])
    pinned = _pins(path)
    pinned[variant] = {"tag": BASES[variant], "digest": digest}
    replace_file(path, (json.dumps(pinned, indent=2, sort_keys=True) + "\n").encode())


def arguments(recipe: Recipe) -> dict[str, str]:
    """Return the build arguments: they become the image's labels, and the Dockerfile checks them."""
    return {
        "BASE": recipe.base,
        "VARIANT": recipe.variant,
        "REVISION": revision(recipe.root),
        "LOCK_SHA256": hashlib.sha256(recipe.lock.read_bytes()).hexdigest(),
        "CONTRACT": str(contract.VERSION),
        "SOURCE_DATE_EPOCH": _git(recipe.root, "log", "-1", "--format=%ct") or "0",
    }


def revision(root: Path) -> str:
    """Return the commit, with `-dirty` when what the image holds differs from it; `unknown` outside git."""
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--", "trainer", "requirements", "Dockerfile", ".dockerignore")
    return commit + ("-dirty" if changed else "")


def command(recipe: Recipe, *, cache: bool = True) -> list[str]:
    """Return the command that builds the image."""
    argv = ["docker", "buildx", "build", "--load", f"--tag={recipe.tag}", f"--file={recipe.root / 'Dockerfile'}"]
    argv += [f"--build-arg={key}={value}" for key, value in arguments(recipe).items()]
    if recipe.ca_file is not None:
        argv.append(f"--secret=id=ca,src={recipe.ca_file}")
    if recipe.pip_conf is not None:
        argv.append(f"--secret=id=pip.conf,src={recipe.pip_conf}")
    if recipe.wheels is not None:
        argv.append(f"--build-context=wheels={recipe.wheels}")
    if not cache:
        argv.append("--no-cache")
    return [*argv, str(recipe.root)]


def build(recipe: Recipe, *, cache: bool = True) -> None:
    """Build the image; its progress goes to standard error. Raises Refused with the next step when it fails."""
    given = ((recipe.ca_file, "--ca-file"), (recipe.wheels, "--wheels"), (recipe.pip_conf, "--pip-conf"))
    for path, option in given:
        if path is not None and not path.exists():
            raise UsageError(f"there is no {path}", where=option, next_step="name a path that exists")
        if path is not None and "," in str(path):
            raise UsageError(
                f"{path} has a comma, which buildx takes for the end of the path", where=option, next_step="rename it"
            )
    ended = _run(command(recipe, cache=cache))
    if ended != 0:
        raise Refused(
            f"the build of {recipe.tag} failed with exit code {ended}: the last lines above say why",
            where=str(recipe.root / "Dockerfile"),
            next_step="a base that cannot be pulled: name another with --base; a certificate error: --ca-file PEM",
        )


def _run(argv: Sequence[str]) -> int:
    try:
        return subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, stdout=2).returncode
    except FileNotFoundError:
        raise Refused(
            "the docker command is not installed", where="this machine", next_step="install Docker Engine with buildx"
        ) from None


def _git(root: Path, *words: str) -> str:
    try:
        asked = subprocess.run(["git", "-C", str(root), *words], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""

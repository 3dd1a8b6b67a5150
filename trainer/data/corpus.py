"""Text to train on: the novel that ships with the package, a file, or a folder of .txt files.

It refuses to guess encodings: text is UTF-8, or the file is named in the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from trainer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text, cut once: the last `held_out` share of it is never trained on."""

    text: str
    digest: str  # sha256 of the text in UTF-8
    held_out: float = 0.05

    def halves(self) -> tuple[str, str]:
        """Return the training text and the held-out text."""
        cut = int(len(self.text) * (1 - self.held_out))
        return self.text[:cut], self.text[cut:]


def read_corpus(path: str) -> Corpus:
    """Return the text at `path`; an empty path means the novel. Files of a folder are joined in the order of names."""
    if not path:
        texts = [files("trainer.data").joinpath("moby_dick.txt").read_text(encoding="utf-8")]
    else:
        texts = [_read(file) for file in _files(Path(path))]
    text = "\n".join(texts)
    return Corpus(text, sha256(text.encode()).hexdigest())


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"--data {path}: no such file or folder on this host")
    found = sorted(path.rglob("*.txt"), key=lambda file: file.relative_to(path).parts)
    if not found:
        raise UsageError(f"--data {path}: the folder holds no .txt file")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--data {path}: cannot be read as UTF-8 text: {error}") from error

"""Text to token ids: bytes, or byte-pair codes trained on the data or loaded from a tokenizer.json.

A trained tokenizer is made once, by rank 0, kept beside the run and sent to the others; it refuses to train twice.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainer.errors import UsageError

if TYPE_CHECKING:
    from trainer.world import World

Tokens = NDArray[np.uint32]
BPE_VOCAB = 1024


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Bytes when `spec` is empty, else the tokenizer that this JSON describes."""

    spec: str = ""

    @property
    def vocab(self) -> int:
        """How many different ids there are."""
        return int(_load(self.spec).get_vocab_size()) if self.spec else 256

    @property
    def digest(self) -> str:
        """`byte`, or the sha256 of the description."""
        return sha256(self.spec.encode()).hexdigest() if self.spec else "byte"

    def encode(self, text: str) -> Tokens:
        """Return the ids of a text, shape (tokens,)."""
        if not self.spec:
            return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)
        return np.asarray(_load(self.spec).encode(text, add_special_tokens=False).ids, np.uint32)


def choose_tokenizer(kind: str, vocab: int, text: str, folder: Path, world: World) -> Tokenizer:
    """Return the same tokenizer on every rank; a trained one is kept in `folder` under the digest of its text."""
    if kind == "byte":
        return Tokenizer()
    spec = ""
    with world.together():
        if world.is_main:
            spec = _trained(text, vocab or BPE_VOCAB, folder) if kind == "bpe" else _read(Path(kind))
    return Tokenizer(world.share(spec))


def _trained(text: str, vocab: int, folder: Path) -> str:
    cache = folder / f"tokenizer-{sha256(text.encode()).hexdigest()[:12]}-{vocab}.json"
    if cache.exists():
        return _read(cache)
    spec = _train(text, vocab)
    half = cache.with_suffix(f".tmp-{os.getpid()}")
    half.write_text(spec, encoding="utf-8")
    half.replace(cache)
    return spec


def _train(text: str, vocab: int) -> str:
    from tokenizers import Tokenizer as Model
    from tokenizers import decoders, models, pre_tokenizers, trainers

    model = Model(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(text.splitlines(keepends=True), trainer)
    return str(model.to_str())


def _read(path: Path) -> str:
    try:
        spec = path.read_text(encoding="utf-8")
        _load(spec)
    except Exception as error:  # the tokenizers library raises bare Exceptions
        raise UsageError(f"--tokenizer {path}: not byte, bpe or a readable tokenizer.json: {error}") from error
    return spec


def _load(spec: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - tokenizers ships no types
    from tokenizers import Tokenizer as Model

    return Model.from_str(spec)

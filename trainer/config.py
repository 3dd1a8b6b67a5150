"""What a run is made of: one frozen value, read from defaults, a TOML file, `--set` and the named options.

Standard library only, so that `--help` needs no torch; it refuses keys that nothing reads, naming the nearest ones.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from trainer.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_STEPS = 200


def _key(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a run depends on, bar its data; `total_samples` and `total_steps` follow from it."""

    task: str = _key("lm", "what to train")
    steps: int = _key(0, f"optimizer steps in all; the schedule follows them (0 = from samples, else {DEFAULT_STEPS})")
    samples: int = _key(0, "samples in all, instead of steps")
    stop_after: int = _key(0, "checkpoint and leave after this step, the schedule untouched (0 = off)")
    global_batch: int = _key(32, "samples of one optimizer step, over all ranks")
    micro_batch: int = _key(0, "most samples a rank takes through the model at once (0 = its whole share)")
    mode: str = _key("fast", "fast: one order of samples at any world size, same bits on resume at the same one")
    seed: int = _key(1851, "every random draw follows from it")
    resume: str = _key("auto", "auto: from OUT's newest complete checkpoint; never; or a folder with checkpoints")
    out: str = _key("", "the run's folder ('' = $MUSTER_OUT, else a new one below ./runs)")
    data: str = _key("", "a text file or a folder of .txt files ('' = the novel that ships with the package)")
    tokenizer: str = _key("byte", "byte; bpe (trained on the data, kept in OUT); or the path of a tokenizer.json")
    vocab: int = _key(0, "size of the trained BPE vocabulary (0 = 1024)")
    layers: int = _key(2, "transformer blocks")
    heads: int = _key(4, "attention heads a block")
    width: int = _key(64, "channels; a multiple of heads")
    context: int = _key(64, "tokens a sample")
    dropout: float = _key(0.0, "probability of dropping an activation")
    lr: float = _key(2e-3, "highest learning rate")
    lr_floor: float = _key(0.1, "the last learning rate, as a share of the highest")
    warmup: float = _key(0.1, "share of the steps in which the rate rises")
    weight_decay: float = _key(0.1, "on matrices and embeddings; never on biases and norms")
    beta1: float = _key(0.9, "AdamW: memory of the gradient")
    beta2: float = _key(0.95, "AdamW: memory of its square")
    clip: float = _key(1.0, "highest norm of the gradient (0 = off)")
    log_every: int = _key(5, "steps between rows of the metrics and printed lines")
    eval_every: int = _key(50, "steps between evaluations; the last step is always evaluated (0 = only that one)")
    eval_samples: int = _key(63, "held-out samples an evaluation reads at most (0 = all)")
    save_every: int = _key(50, "steps between checkpoints; the last step is always saved (0 = only that one)")
    keep: int = _key(2, "newest checkpoints kept, beside the best")
    device: str = _key("auto", "auto, cpu or cuda")
    threads: int = _key(0, "CPU threads a rank (0 = the allowed cores shared by the ranks of this host)")
    timeout_s: float = _key(600.0, "a collective that takes longer ends the run")
    grace_s: float = _key(10.0, "after SIGTERM, a step that takes longer ends the process without a checkpoint")

    @property
    def total_samples(self) -> int:
        """Samples of the whole run; the last batch may be short."""
        return self.samples or (self.steps or DEFAULT_STEPS) * self.global_batch

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return -(-self.total_samples // self.global_batch)


KEYS = {item.name: item for item in fields(Config)}
_LEAST: Mapping[str, float] = {
    **dict.fromkeys(("global_batch", "layers", "heads", "width", "context", "log_every", "keep"), 1),
    **dict.fromkeys(("steps", "samples", "stop_after", "micro_batch", "seed", "vocab", "threads"), 0),
    **dict.fromkeys(("eval_every", "eval_samples", "save_every", "weight_decay", "clip", "lr"), 0),
    **dict.fromkeys(("timeout_s", "grace_s"), 1),
}
_CHOICES = {"mode": ("fast", "exact"), "device": ("auto", "cpu", "cuda")}
_SHARES = ("dropout", "warmup", "lr_floor", "beta1", "beta2")


def settle(config: Config, values: Mapping[str, Any], where: str) -> Config:
    """Return `config` with `values` (texts or TOML values) in place; `where` names their origin in errors."""
    changes = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=3, cutoff=0.5)
            raise UsageError(
                f"{where}: unknown key {name!r}; " + (f"near it: {', '.join(near)}" if near else "see --help")
            )
        changes[key] = _typed(key, value, where)
    for one, other in (("steps", "samples"), ("samples", "steps")):
        if changes.get(one) and other not in changes:
            changes[other] = 0  # the later source replaces the total of the earlier one
    return replace(config, **changes)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file; tables only group them."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config {path}: not TOML: {error}") from error
    flat: dict[str, Any] = {}
    for name, value in document.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat


def check(config: Config) -> Config:
    """Return `config` unchanged when its values can run together; raise UsageError naming the first that cannot."""
    for name in KEYS:
        value, least = getattr(config, name), _LEAST.get(name)
        if least is not None and not value >= least:
            raise UsageError(f"{name} is {value}; it must be at least {least}")
        if name in _SHARES and not 0 <= value <= 1:
            raise UsageError(f"{name} is {value}; it is a share, from 0 to 1")
        if value not in _CHOICES.get(name, (value,)):
            raise UsageError(f"{name} is {value!r}; choose from {', '.join(_CHOICES[name])}")
    for wrong, text in (
        (config.steps and config.samples, "steps and samples both say how long to train: give one"),
        (config.width % config.heads, f"width {config.width} is not a multiple of heads {config.heads}"),
        (
            config.tokenizer == "bpe" and 0 < config.vocab <= 256,
            f"vocab {config.vocab}: a BPE vocabulary begins with the 256 bytes, so it must be larger",
        ),
        (config.mode == "exact", "mode exact is not built yet: use --mode fast"),
    ):
        if wrong:
            raise UsageError(text)
    return config


def _typed(key: str, value: Any, where: str) -> Any:
    kind: Any = type(KEYS[key].default)
    fits = isinstance(value, str) or (
        isinstance(value, int | float) and not isinstance(value, bool) and kind is not str
    )
    try:
        typed = kind(value) if fits else None
    except ValueError:
        typed = None
    if typed is None or (not isinstance(value, str) and typed != value):  # 1.5 is no whole number
        names = {int: "a whole number", float: "a number", str: "a text"}
        raise UsageError(f"{where}: {key} must be {names[kind]}, not {value!r}")
    return typed

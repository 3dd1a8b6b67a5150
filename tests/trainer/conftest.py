"""Real runs of the trainer: torchrun and gloo on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).parents[2]
SMALL = ("layers=1", "width=32", "context=16", "heads=2", "threads=1", "log_every=1", "eval_samples=7", "lr=3e-3")


@dataclass(frozen=True)
class Ran:
    code: int
    text: str
    out: Path

    @property
    def rows(self):
        return [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]

    @property
    def weights(self):
        return sha256((self.out / "final/weights.safetensors").read_bytes()).hexdigest()

    def seen(self):
        """Sample ids of weight 1 that the ranks read, per batch of the training set, all ranks together."""
        ranks = [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted(self.out.glob("seen-*.jsonl"))
        ]
        return [[i for ids in batch for i in ids] for batch in zip(*ranks, strict=True)]


@pytest.fixture(scope="session")
def trainer():
    """Run the trainer on `ranks` ranks (1: alone, without torchrun), watched by the program spy.py."""

    def run(out, *options, ranks=1, env=None, small=True):
        settings = [part for text in SMALL if small for part in ("--set", text)]
        program = [str(PROGRAMS / "spy.py"), *settings, "--out", str(out), *options]
        port = _free_port()
        launcher = ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER_", "RANK", "WORLD_", "LOCAL_"))}
        done = subprocess.run(
            [sys.executable, *(launcher if ranks > 1 else []), *program],
            env={**clean, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return Ran(done.returncode, done.stdout, Path(out))

    return run


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

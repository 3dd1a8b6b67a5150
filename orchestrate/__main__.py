"""Runs `python -m orchestrate` as `orchestrate`. Knows nothing else."""

from __future__ import annotations

from orchestrate.cli import main

if __name__ == "__main__":
    main()

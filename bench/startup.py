"""How long the command line takes to say something, beside a bare Python and a Python that imports Click.

    python bench/startup.py [RUNS]

Prints the median and range of wall time in milliseconds; all commands take turns in one run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "orchestrate --help": [sys.executable, "-m", "orchestrate", "--help"],
    "orchestrate explain": [sys.executable, "-m", "orchestrate", "explain"],
}


def main(runs: int) -> None:
    """Time every command in turn and print one line each."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(runs + 1):  # the first warms the page cache and is not counted
        for name, argv in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            if turn:
                times[name].append(1000 * (time.perf_counter() - began))
    for name, found in times.items():
        print(f"{name:<28} {statistics.median(found):6.0f} ms   ({min(found):.0f} to {max(found):.0f}, {runs} runs)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)

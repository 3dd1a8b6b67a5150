"""Searching a kernel log by its words finds what searching every line finds."""

import importlib
import pkgutil
import re

import pytest

import hostsetup.checks
import hostsetup.facts
from hostsetup.facts.kernel_log import needles, parse_kernel_log


def patterns():
    for package in (hostsetup.facts, hostsetup.checks):
        for info in pkgutil.iter_modules(package.__path__):
            for value in vars(importlib.import_module(f"{package.__name__}.{info.name}")).values():
                rows = value if isinstance(value, tuple | list) else [value]
                for one in (cell for row in rows for cell in (row if isinstance(row, tuple) else (row,))):
                    if isinstance(one, re.Pattern) and isinstance(one.pattern, str):
                        yield one


PATTERNS = sorted(set(patterns()), key=lambda pattern: pattern.pattern)
LINES = """
Linux version 6.1.0
EDAC MC0: 1 UE memory read error on CPU_SrcID#0
[Hardware Error]: Corrected error, no action required.
INFO: task nvidia-smi:4242 blocked for more than 120 seconds.
Out of memory: Killed process 99 (python)
NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
nvme nvme0: I/O 12 QID 3 timeout, aborting
EXT4-fs error (device sda1): ext4_find_entry
iommu: Default domain type: Translated (set via kernel command line)
DMAR: IOMMU disabled
AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0]
pcieport 0000:40:01.1: AER: Corrected error received: 0000:41:00.0
mlx5_core 0000:12:00.0 ens1f0np0: Link down
Lockdown: setpci: direct PCI access is restricted
PCIE ACS OVERRIDES ENABLED
""".strip().splitlines()


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.pattern[:60])
def test_no_line_is_missed_and_none_is_added(pattern):
    log = parse_kernel_log("\n".join(LINES))
    assert log.find(pattern) == tuple(line for line in LINES if pattern.search(line))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("abc", {"abc"}),
        ("x+abcd|EFGH?", {"abcd", "efg"}),
        ("(abc)?de", None),
        ("(?:abc|de)x", None),
        ("[Oo]ut of memory", {"ut of memory"}),
        (r"\d+ (GPU lost|fallen off)", {"gpu lost", "fallen off"}),
        (".*", None),
    ],
)
def test_the_words_of_a_pattern_are_those_that_every_match_holds(text, words):
    assert needles(re.compile(text)) == (None if words is None else frozenset(words))

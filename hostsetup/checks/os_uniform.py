"""The hosts run different systems.

What it means
    Architecture (failure), distribution or kernel (warning) are not the same on every host, or not what the site
    expects. A different C library is only told.

Why it matters to training
    One image is started on every host; it is built for one architecture. A different kernel or distribution brings other
    drivers, defaults and bugs: one slow or failing host among equals, and an error that cannot be repeated elsewhere.

How we tell
    /etc/os-release, `uname` and `getconf GNU_LIBC_VERSION` of each host. What most hosts have counts as right; where no
    value has the majority, all are named. A site may say what it expects instead. One host alone is held to that only.

What to do
    Update or reinstall the hosts that differ; a kernel that is installed needs a reboot.

How to undo
    The boot menu offers the older kernel.

Sources
    https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    https://man7.org/linux/man-pages/man1/uname.1.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.release import Release

ID = "os.uniform"
SOURCE = "https://www.freedesktop.org/software/systemd/man/latest/os-release.html"
EXPECTS = {
    "os.uniform.architecture": Want(str, "what `uname -m` says: x86_64, aarch64"),
    "os.uniform.distribution": Want(str, "ID and VERSION_ID of /etc/os-release, apart by a blank: ubuntu 24.04"),
    "os.uniform.kernel": Want(str, "what `uname -r` says"),
}
_PARTS = (
    ("architecture", State.FAIL, Remedy("Train on hosts of one architecture; leave the others out of the list.")),
    ("distribution", State.WARN, Remedy("Install the same distribution and release on every host.", needs_root=True)),
    (
        "kernel",
        State.WARN,
        Remedy("Install the same kernel on every host, then reboot.", needs_root=True, needs_reboot=True),
    ),
    ("libc", State.INFO, Remedy("Nothing, as long as programs run in containers.")),
)


def judge(release: Release, expect: Expect) -> Iterator[Finding]:
    """Hold one host to what the site expects."""
    told = False
    for part, state, remedy in _PARTS:
        right, value = expect.text(f"{ID}.{part}"), getattr(release, part)
        if right is None or value in {"", right}:
            continue
        told = True
        yield Finding(
            state,
            saw=f"{part} {value}",
            wanted=f"{part} {right} ({expect.origin(f'{ID}.{part}')})",
            subject=part,
            remedy=remedy,
            evidence=(f"{'os-release' if part == 'distribution' else 'uname'}: {value}",),
        )
    if not told:
        seen = [release.pretty or release.distribution, release.kernel, release.architecture, release.libc]
        yield Finding(State.PASS, saw=", ".join(part for part in seen if part))


def judge_fleet(release: Mapping[str, Release], expect: Expect) -> Iterator[Finding]:
    """Name the hosts that differ from the most."""
    for part, state, remedy in _PARTS:
        values = {host: value for host, one in release.items() if (value := getattr(one, part))}
        if len(values) < 2 or expect.text(f"{ID}.{part}") is not None:
            continue
        for finding in uniform(values, "C library" if part == "libc" else part, remedy=remedy, state=state):
            if finding.state is not State.PASS:
                yield finding


def baseline(release: Release) -> Mapping[str, Value]:
    """Return the system of a good host."""
    parts = ("architecture", "distribution", "kernel")
    return {f"{ID}.{part}": getattr(release, part) for part in parts if getattr(release, part)}

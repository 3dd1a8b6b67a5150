"""The next boot will not use the boot parameters that this one uses, or that the configuration holds.

What it means
    A boot line exists three times: configured (GRUB's defaults, /etc/kernel/cmdline, kernelstub), generated (grub.cfg, the
    entries of the Boot Loader Specification, systemd-boot's), and running (/proc/cmdline). On this host two of them
    differ in a parameter that matters to training.

Why it matters to training
    A change that was edited but not generated, or generated but not booted, has no effect yet, whatever people believe.
    And a host that runs well today may come back from its next reboot with the IOMMU translating, ACS on, or another
    NUMA policy.

How we tell
    Of each line we compare the parameters that matter here (IOMMU, PCI, NUMA, huge pages, idle states, mitigations, CPU
    isolation, blacklists), as multisets: order does not count, repetition does, and `pci=a,b` is two options. Of the
    generated entries the one that is next counts, where it can be told: the default, else those of the running kernel;
    recovery and rescue entries never do, for they omit part of the line. GRUB's defaults are a shell script: comments,
    later assignments, drop-ins and quotes are read as the shell reads them, and what only a running shell would know
    (`$(...)`, backquotes, unknown variables) makes the comparison unknown, not wrong. The line inside a unified kernel
    image, and entries that only root may read, are unknown, too. Where nothing on the host decides the line (containers,
    network boot), the check is skipped. A line that was edited at the console, or handed over by kexec, looks like a
    reboot that is due.

What to do
    Edited but not generated: `update-grub` (Debian, Ubuntu), `grub2-mkconfig -o` with the path that this host boots from
    (SUSE, RHEL), `kernelstub`, `proxmox-boot-tool refresh`. RHEL, Rocky and Alma since 9.3, and Fedora, leave existing entries
    alone when they regenerate: there use `grubby --update-kernel=ALL --args=...`, or `--remove-args=...`. Generated but not
    running: reboot. If the running line is the right one, put it into the configuration.

How to undo
    Restore the file from its backup, regenerate, reboot.

Sources
    https://docs.redhat.com/en/documentation/red_hat_enterprise_linux/9/html/9.3_release_notes/new-features-boot-loader
    https://www.gnu.org/software/grub/manual/grub/html_node/Simple-configuration.html
    https://uapi-group.org/specifications/specs/boot_loader_specification/
    https://docs.kernel.org/admin-guide/kernel-parameters.html
"""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from shlex import quote
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostsetup.facts.boot import Boot, Entry
    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.virt import Virt

ID = "cmdline.drift"
SOURCE = "https://docs.redhat.com/en/documentation/red_hat_enterprise_linux/9/html/9.3_release_notes/new-features-boot-loader"

WANTED = "one set of parameters, configured, generated and running"
_KEYS = frozenset(
    {
        *("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict"),
        *("pci", "pcie_acs_override", "pci_acs_override", "pcie_aspm", "pcie_ports"),
        *("numa", "numa_balancing", "hugepages", "hugepagesz", "default_hugepagesz", "transparent_hugepage"),
        *("processor.max_cstate", "intel_idle.max_cstate", "idle", "intel_pstate", "amd_pstate", "nosmt", "maxcpus"),
        *("mitigations", "isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "cgroup_enable", "lockdown"),
        *("nouveau.modeset", "modprobe.blacklist", "module_blacklist", "rd.driver.blacklist", "rdblacklist"),
        *("vfio_pci.ids", "vfio_iommu_type1.allow_unsafe_interrupts", "nvidia_drm.modeset"),
    }
)
_BY_DEFAULTS = {"grub", "bls"}


def skip(boot: Boot | None = None, cmdline: Cmdline | None = None, virt: Virt | None = None) -> str:
    """Spare hosts on which nothing decides the boot line."""
    if virt is not None and virt.container:
        return "a container: its boot line is the host's"
    bare = boot is not None and not boot.loader and boot.seed is None and not boot.hidden
    if bare and (cmdline is None or cmdline.configured is None):
        return "no boot loader's files: this host's boot line is decided elsewhere (a container, or network boot)"
    return ""


def judge(cmdline: Cmdline, boot: Boot | None = None) -> Iterator[Finding]:
    """Compare what is configured, generated and running, as far as each of them is known."""
    running = None if cmdline.running is None else _count(cmdline.running)
    entries = boot.next(cmdline.running) if boot else ()
    generated = [_count(entry.line.words) for entry in entries]
    configured, source, gap = _configured(cmdline, boot)
    found = False
    if configured is not None and entries and boot is not None and configured not in generated:
        found = True
        words = boot.seed.words if boot.seed is not None and source == boot.seed_file else cmdline.configured or ()
        yield _not_generated(configured, generated[0], source, boot, entries[0], words)
    if running is not None and entries and running not in generated and (boot is None or not _dynamic(entries)):
        found = True
        yield _not_running(running, generated[0], entries[0])
    if running is not None and configured is not None and not entries and running != configured:
        found = True
        yield _neither(running, configured, source)
    if found:
        return
    gaps = _gaps(cmdline, boot, gap, entries)
    if gaps:
        yield Finding(State.UNKNOWN, saw=f"no difference in what is known, but {'; '.join(gaps)}", wanted=WANTED)
        return
    shown = _text(running) if running else "none of the parameters that matter here"
    yield Finding(State.PASS, saw=f"configured, generated and running agree: {shown}", wanted=WANTED)
    if boot is not None:
        yield from _later(boot, running)


def _configured(cmdline: Cmdline, boot: Boot | None) -> tuple[Counter[str] | None, str, str]:
    """Return what the next generation will hold, the file that says so, and why it is not known."""
    if boot is not None and (boot.loader in {"extlinux", "cmdline.txt"} or boot.ostree):
        return None, "", ""  # the file that is edited is the one that is read
    seeded = (
        boot is not None
        and boot.seed is not None
        and (boot.loader not in _BY_DEFAULTS or "kernelstub" in boot.seed_file)
    )
    if boot is not None and boot.seed is not None and seeded:
        return _count(boot.seed.words), boot.seed_file, ""
    if cmdline.configured is None:
        return None, "", "" if boot is not None and boot.loader == "systemd-boot" else "GRUB's defaults were not read"
    if cmdline.dynamic:
        return None, "", "GRUB's defaults hold parts that only the running shell knows"
    return _count(cmdline.configured), "GRUB's defaults", ""


def _dynamic(entries: tuple[Entry, ...]) -> bool:
    return any(entry.line.dynamic for entry in entries)


def _gaps(cmdline: Cmdline, boot: Boot | None, gap: str, entries: tuple[Entry, ...]) -> list[str]:
    gaps = [gap] if gap else []
    if cmdline.running is None:
        gaps.append("the running line is not known")
    if boot is None:
        gaps.append("the generated files were not read")
    elif not entries:
        gaps += boot.hidden[:2] or ("no generated entry was found",)
    elif _dynamic(entries):
        gaps.append(f"{entries[0].where} holds variables that only GRUB knows")
    return gaps


def _count(words: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word in takewhile(lambda word: word != "--", words):
        name, equals, value = word.partition("=")
        key = name.replace("-", "_")
        if key in _KEYS:
            parts = value.split(",") if key == "pci" else [value]
            counts.update(f"{key}{equals}{part}" for part in parts)
    return counts


def _text(counts: Counter[str]) -> str:
    return " ".join(sorted(counts.elements()))[:300]


def _difference(of: Counter[str], other: Counter[str], name: str, other_name: str) -> str:
    told = [f"{_text(only)} only in {where}" for only, where in ((of - other, name), (other - of, other_name)) if only]
    return "; ".join(told)


def _not_generated(
    configured: Counter[str], generated: Counter[str], source: str, boot: Boot, entry: Entry, words: tuple[str, ...]
) -> Finding:
    if boot.loader == "bls":
        missing, extra = configured - generated, generated - configured
        add = f" --args={_quoted(words, missing)}" if missing else ""
        text = (
            "Regenerating does not change existing entries here (RHEL 9.3 and newer, Fedora): use grubby as shown, or put "
            f"what the entries hold into {source}."
        )
        remove = f" --remove-args={_quoted(entry.line.words, extra)}" if extra else ""
        remedy = Remedy(text, (f"sudo grubby --update-kernel=ALL{add}{remove}",), needs_root=True, needs_reboot=True)
    elif "kernelstub" in source:
        remedy = Remedy(
            "Run kernelstub, look at the entry, and reboot.",
            ("sudo kernelstub -v",),
            needs_root=True,
            needs_reboot=True,
        )
    else:
        text = (
            f"Regenerate {entry.where} (update-grub, or grub2-mkconfig -o {entry.where}), look at the line, and reboot."
        )
        remedy = Remedy(text, needs_root=True, needs_reboot=True)
    return Finding(
        State.WARN,
        saw=f"edited but not generated: {_difference(configured, generated, source, entry.where)}",
        wanted=WANTED,
        subject=entry.where,
        remedy=remedy,
        evidence=(f"boot-files: {entry.where}: {' '.join(entry.line.words)[:300]}",),
    )


def _quoted(words: Iterable[str], counts: Counter[str]) -> str:
    """Return the whole words of which a part is among `counts`, for a shell."""
    return quote(" ".join(word for word in words if _count((word,)) & counts))


def _not_running(running: Counter[str], generated: Counter[str], entry: Entry) -> Finding:
    return Finding(
        State.WARN,
        saw=f"a reboot is due: {_difference(generated, running, entry.where, 'the running line')}",
        wanted=WANTED,
        subject="/proc/cmdline",
        remedy=Remedy(
            "Reboot, when no run needs the host; or, if the running line is the right one, put it into the configuration.",
            needs_root=True,
            needs_reboot=True,
        ),
        evidence=(f"proc-cmdline: {_text(running)}", f"boot-files: {entry.where}: {' '.join(entry.line.words)[:300]}"),
    )


def _neither(running: Counter[str], configured: Counter[str], source: str) -> Finding:
    return Finding(
        State.WARN,
        saw=f"not generated, or not booted: {_difference(configured, running, source, 'the running line')}",
        wanted=WANTED,
        subject="/proc/cmdline",
        remedy=Remedy(
            "The generated files were not read. As root, see whether they hold what is configured; regenerate if not; reboot.",
            needs_root=True,
            needs_reboot=True,
        ),
        evidence=(f"proc-cmdline: {_text(running)}", f"etc-default-grub: {_text(configured)}"),
    )


def _later(boot: Boot, running: Counter[str] | None) -> Iterator[Finding]:
    """Remark on kernels that are not next, and on the file that new kernels take their line from."""
    others = sorted({entry.kernel or entry.ids[0] for entry in boot.entries if _count(entry.line.words) != running})
    if others and running is not None:
        yield Finding(State.INFO, saw=f"other entries differ from the running line: {', '.join(others)[:300]}")
    if boot.loader == "bls" and boot.seed is not None and running is not None and _count(boot.seed.words) != running:
        told = _difference(_count(boot.seed.words), running, boot.seed_file, "the running line")
        yield Finding(State.INFO, saw=f"kernels that are installed later get another line: {told}")

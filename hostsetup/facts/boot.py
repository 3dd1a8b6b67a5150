"""Knows what the next boots will ask of the kernel: the entries that boot loaders read, and the files they are made from.

Takes no entry that it cannot read for an empty one. What runs now, and GRUB's defaults, are in facts/cmdline.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hostsetup.facts.cmdline import Words, parse_cmdline, split_grub
from hostsetup.facts.shell import commands
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# grep gives every line its file; of grub.cfg, a script of some hundred lines, only those that matter here
PROBES = (
    Probe(
        "boot-files",
        """echo boot
[ -d /sys/firmware/efi ] && echo efi
[ -e /run/ostree-booted ] && echo ostree
[ -e /etc/kernel/proxmox-boot-uuids ] && echo proxmox
for d in /boot /boot/grub /boot/grub2 /boot/loader/entries /boot/efi /efi; do [ -d "$d" ] && [ ! -x "$d" -o ! -r "$d" ] && echo "denied $d"; done
for f in /boot/grub/grub.cfg /boot/grub2/grub.cfg /boot/efi/EFI/*/grub.cfg /boot/loader/entries/*.conf; do [ -e "$f" ] && [ ! -r "$f" ] && echo "denied $f"; done
for f in /boot/efi/EFI/Linux/*.efi /efi/EFI/Linux/*.efi /boot/EFI/Linux/*.efi; do [ -e "$f" ] && echo "uki $f"; done
grep -sHE '^[[:space:]]*(menuentry|linux(16|efi)?|blscfg|set (default|kernelopts|tuned_params)=?)([[:space:]=]|$)|set (default|kernelopts|tuned_params)=' \
  /boot/grub/grub.cfg /boot/grub2/grub.cfg /boot/efi/EFI/*/grub.cfg
grep -sHE '^(title|version|linux|efi|options|sort-key)[[:space:]]' /boot/loader/entries/*.conf /efi/loader/entries/*.conf /boot/efi/loader/entries/*.conf
grep -sHE '^(saved_entry|kernelopts|tuned_params|next_entry)=' /boot/grub/grubenv /boot/grub2/grubenv
grep -sH '' /etc/kernel/cmdline /usr/lib/kernel/cmdline /etc/kernelstub/configuration \
  /boot/loader/loader.conf /efi/loader/loader.conf /boot/efi/loader/loader.conf \
  /boot/extlinux/extlinux.conf /boot/firmware/cmdline.txt /boot/cmdline.txt
exit 0""",
        root=True,
    ),
)

_LINE = re.compile(r"(/[^:\s]{1,300}):(.*)")
_SET = re.compile(r"\s*(?:set )?(saved_entry|next_entry|kernelopts|tuned_params|default)=(.*)", re.ASCII)
_FIELD = re.compile(r"(title|version|linux|efi|options|sort-key)\s+(.*)", re.ASCII)
_ODD = re.compile(r"recovery|rescue|memtest|\bxen\b", re.IGNORECASE)
MAX_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that can be booted. `where`: its file. `ids`: how a default may name it. `kernel`: the image's path.

    `odd`: for recovery, rescue or something that is no normal boot.
    """

    where: str
    line: Words
    ids: tuple[str, ...] = ()
    kernel: str = ""
    odd: bool = False


@dataclass(frozen=True, slots=True)
class Boot:
    """`loader`: who reads the entries (grub, bls, systemd-boot, extlinux, cmdline.txt; empty: none found).

    `entries`: without odd ones, in the menu's order. `default`: the one that is next, where that can be told. `seed`: the
    words of a file that entries are made from, beside GRUB's defaults, and `seed_file`. `hidden`: why there may be
    entries that are not seen. `ostree`: rpm-ostree alone changes entries.
    """

    loader: str
    entries: tuple[Entry, ...]
    default: Entry | None
    seed: Words | None
    seed_file: str
    hidden: tuple[str, ...]
    ostree: bool = False

    def next(self, running: tuple[str, ...] | None) -> tuple[Entry, ...]:
        """Return what may boot next: the default; else the entries of the running kernel; else all."""
        if self.default is not None:
            return (self.default,)
        image = next((word.partition("=")[2] for word in running or () if word.startswith("BOOT_IMAGE=")), "")
        name = image.rpartition("/")[2].rpartition(")")[2]
        same = tuple(entry for entry in self.entries if name and entry.kernel.rpartition("/")[2] == name)
        return same or self.entries


def parse_boot(text: str) -> Boot:
    """Read the lines `boot`, `efi`, `ostree`, `proxmox`, `denied PATH`, `uki PATH` and `PATH:LINE`."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "boot":
        raise ValueError("not the files of a boot loader")
    files: dict[str, list[str]] = {}
    flags: set[str] = set()
    hidden: list[str] = []
    for line in lines[1:]:
        if found := _LINE.fullmatch(line):
            files.setdefault(found[1], []).append(found[2])
        elif line in {"efi", "ostree", "proxmox"}:
            flags.add(line)
        elif line.startswith("denied "):
            hidden.append(f"{line[7:200]} is not readable without root")
        elif line.startswith("uki "):
            hidden.append(f"the line of {line[4:200]} is inside the image")
        elif line.strip():
            raise ValueError("a line of no file")
    if "proxmox" in flags:
        hidden.append("proxmox-boot-tool keeps the entries on partitions that are not mounted")
    seed_file, seed = _seed(files)
    loader, entries = _entries(files, flags)
    normal = tuple(entry for entry in entries if not entry.odd)
    return Boot(
        loader,
        normal,
        _default(loader, normal, files, ostree="ostree" in flags),
        seed,
        seed_file,
        tuple(hidden),
        "ostree" in flags,
    )


def _seed(files: Mapping[str, list[str]]) -> tuple[str, Words | None]:
    path = "/etc/kernelstub/configuration"
    if path in files:
        try:
            data: Any = json.loads("\n".join(files[path]))
            options = [*data["default"]["kernel_options"], *data["user"]["kernel_options"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError("kernelstub's configuration is not what it was") from error
        return path, Words(tuple(word for option in options for word in str(option).split()))
    for path in ("/etc/kernel/cmdline", "/usr/lib/kernel/cmdline"):
        told = [line for line in files.get(path, []) if line.strip() and not line.startswith("#")]
        if told:
            return path, Words(parse_cmdline(" ".join(told)))
    return "", None


def _entries(files: Mapping[str, list[str]], flags: set[str]) -> tuple[str, list[Entry]]:
    scripts = [path for path in files if path.endswith("/grub.cfg")]
    if "efi" in flags:  # the one on the EFI partition is read first, the other may be left over
        scripts.sort(key=lambda path: "/EFI/" not in path)
    else:
        scripts = [path for path in scripts if "/EFI/" not in path]
    bls = [path for path in files if "/loader/entries/" in path]
    blscfg = any(line.strip().startswith("blscfg") for path in scripts for line in files[path])
    if bls and (blscfg or not any(_menu(path, files[path]) for path in scripts)):
        variables = _variables(files)
        known = [
            _specified(path, files[path], variables if scripts or blscfg else None)
            for path in sorted(bls, reverse=True)
        ]
        return ("bls" if scripts or _grubenv(files) else "systemd-boot"), known[:MAX_ENTRIES]
    for path in scripts:
        if menu := _menu(path, files[path], _variables(files)):
            return "grub", menu
    if "/boot/extlinux/extlinux.conf" in files:
        return "extlinux", list(_extlinux(files["/boot/extlinux/extlinux.conf"]))
    for path in ("/boot/firmware/cmdline.txt", "/boot/cmdline.txt"):
        if path in files:
            # of several lines the firmware takes the first
            return "cmdline.txt", [Entry(path, Words(parse_cmdline(files[path][0])))]
    return "", []


def _grubenv(files: Mapping[str, list[str]]) -> bool:
    return any(path.endswith("/grubenv") for path in files)


def _variables(files: Mapping[str, list[str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(files, key=lambda path: path.endswith("/grubenv")):  # what was saved is loaded last
        if path.endswith(("/grub.cfg", "/grubenv")):
            for line in files[path]:
                if (setting := _SET.fullmatch(line)) and "$" not in setting[2]:
                    found[setting[1]] = setting[2].strip().strip("\"'")
    return found


def _menu(path: str, lines: list[str], variables: Mapping[str, str] | None = None) -> list[Entry]:
    entries: list[Entry] = []
    head: tuple[str, ...] = ()
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        if kind == "menuentry":
            head = next((command.words for command in commands(rest, {"menuentry_id_option": "--id"})), ())
        elif kind.partition("\t")[0] in {"linux", "linux16", "linuxefi"} and head and len(entries) < MAX_ENTRIES:
            words = split_grub(line.strip(), variables)
            kernel = words.words[1] if len(words.words) > 1 else ""
            ids = (head[0], *(after for at, after in pairwise(head) if at == "--id"))
            odd = any(map(_ODD.search, ids)) or "single" in words.words
            entries.append(Entry(path, replace(words, words=words.words[2:]), ids, kernel, odd))
            head = ()
    return entries


def _specified(path: str, lines: list[str], variables: Mapping[str, str] | None) -> Entry:
    fields: dict[str, str] = {}
    for found in filter(None, (_FIELD.fullmatch(line.strip()) for line in lines)):
        before = fields.get(found[1], "") if found[1] == "options" else ""  # options may come in several lines
        fields[found[1]] = f"{before} {found[2]}".strip()
    options, title = fields.get("options", ""), fields.get("title", "")
    raw = Words(parse_cmdline(options) if options and variables is None else ())
    words = raw if variables is None else _expanded(options, variables)
    stem = path.rpartition("/")[2].removesuffix(".conf")
    return Entry(path, words, (stem, title), fields.get("linux", ""), bool(_ODD.search(f"{title} {stem}")))


def _expanded(options: str, variables: Mapping[str, str]) -> Words:
    # GRUB splits a variable's value into words, and a tuned_params that nobody set is empty
    known = {"tuned_params": "", **variables}
    return split_grub(re.sub(r"\$(\w+)", lambda found: known.get(found[1], found[0]), options))


def _extlinux(lines: list[str]) -> Iterator[Entry]:
    label = kernel = ""
    for line in lines:
        key, _, value = line.strip().partition(" ")
        match key.upper():
            case "LABEL":
                label, kernel = value.strip(), ""
            case "LINUX" | "KERNEL":
                kernel = value.strip()
            case "APPEND" if value.strip():
                words = parse_cmdline(value)
                yield Entry("/boot/extlinux/extlinux.conf", Words(words), (label,), kernel, bool(_ODD.search(label)))


def _default(loader: str, entries: tuple[Entry, ...], files: Mapping[str, list[str]], *, ostree: bool) -> Entry | None:
    if len(entries) == 1 or (entries and ostree):
        return entries[0]
    variables = _variables(files)
    wanted = variables.get("next_entry") or variables.get("saved_entry", "")
    if loader == "grub":
        chosen = [line for path, lines in files.items() if path.endswith("grub.cfg") for line in lines]
        settings = [
            found[2].strip("\"' ") for line in chosen if (found := _SET.fullmatch(line)) and found[1] == "default"
        ]
        if not any("saved_entry" in one for one in settings):  # what was saved once is not used
            wanted = next((one for one in reversed(settings) if one and "$" not in one), "")
        if wanted == "0" and entries:
            return entries[0]
    elif loader == "systemd-boot":
        told = [line.split() for path, lines in files.items() if path.endswith("loader.conf") for line in lines]
        wanted = next(
            (words[1].removesuffix(".conf") for words in told if len(words) == 2 and words[0] == "default"), ""
        )
    elif loader == "extlinux":
        told = [line.split() for line in files["/boot/extlinux/extlinux.conf"]]
        wanted = next((words[1] for words in told if len(words) == 2 and words[0].upper() == "DEFAULT"), "")
    wanted = wanted.rpartition(">")[2]  # submenu>entry
    return next((entry for entry in entries if wanted and any(fnmatchcase(name, wanted) for name in entry.ids)), None)


def read(evidence: Evidence) -> Known[Boot] | Unknown:
    """Return the entries and the files behind them."""
    reply = evidence.answer("boot-files")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_boot(reply.text))
    except ValueError as error:
        return Unknown(f"`boot-files`: {error}")

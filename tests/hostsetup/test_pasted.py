"""What people save by hand reads like what the tools print: pasted, coloured, indented, wrapped, after a prompt."""

import re
import textwrap
from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.model import Evidence, Reply, State

MACHINES = Path(__file__).parents[1] / "machines"
ASKED = {
    "lspci-vvv": "lspci -vvv",
    "lscpu": "lscpu",
    "nvidia-smi": "nvidia-smi",
    "nvidia-smi-q": "nvidia-smi -q",
    "nvidia-smi-topo": "nvidia-smi topo -m",
    "nvidia-smi-topo-p2p": "nvidia-smi topo -p2p r",
    "nvidia-smi-nvlink": "nvidia-smi nvlink -s",
    "proc-cmdline": "cat /proc/cmdline",
    "etc-default-grub": "cat /etc/default/grub",
    "dmesg": "sudo dmesg | grep -i nvrm",
    "docker-info": "docker info",
    "ip-addr": "ip addr",
    "etc-hosts": "cat /etc/hosts",
    "os-release": "cat /etc/os-release",
    "uname": "uname -a",
    "ulimit": "ulimit -a",
    "df": "df -h",
    "ibv-devinfo": "ibv_devinfo -v",
    "rdma-link": "rdma link",
}
TEXTS = [
    pytest.param(path.stem, path.read_text("utf-8"), id=f"{path.parent.name}-{path.stem}")
    for path in sorted(MACHINES.glob("*/*.txt"))
    if path.stem in ASKED
]


def each(change):
    return lambda text, _: "\n".join(change(line) if line.strip() else line for line in text.split("\n"))


def coloured(line):
    return f"\x1b[0m\x1b[01;31m\x1b[K{line[:6]}\x1b[m\x1b[K{line[6:]}"


WAYS = {
    "crlf": lambda text, _: text.replace("\n", "\r\n"),
    "trailing blanks": each(lambda line: line + "   "),
    "tabs as blanks": each(lambda line: line.expandtabs(8)),
    "indented": each(lambda line: "    " + line),
    "indented by one": each(lambda line: " " + line),
    "after a prompt": lambda text, asked: f"user@gpu01:~$ {asked}\n{text}\nuser@gpu01:~$ ",
    "after root's prompt": lambda text, asked: f"[root@gpu01 ~]# {asked}\n{text}\n[root@gpu01 ~]#\n",
    "after a short prompt": lambda text, asked: f"# {asked}\n{text}",
    "in a fence": lambda text, _: f"```\n{text}\n```\n",
    "coloured": each(coloured),
    "underlined head": lambda text, _: "\x1b[4m" + text.replace("\n", "\x1b[0m\n", 1),
    "byte order mark": lambda text, _: "\ufeff" + text,
    "blanks that do not break": each(lambda line: line.replace(" ", "\xa0")),
}


def told(probe, text, encoding="utf-8"):
    facts = host.read(Evidence("gpu01", {probe: Reply(text.encode(encoding), exit_code=None)}))
    found = {(finding.check, finding.state, finding.subject) for finding in checks.run({"gpu01": facts})}
    return host.flat(facts), {one for one in found if one[1] not in {State.UNKNOWN, State.SKIP}}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("probe", "text"), TEXTS)
def test_a_paste_reads_like_the_output(probe, text, way):
    assert told(probe, way(text, ASKED[probe])) == told(probe, text)


@pytest.mark.parametrize(("probe", "text"), TEXTS)
def test_windows_saves_text_in_wide_characters(probe, text):
    assert told(probe, "\ufeff" + text, "utf-16-le") == told(probe, text)


def hard(text, width):
    return "\n".join(
        part for line in text.expandtabs(8).split("\n") for part in (re.findall(rf".{{1,{width}}}", line) or [""])
    )


def soft(text, width):
    return "\n".join(
        part
        for line in text.expandtabs(8).split("\n")
        for part in (textwrap.wrap(line, width, initial_indent=re.match(r" *", line)[0]) or [""])
    )


@pytest.mark.parametrize("wrap", [hard, soft])
@pytest.mark.parametrize("width", [80, 100, 132])
@pytest.mark.parametrize(
    ("probe", "text"),
    [one for one in TEXTS if one.values[0] in {"lspci-vvv", "nvidia-smi-topo", "nvidia-smi-topo-p2p", "rdma-link"}],
)
def test_a_terminal_that_is_too_narrow_wraps_lines(probe, text, wrap, width):
    assert told(probe, wrap(text, width)) == told(probe, text)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.85, 0.97])
@pytest.mark.parametrize(("probe", "text"), TEXTS)
def test_a_text_that_was_cut_off_accuses_nobody(probe, text, share):
    bad = {one for one in told(probe, text)[1] if one[1] in {State.FAIL, State.WARN}}
    lines = text.splitlines(keepends=True)
    cut = told(probe, "".join(lines[: max(1, int(len(lines) * share))]))[1]
    assert {one[0] for one in cut if one[1] in {State.FAIL, State.WARN}} <= {one[0] for one in bad}

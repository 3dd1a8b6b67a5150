"""Knows the NVIDIA Container Toolkit of a host: its parts, its version, its mode, and its CDI specifications. Writes none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostsetup.facts.docker import Docker

HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")  # the second is the first one's old name
_TOOLS = (*HOOKS, "nvidia-container-runtime", "nvidia-cdi-hook", "nvidia-container-cli", "nvidia-ctk")
_IN_SPEC = r'("?kind"?: *"?[A-Za-z0-9./-]+|"?name"?: *"?[A-Za-z0-9:._-]+|lib(cuda|nvidia-ml)\.so\.[0-9]+\.[0-9.]+)'
PROBES = (
    Probe(
        "nvidia-toolkit",
        rf"""echo nvidia-toolkit
for t in {" ".join(_TOOLS)}; do p=$(command -v "$t") && printf 'tool %s\n' "$p"; done
command -v nvidia-ctk >/dev/null && nvidia-ctk --version 2>&1 | head -n 2
command -v nvidia-container-cli >/dev/null && nvidia-container-cli --version 2>&1 | head -n 2
grep -sE '^[[:space:]]*(\[|mode|no-cgroups)' /etc/nvidia-container-runtime/config.toml | sed 's/^[[:space:]]*/config /'
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -e "$f" ] || continue
  printf 'spec %s\n' "$f"
  if [ -r "$f" ]; then grep -oE '{_IN_SPEC}' "$f" | sort -u | head -n 500; else echo unreadable; fi
done
exit 0""",
    ),
)
MOST_LINES = 5000
KIND = "nvidia.com/gpu"
_VERSION = re.compile(
    r"(?:NVIDIA Container Toolkit CLI version|cli-version:)\s*v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)", re.ASCII
)
_CONFIG = re.compile(r"config ([\w-]{1,40})\s*=\s*\"?([\w.-]{1,40})\"?.*", re.ASCII)
_SECTION = re.compile(r"config \[([\w.-]{1,80})\].*", re.ASCII)
_KIND = re.compile(r'"?kind"?: *"?([A-Za-z0-9./-]+)', re.ASCII)
_NAME = re.compile(r'"?name"?: *"?([A-Za-z0-9:._-]{1,80})', re.ASCII)
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3,4}(?:\.\d{1,4}){1,2})", re.ASCII)
_BY_ITSELF = (1, 18)  # since then the runtime makes CDI specifications as it needs them
_ENGINE_KNOWS = 29  # the major of the engines that may turn --gpus into CDI devices


@dataclass(frozen=True, slots=True)
class Spec:
    """One CDI specification. `drivers`: the versions of the driver's libraries that it names."""

    path: str
    kind: str = ""
    devices: frozenset[str] = frozenset()
    drivers: tuple[str, ...] = ()
    readable: bool = True


@dataclass(frozen=True, slots=True)
class Toolkit:
    """`tools`: paths by name. `mode`: of the runtime, `auto` unless set. `no_cgroups`: the hook leaves devices closed."""

    tools: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    mode: str = "auto"
    no_cgroups: bool = False
    specs: tuple[Spec, ...] = ()

    @property
    def hook(self) -> str:
        """The path of the hook that `docker run --gpus` calls, or an empty string."""
        return next((self.tools[name] for name in HOOKS if name in self.tools), "")

    @property
    def gpu_specs(self) -> tuple[Spec, ...]:
        """The CDI specifications of NVIDIA GPUs, and those that could not be read."""
        return tuple(spec for spec in self.specs if spec.kind == KIND or not spec.readable)


def by_cdi(toolkit: Toolkit, docker: Docker) -> bool | None:
    """Return whether `--gpus` gives GPUs as CDI devices; None: a new engine may do so.

    Without CDI a hook opens the devices behind systemd's back. The runtime of the toolkit counts only as the default one.
    """
    if docker.default_runtime == "nvidia":
        number = re.match(r"(\d+)\.(\d+)", toolkit.version)
        made = number is not None and (int(number[1]), int(number[2])) >= _BY_ITSELF
        if "cdi" in toolkit.mode or (toolkit.mode == "auto" and made):
            return True
    major = docker.version.partition(".")[0]
    new = major.isascii() and major.isdigit() and int(major) >= _ENGINE_KNOWS
    if new and "nvidia-cdi-hook" in toolkit.tools and toolkit.gpu_specs:
        return None if toolkit.hook else True
    return False


def parse_toolkit(text: str) -> Toolkit:
    """Read the probe's lines: `tool PATH`, versions, `config KEY = VALUE`, and `spec PATH` with what was found in it."""
    lines = text.splitlines()[:MOST_LINES]
    if not lines or lines[0].strip() != "nvidia-toolkit":
        raise ValueError("not the answer of the probe of the toolkit")
    tools: dict[str, str] = {}
    specs: list[tuple[str, list[str]]] = []
    version, section = "", ""
    config: dict[str, str] = {}
    for line in lines[1:]:
        if line.startswith("tool /"):
            tools[line.rpartition("/")[2][:80]] = line.removeprefix("tool ")[:300]
        elif line.startswith("spec /"):
            specs.append((line.removeprefix("spec ")[:300], []))
        elif specs:
            specs[-1][1].append(line.strip()[:300])
        elif found := _SECTION.fullmatch(line):
            section = found[1]
        elif found := _CONFIG.fullmatch(line):
            config[f"{section}.{found[1]}"] = found[2]
        elif found := _VERSION.search(line[:300]):
            version = version or found[1]
    return Toolkit(
        tools,
        version,
        config.get("nvidia-container-runtime.mode", "auto"),
        config.get("nvidia-container-cli.no-cgroups") == "true",
        tuple(_spec(path, body) for path, body in specs[:50]),
    )


def _spec(path: str, body: list[str]) -> Spec:
    found = [_KIND.fullmatch(line) for line in body]
    drivers = dict.fromkeys(one[1] for line in body if (one := _DRIVER.fullmatch(line.rstrip("."))))
    return Spec(
        path,
        next((one[1] for one in found if one), ""),
        frozenset(one[1] for line in body if (one := _NAME.fullmatch(line))),
        tuple(drivers),
        readable="unreadable" not in body,
    )


def read(evidence: Evidence) -> Known[Toolkit] | Unknown:
    """Return the toolkit; a host without it has none of its parts, which is known."""
    reply = evidence.answer("nvidia-toolkit")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_toolkit(reply.text))
    except ValueError as error:
        return Unknown(f"`nvidia-toolkit`: {error}")


def tell(toolkit: Toolkit) -> dict[str, Any]:
    """Return the facts for JSON; nothing where there is no toolkit."""
    if not toolkit.tools and not toolkit.specs:
        return {}
    return {"version": toolkit.version, "mode": toolkit.mode, "cdi_specs": [spec.path for spec in toolkit.specs]}

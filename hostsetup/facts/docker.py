"""Knows whether a host's container engine answers the SSH user, what it is and how it is set up. Speaks to no engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hostsetup.model import Evidence, Known, Probe, Reply, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

_BY_SUDO = "muster: by sudo -n"
_PATH, _VARIABLE = "muster: docker is ", "muster: DOCKER_HOST is "
TOOL = "docker"  # every probe that asks the engine: one that hangs costs one time limit
# the launcher goes the same way: as the user, or else by sudo where that needs no password
_COMMAND = f"""command -v docker >/dev/null && echo "{_PATH}$(command -v docker)" >&2
[ -z "$DOCKER_HOST" ] || echo "{_VARIABLE}$DOCKER_HOST" >&2
if docker version >/dev/null 2>&1 || ! sudo -n docker version >/dev/null 2>&1
then docker info --format '{{{{json .}}}}'
else echo '{_BY_SUDO}' >&2; sudo -n docker info --format '{{{{json .}}}}'
fi"""
PROBES = (Probe("docker-info", _COMMAND, timeout_s=20, tool=TOOL),)
MOST = 200  # items kept of any list
_LONGEST = 300


class Engine(StrEnum):
    """How the engine answered."""

    OK = "ok"
    MISSING = "missing"
    DENIED = "denied"
    DOWN = "down"
    ERROR = "error"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True)
class Docker:
    """The engine; `said`: its own words when it did not answer well. Empty strings and tuples: not said.

    `name`: what the engine's machine calls itself. `path`: of the command. `variable`: DOCKER_HOST of the session.
    `security`: names of its security options. `containerd_store`: images lie in containerd, and their ids are other ones.
    """

    engine: Engine
    said: str = ""
    version: str = ""
    client: str = ""
    storage_driver: str = ""
    root_dir: str = ""
    cgroup_version: str = ""
    cgroup_driver: str = ""
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    security: tuple[str, ...] = ()
    seccomp: str = ""
    containerd_store: bool = False
    cdi_devices: tuple[str, ...] = ()
    system: str = ""
    name: str = ""
    context: str = ""
    path: str = ""
    variable: str = ""
    warnings: tuple[str, ...] = ()
    by_sudo: bool = False

    @property
    def rootless(self) -> bool:
        """Whether the engine runs without root."""
        return "rootless" in self.security

    @property
    def absent(self) -> str:
        """Return why checks of the engine do not apply, or an empty string where it answers."""
        return "" if self.engine is Engine.OK else "no engine answers: see docker.daemon"


def numbers(version: str) -> tuple[int, int]:
    """Return the first two numbers of an engine's version, to compare; raise ValueError when it is none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?![\d])", version, re.ASCII)
    if found is None or (int(found[1]), int(found[2])) == (0, 0):  # 0.0.0-DATE: a build from a branch
        raise ValueError(f"not a version: {version[:40]!r}")
    return int(found[1]), int(found[2])


_ERRORS = (
    (re.compile(r"permission denied", re.IGNORECASE), Engine.DENIED),
    (re.compile(r"cannot connect to the docker daemon|is the docker daemon running", re.IGNORECASE), Engine.DOWN),
    (
        re.compile(r"failed to connect to the docker api|daemon is running|connection refused", re.IGNORECASE),
        Engine.DOWN,
    ),
    (re.compile(r"docker: (?:command )?not found|command not found: docker", re.IGNORECASE), Engine.MISSING),
)


def classify(text: str) -> Engine:
    """Return which failure an error text of the docker command tells of; ERROR when it is none of the usual ones."""
    told = "\n".join(line for line in text.splitlines() if "Error loading config file" not in line)
    return next((engine for pattern, engine in _ERRORS if pattern.search(told)), Engine.ERROR)


def parse_info(text: str) -> Docker:
    """Read `docker info`, as JSON or as plain text; also the error texts it prints instead."""
    start = text.find("{")
    if start >= 0 and not text[:start].rpartition("\n")[2].strip():
        try:
            data, _ = json.JSONDecoder().raw_decode(text, start)
        except RecursionError as error:
            raise ValueError("JSON nested too deeply") from error
        return _from_json(data)
    fields = _plain_fields(text)
    if fields.keys() & _SERVERS:  # people cut a line or two out of it
        return _from_plain(text, fields)
    if "graphDriverName" in text or "buildahVersion" in text:
        return Docker(Engine.PODMAN)
    failure = classify(text)
    if failure is Engine.ERROR and not re.search(
        r"^(ERROR|errors pretty printing info|docker|Error)\b", text, re.MULTILINE
    ):
        raise ValueError("neither `docker info` nor one of its errors")
    return Docker(failure, said=_first_error(text))


def _from_json(data: Any) -> Docker:
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the text is wrong, not the caller
    if isinstance(data.get("host"), dict) and "store" in data:
        version = data.get("version")
        return Docker(Engine.PODMAN, version=str(version.get("Version", "")) if isinstance(version, dict) else "")
    errors = _texts(data.get("ServerErrors"))
    if errors:
        return Docker(classify(" ".join(errors)), said=errors[0])
    if not data.get("ServerVersion"):
        raise ValueError("JSON without ServerVersion and without ServerErrors")
    runtimes = data.get("Runtimes")
    client = data.get("ClientInfo")
    told = client if isinstance(client, dict) else {}
    options = [_option(text) for text in _texts(data.get("SecurityOptions"))]
    devices = data.get("DiscoveredDevices")
    return Docker(
        Engine.OK,
        version=_text(data, "ServerVersion"),
        client=_text(told, "Version"),
        storage_driver=_text(data, "Driver"),
        root_dir=_text(data, "DockerRootDir"),
        cgroup_version=_text(data, "CgroupVersion"),
        cgroup_driver=_text(data, "CgroupDriver"),
        runtimes=tuple(sorted(runtimes)[:MOST]) if isinstance(runtimes, dict) else (),
        default_runtime=_text(data, "DefaultRuntime"),
        security=tuple(name for name, _ in options),
        seccomp=next((profile for name, profile in options if name == "seccomp"), ""),
        containerd_store=_SNAPSHOTTER in str(data.get("DriverStatus"))[:5000],
        cdi_devices=_devices(_text(one, "ID") for one in devices if isinstance(one, dict))
        if isinstance(devices, list)
        else (),
        system=_text(data, "OperatingSystem"),
        name=_text(data, "Name"),
        context=_text(told, "Context"),
        warnings=_texts(data.get("Warnings")),
    )


def _from_plain(text: str, fields: dict[str, str]) -> Docker:
    profile, names = "", []
    for line in _block(text, "Security Options"):
        if line.startswith("Profile: "):
            profile = line.removeprefix("Profile: ")[:_LONGEST]
        else:
            names.append(line[:80])
    return Docker(
        Engine.OK,
        version=fields.get("Server Version", ""),
        storage_driver=fields.get("Storage Driver", ""),
        root_dir=fields.get("Docker Root Dir", ""),
        cgroup_version=fields.get("Cgroup Version", ""),
        cgroup_driver=fields.get("Cgroup Driver", ""),
        runtimes=tuple(sorted(fields.get("Runtimes", "").split())[:MOST]),
        default_runtime=fields.get("Default Runtime", ""),
        security=tuple(names),
        seccomp=profile,
        containerd_store=_SNAPSHOTTER in text,
        cdi_devices=_devices(line.removeprefix("cdi: ") for line in _block(text, "Discovered Devices")),
        system=fields.get("Operating System", ""),
        name=fields.get("Name", ""),
        context=fields.get("Context", ""),
        warnings=tuple(line.strip() for line in text.splitlines() if line.startswith("WARNING:"))[:MOST],
    )


# what plain text says of the engine itself, and of nothing else
_SERVERS = {"Server Version", "Storage Driver", "Docker Root Dir", "Cgroup Driver", "Runtimes", "Default Runtime"}
_SNAPSHOTTER = "io.containerd.snapshotter"


def _text(data: dict[str, Any], key: str) -> str:
    return str(data.get(key) or "")[:_LONGEST]


def _option(text: str) -> tuple[str, str]:
    """Read a security option, `name=seccomp,profile=builtin`; old engines leave `name=` out."""
    said = dict(part.partition("=")[::2] for part in text.split(",")[:10])
    return said.get("name", text.partition(",")[0])[:80], said.get("profile", "")[:_LONGEST]


def _devices(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if re.fullmatch(r"[\w./-]{1,100}=[\w.:-]{1,100}", name, re.ASCII))[:MOST]


def _block(text: str, title: str) -> tuple[str, ...]:
    """Return the lines below a title of plain `docker info` that are indented deeper than it."""
    lines = text.splitlines()
    at = next((n for n, line in enumerate(lines) if line.strip() == f"{title}:"), len(lines))
    if at == len(lines):
        return ()
    depth = len(lines[at]) - len(lines[at].lstrip())
    found = []
    for line in lines[at + 1 : at + 1 + MOST]:
        if len(line) - len(line.lstrip()) <= depth:
            break
        found.append(line.strip())
    return tuple(found)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item)[:_LONGEST] for item in value[:MOST]) if isinstance(value, list) else ()


def _plain_fields(text: str) -> dict[str, str]:
    pairs = (line.strip().partition(": ") for line in text.splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if classify(line) is not Engine.ERROR] or [
        line for line in lines if "rror" in line
    ]
    return next(iter(telling or lines[-1:]), "")


def read(evidence: Evidence) -> Known[Docker] | Unknown:
    """Return the engine. Unlike elsewhere, a missing command is a fact here: there is no engine to use."""
    given = evidence.replies.get("docker-info")
    if given is not None and given.exit_code == 127:
        return Known(Docker(Engine.MISSING, said=_words(given.error_text) or "docker: not found"))
    reply = evidence.answer("docker-info")
    if isinstance(reply, Unknown):
        return reply
    for text in _told(reply):
        try:
            told = parse_info(text)
        except ValueError:
            continue
        return Known(
            replace(
                told,
                by_sudo=_BY_SUDO in reply.error_text,
                path=_mark(reply, _PATH),
                variable=_mark(reply, _VARIABLE),
            )
        )
    return Unknown("`docker-info`: neither `docker info` nor one of its errors")


def _told(reply: Reply) -> tuple[str, ...]:
    return tuple(text for text in (reply.text, _words(reply.error_text)) if text.strip())


def _words(text: str) -> str:
    """Return what docker said, without the marks of the probe."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("muster: ")).strip()


def _mark(reply: Reply, mark: str) -> str:
    return next(
        (line[len(mark) :].strip()[:_LONGEST] for line in reply.error_text.splitlines() if line.startswith(mark)), ""
    )


def tell(docker: Docker) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "state": docker.engine.value,
        "version": docker.version,
        "storage_driver": docker.storage_driver,
        "root_dir": docker.root_dir,
        "cgroup": f"v{docker.cgroup_version} {docker.cgroup_driver}".strip() if docker.cgroup_version else "",
        "runtimes": list(docker.runtimes),
        "security": list(docker.security),
    }

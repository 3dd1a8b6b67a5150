"""Knows whether a host's container engine answers the SSH user, and what it is. Speaks to no engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Reply, Unknown

_BY_SUDO = "muster: by sudo -n"
# the launcher goes the same way: as the user, or else by sudo where that needs no password
_COMMAND = f"""if docker version >/dev/null 2>&1 || ! sudo -n docker version >/dev/null 2>&1
then docker info --format '{{{{json .}}}}'
else echo '{_BY_SUDO}' >&2; sudo -n docker info --format '{{{{json .}}}}'
fi"""
PROBES = (Probe("docker-info", _COMMAND, timeout_s=20),)


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
    """The engine; `said`: its own words when it did not answer well. Empty strings: not said."""

    engine: Engine
    said: str = ""
    version: str = ""
    storage_driver: str = ""
    root_dir: str = ""
    cgroup_version: str = ""
    runtimes: tuple[str, ...] = ()
    rootless: bool = False
    warnings: tuple[str, ...] = ()
    by_sudo: bool = False


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
    if start >= 0 and (start == 0 or text[start - 1] == "\n"):
        try:
            data, _ = json.JSONDecoder().raw_decode(text, start)
        except RecursionError as error:
            raise ValueError("JSON nested too deeply") from error
        return _from_json(data)
    fields = _plain_fields(text)
    if "Server Version" in fields:
        return Docker(
            Engine.OK,
            version=fields["Server Version"],
            storage_driver=fields.get("Storage Driver", ""),
            root_dir=fields.get("Docker Root Dir", ""),
            cgroup_version=fields.get("Cgroup Version", ""),
            runtimes=tuple(sorted(fields.get("Runtimes", "").split())),
            rootless="rootless" in text,
            warnings=tuple(line.strip() for line in text.splitlines() if line.startswith("WARNING:")),
        )
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
    return Docker(
        Engine.OK,
        version=str(data["ServerVersion"]),
        storage_driver=str(data.get("Driver") or ""),
        root_dir=str(data.get("DockerRootDir") or ""),
        cgroup_version=str(data.get("CgroupVersion") or ""),
        runtimes=tuple(sorted(runtimes)) if isinstance(runtimes, dict) else (),
        rootless=any("name=rootless" in option for option in _texts(data.get("SecurityOptions"))),
        warnings=_texts(data.get("Warnings")),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


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
        return Known(Docker(Engine.MISSING, said=given.error_text.strip() or "docker: not found"))
    reply = evidence.answer("docker-info")
    if isinstance(reply, Unknown):
        return reply
    for text in _told(reply):
        try:
            return Known(replace(parse_info(text), by_sudo=_BY_SUDO in reply.error_text))
        except ValueError:
            continue
    return Unknown("`docker-info`: neither `docker info` nor one of its errors")


def _told(reply: Reply) -> tuple[str, ...]:
    return tuple(text for text in (reply.text, reply.error_text) if text.strip())


def tell(docker: Docker) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"state": docker.engine.value, "version": docker.version, "storage_driver": docker.storage_driver}

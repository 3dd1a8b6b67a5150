"""Knows the images and networks that a host's container engine holds. Pulls, removes and creates none."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hostsetup.facts.docker import TOOL
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

Subnet: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# a JSON object by hand: all of a network would tell every container's address, and hundreds of them
_NETWORK = (
    'network {"name":{{json .Name}},"id":{{json .Id}},"driver":{{json .Driver}},"ipam":{{json .IPAM.Config}},'
    '"options":{{json .Options}}}'
)
_IMAGE = "image {{.Repository}} {{.Tag}} {{.ID}} {{.Digest}} {{.Size}}"
PROBES = (
    Probe(
        "docker-objects",
        f"""command -v docker >/dev/null || exit 127
d=docker
ids=$(docker network ls -q --no-trunc 2>/dev/null) || {{ d='sudo -n docker'; ids=$($d network ls -q --no-trunc) || exit; }}
echo docker-objects
{{
  [ -z "$ids" ] || $d network inspect --format '{_NETWORK}' $ids
  $d image ls --no-trunc --format '{_IMAGE}'
}} | head -c 400000""",
        timeout_s=20,
        tool=TOOL,
    ),
)
MOST = 5000
_ROW = re.compile(
    r"image (\S{1,300}) (\S{1,150}) (sha256:[0-9a-f]{12,64}|[0-9a-f]{12}) (\S{1,100}) (\S{1,20})", re.ASCII
)
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([kMGT]?B)", re.ASCII)
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Image:
    """One image under one name (`REPOSITORY:TAG`). `digest`: the registry's, empty for one that was built. None: no size."""

    name: str
    id: str
    digest: str = ""
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """One network. `bridge`: the interface on the host that carries it, empty where it has none."""

    name: str
    driver: str
    bridge: str = ""
    subnets: tuple[Subnet, ...] = ()


@dataclass(frozen=True, slots=True)
class Objects:
    """What the engine holds."""

    images: tuple[Image, ...] = ()
    networks: tuple[Network, ...] = ()

    def image(self, reference: str) -> Image | None:
        """Return the image of that name (`latest` where it has no tag), or of that id or digest."""
        reference = reference.removeprefix("docker.io/").removeprefix("library/")
        tagged = reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"
        digest = reference.partition("@")[2]
        return next(
            (
                one
                for one in self.images
                if one.name == tagged or one.id == reference or (digest and one.digest == digest)
            ),
            None,
        )


def parse_objects(text: str) -> Objects:
    """Read the lines `network {...}` and `image REPOSITORY TAG ID DIGEST SIZE` below the probe's own first line."""
    lines = text.splitlines()[: MOST * 2]
    if not lines or lines[0].strip() != "docker-objects":
        raise ValueError("not the answer of the probe of images and networks")
    images: list[Image] = []
    networks: list[Network] = []
    for line in lines[1:]:
        if line.startswith("network "):
            networks.append(_network(line.removeprefix("network ")))
        elif (found := _ROW.fullmatch(line.strip())) and found[1] != _NONE and found[2] != _NONE:
            digest = "" if found[4] == _NONE else found[4]
            images.append(Image(f"{found[1]}:{found[2]}", found[3], digest, _bytes(found[5])))
    return Objects(tuple(images[:MOST]), tuple(networks[:MOST]))


def _network(text: str) -> Network:
    try:
        data: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("a network is a JSON object")  # noqa: TRY004 - the text is wrong, not the caller
    name, driver, identity = (str(data.get(key) or "")[:200] for key in ("name", "driver", "id"))
    options = data.get("options")
    named = options.get("com.docker.network.bridge.name") if isinstance(options, dict) else None
    bridge = str(named)[:32] if named else f"br-{identity[:12]}" if driver == "bridge" and identity else ""
    return Network(name, driver, bridge, tuple(_subnets(data.get("ipam"))))


def _subnets(ipam: Any) -> Iterator[Subnet]:
    for pool in ipam[:50] if isinstance(ipam, list) else ():
        subnet = pool.get("Subnet") if isinstance(pool, dict) else None
        if subnet:
            yield ipaddress.ip_network(str(subnet), strict=False)


def _bytes(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def read(evidence: Evidence) -> Known[Objects] | Unknown:
    """Return what the engine holds."""
    reply = evidence.answer("docker-objects")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_objects(reply.text))
    except ValueError as error:
        said = next((line.strip() for line in reply.error_text.splitlines() if line.strip()), "")
        return Unknown(f"`docker-objects`: {said[:200] or error}")


def tell(objects: Objects) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {
        "images": {one.name: one.id for one in objects.images},
        "networks": {one.name: [str(subnet) for subnet in one.subnets] for one in objects.networks if one.subnets},
    }

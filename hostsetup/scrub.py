"""Replaces what names a site in its evidence: hosts, people, addresses, serial numbers. Changes nothing that a check judges.

The same thing gets the same replacement on every host, and addresses that shared a prefix still share one as long. What
stands for what depends on a key that nobody keeps.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Bits of an address that say what kind it is; they stay, the rest is mapped.
_KINDS = {
    ipaddress.ip_network(text): kept
    for text, kept in {
        "127.0.0.0/8": 32,
        "0.0.0.0/8": 32,
        "169.254.0.0/16": 16,
        "224.0.0.0/3": 32,
        "10.0.0.0/8": 8,
        "172.16.0.0/12": 12,
        "192.168.0.0/16": 16,
        "100.64.0.0/10": 10,
        "::/127": 128,
        "ff00::/8": 128,
        "fe80::/64": 64,
        "fc00::/7": 8,
        "2000::/3": 3,
    }.items()
}
_ORDINARY = frozenset(
    [
        "localhost",
        "localhost.localdomain",
        "localdomain",
        "ip6-localhost",
        "ip6-loopback",
        "ip6-allnodes",
        "ip6-allrouters",
        "ip6-localnet",
        "ip6-mcastprefix",
        "broadcasthost",
        "root",
        "local",
        "kernel",
        "none",
        "ubuntu",
        "debian",
    ]
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,252}")
# Names that are words of the tools, too: replaced only where names stand.
_VOCABULARY = re.compile(
    r"(?:node|cpu|gpu|nic|eth|en[opsx][0-9a-f]\w*|mlx\w*|ib|numa|socket|core|link|bond|docker|nvidia|vm|host|user|name)(?:0|[1-9]\d?)?",
    re.IGNORECASE,
)
_NAMING = frozenset(
    [
        *("hostname", "getent", "fqdn", "etc-hosts", "uname", "id"),
        *("peers", "active", "imex", "ssh", "ssh-connection", "docker-info"),
    ]
)
_WORD = re.compile(r"(?<![\w.-])\.?[A-Za-z0-9](?:[\w-]|\.(?=\w))*")
_MOST_LABELS = 12
_PRODUCTS = frozenset(["nvidia.com", "docker.com", "docker.io"])  # domains that are words of the tools

_V4 = re.compile(r"(?<![\w.:-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)", re.ASCII)
_V6 = re.compile(
    r"(?<![\w:.-])(?=[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:)[0-9a-fA-F:]{2,39}(?:(?:\d{1,3}\.){3}\d{1,3})?(?![\w:-])", re.ASCII
)
_MAC = re.compile(r"(?<![\w:-])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){0,14}(?![\w:-])", re.ASCII)
_UUID = re.compile(r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9a-fA-F-])", re.ASCII)
_HEX32 = re.compile(r"(?<![\w])[0-9a-f]{32}(?![\w])", re.ASCII)
_GUID = re.compile(r"(?<![\w:-])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:-])", re.ASCII)
_SERIAL = re.compile(
    r"((?:serial(?: number)?|_serial|asset_tag|board_tag|Device Serial Number)\W{1,40}?)([A-Za-z0-9][A-Za-z0-9./-]{3,60})",
    re.IGNORECASE,
)
_URL = re.compile(r"\b(https?|socks5h?|nfs|ssh)://[^\s\"',<>]+")
_KEY = re.compile(r"\b(?:SHA256:[A-Za-z0-9+/=]{20,}|AAAA[A-Za-z0-9+/=]{20,})")
_HOME = re.compile(r"(/home/|/Users/)([A-Za-z0-9._-]+)")
_SHARE = re.compile(
    r"^(\S+:\S*|//\S+) (\S+ (?:nfs4?|cifs|smb3|ceph|lustre|glusterfs|fuse\.\w+|beegfs\w*) )", re.MULTILINE
)
_ENGINE_NAME = re.compile(r'"OperatingSystem":.{0,4000}"Name": ?"([^"]{1,253})"|^ ?Name: (\S{1,253})$', re.MULTILINE)
_LITTLE = re.compile(r"(?<![0-9A-Fa-f])[0-9A-F]{8}(?=[:\t])")
_LITTLE_IN = ("tcp-ports", "sysfs-net")
_ACCOUNT = re.compile(r"(?<=[ ,])(username|user|domain|name)=([^,\s]+)")
_ACCOUNT_IN = "mounts"


@dataclass(slots=True)
class _Mapping:
    """What stands for what, made up as it is met."""

    key: bytes
    counts: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple[str, str], str] = field(default_factory=dict)
    addresses: dict[Address, Address] = field(default_factory=dict)

    def drawn(self, kind: str, text: str, alphabet: str = "0123456789abcdef") -> str:
        """Return as many characters of an alphabet as the text has letters and digits, the same for the same text."""
        digest = hashlib.shake_256(self.key + f"{kind} {text.lower()}".encode()).digest(len(text))
        made = iter(alphabet[byte % len(alphabet)] for byte in digest)
        return "".join(next(made) if character.isalnum() else character for character in text)

    def numbered(self, kind: str, text: str) -> str:
        """Return `KIND-1`, `KIND-2` in the order of first meeting."""
        if (kind, text) not in self.seen:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.seen[kind, text] = f"{kind}-{self.counts[kind]}"
        return self.seen[kind, text]

    def address(self, address: Address) -> Address:
        """Return another address of the same kind; two that share a prefix go to two that share one as long."""
        if address not in self.addresses:
            self.addresses[address] = self._address(address)
        return self.addresses[address]

    def _address(self, address: Address) -> Address:
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            return ipaddress.IPv6Address(f"::ffff:{self.address(address.ipv4_mapped)}")
        width = address.max_prefixlen
        kept = next((bits for net, bits in _KINDS.items() if net.version == address.version and address in net), 0)
        value, mapped = int(address), int(address) >> (width - kept) if kept else 0
        for bit in range(kept, width):
            prefix = value >> (width - bit)
            flip = (
                hashlib.blake2b(f"{address.version} {bit} {prefix}".encode(), key=self.key, digest_size=1).digest()[0]
                & 1
            )
            mapped = mapped << 1 | (value >> (width - bit - 1) & 1) ^ flip
        return type(address)(mapped)


def scrub(found: Iterable[Evidence], key: bytes) -> tuple[Evidence, ...]:
    """Return the evidence without what names the site. `key`: random bytes, used once and forgotten."""
    found = tuple(found)
    mapping = _Mapping(key[:64])
    names = {name for one in found for name in _names(one)}
    people = sorted({name for one in found for name in _people(one)}, key=lambda name: (-len(name), name))
    texts = _Texts(mapping, names, people)
    return tuple(
        Evidence(texts.all(one.host, "hostname"), {name: texts.reply(name, told) for name, told in one.replies.items()})
        for one in found
    )


class _Texts:
    """Replaces in a text what one mapping knows; the more special pattern first."""

    def __init__(self, mapping: _Mapping, names: set[str], people: list[str]) -> None:
        self._mapping = mapping
        self._anywhere = frozenset(name for name in names if not _VOCABULARY.fullmatch(name))
        self._vocabulary = frozenset(names) - self._anywhere
        self._domains = frozenset(domain for name in names for domain in _above(name)) - _PRODUCTS
        self._people = _words(people)

    def reply(self, probe: str, reply: Reply) -> Reply:
        """Return a reply with both its streams replaced; bytes that are no text stay as they are."""
        out, err = (self.all(raw.decode("utf-8", "surrogateescape"), probe) for raw in (reply.stdout, reply.stderr))
        return replace(
            reply, stdout=out.encode("utf-8", "surrogateescape"), stderr=err.encode("utf-8", "surrogateescape")
        )

    def all(self, text: str, probe: str) -> str:
        """Return the text with everything replaced; `probe` says what it is."""
        m, naming = self._mapping, probe in _NAMING
        steps: list[tuple[re.Pattern[str] | None, Callable[[re.Match[str]], str]]] = [
            (_URL, lambda found: f"{found[1]}://{m.numbered('url', found[0])}"),
            (_SHARE, lambda found: f"{m.numbered('share', found[1])}:/ {found[2]}"),
            (_SERIAL, lambda found: found[1] + m.drawn("serial", found[2], "0123456789")),
            (_KEY, lambda found: m.numbered("key", found[0])),
            (_UUID, lambda found: found[0] if set(found[0]) <= set("0-") else m.drawn("uuid", found[0])),
            (_HEX32, lambda found: found[0] if set(found[0]) == {"0"} else m.drawn("id", found[0])),
            (_MAC, self._mac),
            (_GUID, lambda found: found[0] if set(found[0]) <= set("0:") else m.drawn("guid", found[0])),
            (_V4, self._address),
            (_V6, self._address),
            (_LITTLE if probe in _LITTLE_IN else None, self._little),
            (_ACCOUNT if probe == _ACCOUNT_IN else None, lambda found: f"{found[1]}={m.numbered('account', found[2])}"),
            (_WORD, lambda found: self._word(found[0], naming=naming)),
            (_HOME, lambda found: found[1] + self._person(found[2])),
            (self._people if naming else None, lambda found: self._person(found[0])),
        ]
        for pattern, change in steps:
            if pattern is not None:
                text = pattern.sub(change, text)
        return text

    def _mac(self, found: re.Match[str]) -> str:
        return found[0] if set(found[0].lower()) <= set("0f:") else f"02{self._mapping.drawn('mac', found[0])[2:]}"

    def _address(self, found: re.Match[str]) -> str:
        try:
            told = self._mapping.address(ipaddress.ip_address(found[0]))
        except ValueError:
            return found[0]  # a time, a PCI address, a version
        return told.exploded if len(found[0]) == 39 else str(told)

    def _little(self, found: re.Match[str]) -> str:
        """Replace an address that the kernel writes as eight hexadecimal digits, lowest byte first."""
        told = self._mapping.address(ipaddress.IPv4Address(bytes.fromhex(found[0])[::-1]))
        return told.packed[::-1].hex().upper()

    def _word(self, word: str, *, naming: bool) -> str:
        """Replace a name of a host, and whatever lies in a domain that one lies in."""
        told = word.lower()
        if not (
            told in self._anywhere
            or (naming and told in self._vocabulary)
            or not self._domains.isdisjoint((told.removeprefix("."), *_above(told)))
        ):
            return word
        head, dot, domain = told.partition(".")
        name = self._mapping.numbered("host", head) if head else ""
        return name + (f".{self._mapping.numbered('site', domain)}.example" if dot else "")

    def _person(self, name: str) -> str:
        return name if name in _ORDINARY else self._mapping.numbered("person", name)


def _above(name: str) -> Iterable[str]:
    """Give the domains that a name lies in, as far as they have a dot themselves."""
    labels = name.split(".")
    return (".".join(labels[at:]) for at in range(1, min(len(labels) - 1, _MOST_LABELS)))


def _words(names: list[str]) -> re.Pattern[str] | None:
    """Return a pattern for any of the names where it stands alone."""
    if not names:
        return None
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, names))})(?![\w-]|\.\w)", re.IGNORECASE)


def _names(evidence: Evidence) -> Iterable[str]:
    """Give the names of hosts that the evidence of one holds."""
    texts = {name: reply.text for name, reply in evidence.replies.items()}
    told = [evidence.host.rpartition("@")[2].partition(":")[0], *texts.get("hostname", "").split()]
    for line in texts.get("etc-hosts", "").splitlines():
        told += line.partition("#")[0].split()[1:]
    told += [a or b for a, b in _ENGINE_NAME.findall(texts.get("docker-info", ""))]
    told += texts.get("uname", "").split()[1:2]
    for line in f"{texts.get('fqdn', '')}\n{texts.get('getent', '')}".splitlines():
        words = line.split()
        told += words if len(words) == 1 else words[2:3]
    for name in told[:2000]:
        plain = name.strip().lower().removesuffix(".")
        if _NAME.fullmatch(plain) and plain not in _ORDINARY and not _V4.fullmatch(plain):
            yield plain
            head = plain.partition(".")[0]
            if head != plain and head not in _ORDINARY and len(head) > 1:
                yield head


def _people(evidence: Evidence) -> Iterable[str]:
    """Give the accounts that the evidence of one host names."""
    reply = evidence.replies.get("id")
    told = [evidence.host.rpartition("@")[0]] + (reply.text.split()[1:2] if reply else [])
    yield from (name for name in told if name and name not in _ORDINARY and len(name) > 1)

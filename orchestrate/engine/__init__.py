"""One Docker Engine, here or behind the SSH connection that remote.py holds; the only package that imports docker.

The same client serves both: a channel of the connection runs `docker system dial-stdio`, so nothing is quoted for a
shell, nobody logs in twice and no port is opened. Refuses to touch a container without the label of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from orchestrate import archive
from orchestrate.engine.told import START_ENGINE, told
from orchestrate.errors import CannotTell, Refused
from orchestrate.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from orchestrate.plan import ContainerSpec
    from orchestrate.remote import Remote, Shell

LABEL_RUN = "muster.run"
LABEL_NODE = "muster.node"
LABEL_ATTEMPT = "muster.attempt"

_DIAL = "docker system dial-stdio"


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a run as its engine shows it. `started_at` is the engine's own clock."""

    id: str
    name: str
    labels: Mapping[str, str]
    status: str  # created, running, paused, restarting, removing, exited, dead
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: str = ""
    image: str = ""


class Engine:
    """A Docker Engine. Every method raises CannotTell when it is out of reach and Refused when it says no."""

    def __init__(self, where: str, api: Any) -> None:
        self.where = where
        self._api = api

    def version(self) -> str:
        """Return the engine's version."""
        with told(self.where):
            return str(self._api.version().get("Version", ""))

    def close(self) -> None:
        """Drop the connections to the engine; a run is not touched."""
        self._api.close()

    # images

    def image_id(self, ref: str) -> str | None:
        """Return the id of the image that `ref` names, or None when the engine has none."""
        image = self._image(ref)
        return None if image is None else str(image["Id"])

    def image_labels(self, ref: str) -> Mapping[str, str]:
        """Return the labels of an image; empty when the engine has none of that name."""
        image = self._image(ref)
        return dict((image or {}).get("Config", {}).get("Labels") or {})

    def image_bytes(self, ref: str) -> int:
        """Return the size of an image in bytes, 0 when the engine has none of that name."""
        return int((self._image(ref) or {}).get("Size", 0))

    def layers(self, ref: str) -> tuple[str, ...]:
        """Return the digests of an image's layers, lowest first; empty when the engine has none of that name."""
        return tuple(((self._image(ref) or {}).get("RootFS") or {}).get("Layers") or ())

    def image_ids(self) -> tuple[str, ...]:
        """Return the ids of all images that the engine holds."""
        with told(self.where):
            return tuple(str(row["Id"]) for row in self._api.images())

    def _image(self, ref: str) -> Mapping[str, Any] | None:
        from docker.errors import ImageNotFound, NotFound

        with told(self.where):
            try:
                return dict(self._api.inspect_image(ref))
            except (ImageNotFound, NotFound):
                return None

    def save_image(self, ref: str) -> Iterator[bytes]:
        """Yield the image as a tar stream, as `docker save` would."""
        with told(self.where):
            yield from self._api.get_image(ref, chunk_size=1 << 20)

    def load_image(self, stream: Iterable[bytes]) -> None:
        """Load an image from a tar stream, as `docker load` would."""
        with told(self.where):
            for line in self._api.load_image(stream) or ():
                if "error" in line:
                    raise Refused(f"the engine refused the image: {line['error']}", where=self.where)

    def tag_image(self, image_id: str, ref: str) -> None:
        """Give an image another name."""
        repository, _, tag = ref.rpartition(":") if ":" in ref.rsplit("/", 1)[-1] else (ref, "", "latest")
        with told(self.where):
            self._api.tag(image_id, repository, tag)

    def pull_image(self, ref: str) -> None:
        """Fetch an image from its registry."""
        with told(self.where):
            for line in self._api.pull(ref, stream=True, decode=True):
                if "error" in line:
                    raise Refused(f"the registry or the engine refused: {line['error']}", where=self.where)

    def untag_image(self, ref: str) -> None:
        """Take a name off an image; the image goes with its last name."""
        with told(self.where):
            self._api.remove_image(ref, noprune=True)

    def registry_digest(self, ref: str) -> str:
        """Return the digest that the registry gives for a tag now."""
        with told(self.where):
            return str(self._api.inspect_distribution(ref)["Descriptor"]["digest"])

    # containers

    def create(self, spec: ContainerSpec) -> str:
        """Create (not start) the container of one node and return its id."""
        api = self._api
        with told(self.where):
            host_config = api.create_host_config(
                network_mode=spec.network,
                shm_size=spec.shm_bytes,
                init=True,
                cap_drop=list(spec.cap_drop),
                cap_add=list(spec.cap_add) or None,
                security_opt=list(spec.security_opt),
                ulimits=[{"Name": u.name, "Soft": u.soft, "Hard": u.hard} for u in spec.ulimits],
                mounts=[
                    {"Type": m.kind, "Source": m.source, "Target": m.target, "ReadOnly": m.read_only}
                    for m in spec.mounts
                ],
                devices=[f"{d}:{d}:rwm" for d in spec.devices] or None,
                device_requests=(
                    [{"Driver": "", "Count": 0, "DeviceIDs": list(spec.gpus), "Capabilities": [["gpu"]]}]
                    if spec.gpus
                    else None
                ),
                log_config={"Type": "json-file", "Config": {"max-size": "256m", "max-file": "4"}},
            )
            networking = None
            if spec.ipv4 is not None:
                networking = api.create_networking_config(
                    {spec.network: api.create_endpoint_config(ipv4_address=spec.ipv4)}
                )
            created = api.create_container(
                spec.image,
                command=list(spec.argv),
                name=spec.name,
                hostname=spec.hostname,
                environment=dict(spec.environment),
                labels=dict(spec.labels),
                host_config=host_config,
                networking_config=networking,
                stdin_open=False,
                tty=False,
            )
            return str(created["Id"])

    def start(self, container_id: str) -> None:
        """Start a created container."""
        with told(self.where):
            self._api.start(container_id)

    def containers(self, run: str | None = None) -> tuple[Container, ...]:
        """Return the containers that carry a run's label (any run's, or one's), by node."""
        label = LABEL_RUN if run is None else f"{LABEL_RUN}={run}"
        with told(self.where):
            rows = self._api.containers(all=True, filters={"label": [label]})
        found = (self.look(row["Id"]) for row in rows)
        return tuple(sorted((c for c in found if c is not None), key=lambda c: (c.labels.get(LABEL_NODE, ""), c.name)))

    def look(self, container_id: str) -> Container | None:
        """Return how one container stands, or None when it is gone."""
        from docker.errors import NotFound

        with told(self.where):
            try:
                raw = self._api.inspect_container(container_id)
            except NotFound:
                return None
        state = raw.get("State") or {}
        status = str(state.get("Status", ""))
        ended = status in {"exited", "dead"}
        return Container(
            id=str(raw["Id"]),
            name=str(raw.get("Name", "")).lstrip("/"),
            labels=dict((raw.get("Config") or {}).get("Labels") or {}),
            status=status,
            exit_code=int(state.get("ExitCode", 0)) if ended else None,
            oom_killed=bool(state.get("OOMKilled")),
            started_at=str(state.get("StartedAt", "")),
            image=str(raw.get("Image", "")),
        )

    def logs(self, container_id: str, *, follow: bool, since: float | None = None) -> Iterator[bytes]:
        """Yield a container's output in chunks: each line begins with the engine's RFC 3339 time and a space."""
        with told(self.where):
            yield from self._api.logs(container_id, stream=True, follow=follow, timestamps=True, since=since)

    def stop(self, container_id: str, grace_s: int) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds; a container that is gone is stopped."""
        from docker.errors import NotFound

        with told(self.where):
            try:
                self._api.stop(container_id, timeout=grace_s)
            except NotFound:
                return

    def kill_inside(self, container_id: str, pids: Iterable[int]) -> None:
        """Send SIGKILL to processes of a running container, by their ids in there."""
        with told(self.where):
            argv = ["/bin/sh", "-c", 'kill -s KILL "$@"', "sh", *map(str, pids)]
            self._api.exec_start(self._api.exec_create(container_id, argv)["Id"])

    def remove(self, container_id: str) -> None:
        """Remove a container by force; one that is gone is removed."""
        from docker.errors import APIError, NotFound

        with told(self.where):
            try:
                self._api.remove_container(container_id, force=True, v=True)
            except NotFound:
                return
            except APIError as error:
                if "already in progress" not in str(error):
                    raise

    def copy_out(self, container_id: str, path: str, to: Path, max_bytes: int = 1 << 30) -> bool:
        """Copy a file of a container (running or not) here, whole or not at all; False when it has none."""
        from docker.errors import NotFound

        with told(self.where):
            try:
                stream, _ = self._api.get_archive(container_id, path, chunk_size=1 << 20)
            except NotFound:
                return False
            with archive.opened(stream) as packed:
                member = packed.next()
                if member is None or not member.isreg():
                    return False
                if member.size > max_bytes:
                    raise Refused(
                        f"{path} has {member.size} bytes, more than {max_bytes}: it stays there", where=self.where
                    )
                to.parent.mkdir(parents=True, exist_ok=True)
                replace_file(to, archive.content(packed, member))
            return True

    # volumes and networks of a run

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a named volume; one of that name that exists is kept as it is."""
        with told(self.where):
            self._api.create_volume(name, labels=dict(labels))

    def volumes(self, run: str | None = None) -> Mapping[str, Mapping[str, str]]:
        """Return the volumes that carry a run's label, with all their labels, by name."""
        label = LABEL_RUN if run is None else f"{LABEL_RUN}={run}"
        with told(self.where):
            found = self._api.volumes(filters={"label": label}).get("Volumes") or []
        return {str(v["Name"]): dict(v.get("Labels") or {}) for v in found}

    def remove_volume(self, name: str) -> None:
        """Remove a volume; one that is gone is removed."""
        from docker.errors import NotFound

        with told(self.where):
            try:
                self._api.remove_volume(name, force=True)
            except NotFound:
                return

    def create_network(self, name: str, subnet: str, labels: Mapping[str, str]) -> None:
        """Create a bridge network with a fixed IPv4 subnet."""
        with told(self.where):
            ipam = {"Driver": "default", "Config": [{"Subnet": subnet}]}
            self._api.create_network(name, driver="bridge", ipam=ipam, labels=dict(labels), check_duplicate=True)

    def networks(self, run: str | None = None) -> tuple[str, ...]:
        """Return the names of the networks that carry a run's label."""
        label = LABEL_RUN if run is None else f"{LABEL_RUN}={run}"
        with told(self.where):
            return tuple(sorted(str(n["Name"]) for n in self._api.networks(filters={"label": label})))

    def remove_network(self, name: str) -> None:
        """Remove a network; one that is gone is removed."""
        from docker.errors import NotFound

        with told(self.where):
            try:
                self._api.remove_network(name)
            except NotFound:
                return

    def subnets(self) -> tuple[str, ...]:
        """Return the subnets of all networks of the engine."""
        with told(self.where):
            networks = self._api.networks()
        configs = ((n.get("IPAM") or {}).get("Config") or [] for n in networks)
        return tuple(str(c["Subnet"]) for config in configs for c in config if c.get("Subnet"))


def local(timeout_s: float = 60.0) -> Engine:
    """Return this machine's engine, found as the docker command finds it; raise CannotTell when none answers."""
    import docker

    with told("this machine"):
        client = docker.from_env(timeout=timeout_s)
        client.ping()
        return Engine("this machine", client.api)


def behind(shell: Shell, timeout_s: float = 60.0) -> Engine:
    """Return the engine of a host through its open connection (this machine's for a local host).

    A user who may not open the engine's socket reaches it by `sudo -n` where that is allowed.
    """
    if shell.host.local:
        return local(timeout_s)
    where = shell.host.name
    command = _dial_command(shell, where)
    with told(where):
        from orchestrate.engine.over_ssh import api_over

        return Engine(where, api_over(cast("Remote", shell), command, timeout_s))


def _dial_command(shell: Shell, where: str) -> str:
    """Return the command that joins a channel to the host's engine; raise CannotTell with the class of refusal."""
    ask = "docker version --format '{{json .Server.APIVersion}}'"
    plain = shell.run(ask, timeout_s=20)
    if plain.exit_code == 0:
        return _DIAL
    said = plain.stderr.decode("utf-8", "replace").strip()
    if plain.exit_code == 127:
        raise CannotTell("Docker is not installed", where=where, next_step="install Docker Engine on that host")
    if "permission denied" in said.lower():
        if shell.run(f"sudo -n {ask}", timeout_s=20).exit_code == 0:
            return f"sudo -n {_DIAL}"
        user = shell.host.user or "the login user"
        raise CannotTell(
            f"{user} may not use the Docker Engine: {said.splitlines()[0]}",
            where=where,
            next_step="`sudo usermod -aG docker USER` on that host, then log in anew; or allow `sudo -n docker`",
        )
    first = said.splitlines()[0] if said else "no answer within 20 s"
    raise CannotTell(f"the Docker Engine does not answer: {first}", where=where, next_step=START_ENGINE)

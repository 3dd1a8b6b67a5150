"""The plan of a run: every rank, address, port, mount and variable decided before anything starts.

Pure: hosts and what is known of them in, one value out. The launcher executes this value and nothing else, so that what
`--plan` prints is what runs. Refuses to guess: a fact that is missing is an error that names its host.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrate.errors import CannotTell, Refused, UsageError
from trainer import contract

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrate.inventory import Host

SCHEMA = "muster.plan/1"
OUT_DIR = "/run/muster"  # where the run may write, inside a container
DEFAULT_PROGRAM = ("-m", "trainer")
SHM_BYTES = 8 << 30  # NCCL and data loaders share memory here; a limit of a tmpfs, not an allocation
MOST_NODES_HERE = 240  # addresses .10 to .249 of a /24
LINE_PREFIX = "[rank${rank}]:"  # torchrun fills it in; runlog.py reads it back


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What must be known of a host to place a node there.

    `address`: numeric, reachable by the other nodes. `iface`: the interface that carries it. `gpus`: identifiers in
    device order. `rdma_devices`: device files of user-space RDMA, empty without.
    """

    address: str
    iface: str = ""
    gpus: tuple[str, ...] = ()
    rdma_devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount or a named volume (`kind` is the engine's word: bind, volume)."""

    kind: str
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Ulimit:
    """One resource limit of a container; -1 is unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node: a torchrun agent and its ranks `first_rank ... first_rank + nproc - 1` on one host."""

    node: int
    host: str
    nproc: int
    first_rank: int
    address: str
    iface: str
    gpus: tuple[str, ...] = ()
    rdma_devices: tuple[str, ...] = ()

    @property
    def ranks(self) -> range:
        """The global ranks that run on this node."""
        return range(self.first_rank, self.first_rank + self.nproc)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All of a run. `image` is empty for plain processes; `image_id` is what every host must hold."""

    run: str
    backend: str  # ssh, local, process
    nodes: tuple[NodePlan, ...]
    master_address: str
    master_port: int
    program: tuple[str, ...] = DEFAULT_PROGRAM
    image: str = ""
    image_id: str = ""
    preset: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    subnet: str = ""  # of the network made for the run on one machine; empty on the hosts' own network
    attempt: int = 1

    @property
    def world_size(self) -> int:
        """The number of ranks of the run."""
        return sum(node.nproc for node in self.nodes)


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container, complete. `compose` starts the same from docker-compose.yml; a test holds the two together."""

    name: str
    image: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    network: str
    ipv4: str | None
    hostname: str | None
    mounts: tuple[Mount, ...]
    gpus: tuple[str, ...]
    devices: tuple[str, ...]
    shm_bytes: int = SHM_BYTES
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ("no-new-privileges",)
    ulimits: tuple[Ulimit, ...] = ()


def make(
    *,
    run: str,
    backend: str,
    hosts: Sequence[Host],
    facts: Mapping[str, NodeFacts],
    nodes: int,
    port: int,
    nproc: int | None = None,
    **options: Any,
) -> RunPlan:
    """Return the plan of `nodes` nodes on the first hosts that are not spares.

    `nproc`: ranks of every node; None = the host's slots, else its GPUs, else 1. `options` are further fields of RunPlan.
    """
    refuse_too_many(nodes, hosts)
    usable = [host for host in hosts if not host.spare]
    placed: list[NodePlan] = []
    first_rank = 0
    for index, host in enumerate(usable[:nodes]):
        known = facts[host.name]
        count = nproc or host.slots or len(known.gpus) or 1
        if known.gpus and count > len(known.gpus):
            raise Refused(
                f"{count} ranks are asked for and the host has {len(known.gpus)} GPUs: two ranks would share one",
                where=host.name,
                next_step=f"use --nproc-per-node {len(known.gpus)} or fewer",
            )
        placed.append(
            NodePlan(
                index, host.name, count, first_rank, known.address, known.iface, known.gpus[:count], known.rdma_devices
            )
        )
        first_rank += count
    _refuse_mixed(placed)
    if backend != "process":
        _refuse_shared_addresses(placed)
    return RunPlan(
        run=run,
        backend=backend,
        nodes=tuple(placed),
        master_address=placed[0].address,
        master_port=port,
        **options,
    )


def refuse_too_many(nodes: int, hosts: Sequence[Host]) -> None:
    """Raise UsageError when there are not enough hosts that are no spares."""
    usable = sum(not host.spare for host in hosts)
    if nodes > usable:
        raise UsageError(
            f"{nodes} nodes are asked for, and the inventory has {usable} host{'s' * (usable != 1)}"
            + (" besides spares" if usable != len(hosts) else ""),
            where="--nodes",
            next_step=f"use --nodes {usable}, or add hosts",
        )


def _refuse_mixed(nodes: Sequence[NodePlan]) -> None:
    """Raise Refused when some nodes have GPUs and others none: their ranks would wait for each other for ever."""
    without = [node.host for node in nodes if not node.gpus]
    if without and len(without) < len(nodes):
        raise Refused(
            f"{without[0]} has no GPU and other nodes have: NCCL on one side and Gloo on the other never meet",
            where=without[0],
            next_step="leave the host out; if it has GPUs, `nvidia-smi` there must list them",
        )


def _refuse_shared_addresses(nodes: Sequence[NodePlan]) -> None:
    seen: dict[str, str] = {}
    for node in nodes:
        address = ipaddress.ip_address(node.address)
        if len(nodes) > 1 and address.is_loopback and len({n.host for n in nodes}) > 1:
            raise CannotTell(
                f"the training address {address} is a loopback address: other hosts cannot reach it",
                where=node.host,
                next_step="give the address that peers use with addr=... or iface=... in hosts.txt",
            )
        if seen.setdefault(str(address), node.host) != node.host:
            raise Refused(
                f"{node.host} and {seen[str(address)]} have the same training address {address}",
                where="hosts.txt",
                next_step="list each machine once, or give addr=... for both",
            )


def torchrun_argv(plan: RunPlan, node: NodePlan, *, log_dir: str) -> tuple[str, ...]:
    """Return torchrun's options and the program for one node: a static world that restarts nothing."""
    return (
        f"--nnodes={len(plan.nodes)}",
        f"--node-rank={node.node}",
        f"--nproc-per-node={node.nproc}",
        "--rdzv-backend=static",
        f"--master-addr={plan.master_address}",
        f"--master-port={plan.master_port}",
        f"--local-addr={node.address}",
        "--max-restarts=0",
        "--monitor-interval=0.1",
        f"--log-dir={log_dir}",
        "--tee=3",
        *plan.program,
    )


def environment(plan: RunPlan, node: NodePlan, *, out: str) -> dict[str, str]:
    """Return the variables of one node's agent; the user's come last and win."""
    values = {
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": LINE_PREFIX,
        contract.ENV_RUN: plan.run,
        contract.ENV_NODE: str(node.node),
        contract.ENV_HOST: node.host,
        contract.ENV_ATTEMPT: str(plan.attempt),
        contract.ENV_OUT: out,
        contract.ENV_PRESET: plan.preset,
    }
    if node.gpus and plan.backend == "process":  # a container sees its own GPUs alone, a process all of them
        values["CUDA_VISIBLE_DEVICES"] = ",".join(node.gpus)
    if node.nproc > 1:
        values["OMP_NUM_THREADS"] = "1"  # what torchrun would set, without its warning
    if node.iface:
        values["GLOO_SOCKET_IFNAME"] = node.iface
        values["NCCL_SOCKET_IFNAME"] = f"={node.iface}"  # NCCL's exact form: `eth1` alone would match eth10
    return values | dict(plan.environment)


def volume_name(plan: RunPlan) -> str:
    """Return the name of the volume that a run writes to, on each of its hosts."""
    return f"muster-{plan.run}"


def container_name(plan: RunPlan, node: NodePlan) -> str:
    """Return the name of a node's container."""
    return f"muster-{plan.run}-n{node.node}"


def labels(plan: RunPlan, node: NodePlan | None = None) -> dict[str, str]:
    """Return the labels by which anyone finds what belongs to a run."""
    marks = {"muster.run": plan.run}
    if node is not None:
        marks |= {
            "muster.node": str(node.node),
            "muster.attempt": str(plan.attempt),
            "muster.host": node.host,
            "muster.nodes": str(len(plan.nodes)),
            "muster.ranks": f"{node.first_rank}-{node.first_rank + node.nproc - 1}",
        }
    return marks


def container_spec(plan: RunPlan, node: NodePlan) -> ContainerSpec:
    """Return the container of one node."""
    accelerated = bool(node.gpus or node.rdma_devices)
    return ContainerSpec(
        name=container_name(plan, node),
        image=plan.image_id or plan.image,
        argv=("torchrun", *torchrun_argv(plan, node, log_dir="/tmp/torchrun")),  # noqa: S108 - inside the container
        environment=environment(plan, node, out=OUT_DIR),
        labels=labels(plan, node),
        network=f"muster-{plan.run}" if plan.subnet else "host",
        ipv4=node.address if plan.subnet else None,
        hostname=f"node{node.node}" if plan.subnet else None,
        mounts=(Mount("volume", volume_name(plan), OUT_DIR), *plan.mounts),
        gpus=node.gpus,
        devices=node.rdma_devices,
        # RDMA pins memory; unlimited memlock needs a privilege that a host without such devices may lack
        cap_add=("IPC_LOCK",) if node.rdma_devices else (),
        ulimits=(Ulimit("memlock", -1, -1), Ulimit("stack", 64 << 20, 64 << 20)) if accelerated else (),
    )


def one_machine(subnets_in_use: Sequence[str], nodes: int) -> tuple[str, tuple[str, ...]]:
    """Return a private /24 that overlaps none of `subnets_in_use` (networks of the engine, routes of the machine), and an address in it for each node."""
    if nodes > MOST_NODES_HERE:
        raise UsageError(
            f"one machine's network has room for {MOST_NODES_HERE} nodes",
            where="--nodes",
            next_step="use fewer nodes, with more ranks each (--nproc-per-node)",
        )
    used = [ipaddress.ip_network(s, strict=False) for s in subnets_in_use]
    for second in range(201, 256):
        subnet = ipaddress.ip_network(f"10.{second}.77.0/24")
        if not any(subnet.version == u.version and subnet.overlaps(u) for u in used):
            return str(subnet), tuple(str(subnet[10 + node]) for node in range(nodes))
    raise Refused("no free private subnet is left for the run's network", where="this machine")


def to_json(plan: RunPlan) -> dict[str, Any]:
    """Return the plan as JSON: what is printed by --plan and kept as plan.json. Holds no secret."""
    return {
        "schema": SCHEMA,
        "run": plan.run,
        "attempt": plan.attempt,
        "backend": plan.backend,
        "image": plan.image,
        "image_id": plan.image_id,
        "program": list(plan.program),
        "world_size": plan.world_size,
        "master": {"address": plan.master_address, "port": plan.master_port},
        "preset": plan.preset,
        "environment": dict(plan.environment),
        "subnet": plan.subnet,
        "mounts": [
            {"kind": m.kind, "source": m.source, "target": m.target, "read_only": m.read_only} for m in plan.mounts
        ],
        "nodes": [
            {
                "node": n.node,
                "host": n.host,
                "ranks": [n.first_rank, n.first_rank + n.nproc - 1],
                "nproc": n.nproc,
                "address": n.address,
                "iface": n.iface,
                "gpus": list(n.gpus),
                "rdma_devices": list(n.rdma_devices),
                "argv": list(torchrun_argv(plan, n, log_dir="LOGS")),
            }
            for n in plan.nodes
        ],
    }


def from_json(raw: Mapping[str, Any]) -> RunPlan:
    """Return the plan that `to_json` wrote; raise ValueError when it is none."""
    try:
        nodes = tuple(
            NodePlan(
                node=int(n["node"]),
                host=str(n["host"]),
                nproc=int(n["nproc"]),
                first_rank=int(n["ranks"][0]),
                address=str(n["address"]),
                iface=str(n["iface"]),
                gpus=tuple(map(str, n["gpus"])),
                rdma_devices=tuple(map(str, n["rdma_devices"])),
            )
            for n in raw["nodes"]
        )
        return RunPlan(
            run=str(raw["run"]),
            backend=str(raw["backend"]),
            nodes=nodes,
            master_address=str(raw["master"]["address"]),
            master_port=int(raw["master"]["port"]),
            program=tuple(map(str, raw["program"])),
            image=str(raw["image"]),
            image_id=str(raw["image_id"]),
            preset=str(raw["preset"]),
            environment={str(k): str(v) for k, v in raw["environment"].items()},
            mounts=tuple(Mount(m["kind"], m["source"], m["target"], bool(m["read_only"])) for m in raw["mounts"]),
            subnet=str(raw["subnet"]),
            attempt=int(raw["attempt"]),
        )
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"not a plan: {error!r}") from error

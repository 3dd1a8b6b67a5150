"""What the load tests of `preflight --active` run where: the containers, the pairs of hosts and their order.

Pure. A host is never in two tests at once, or each would measure the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hostsetup.facts.active import SCHEMA
from orchestrate import plan as planning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrate.plan import ContainerSpec, NodeFacts

LIMIT_S = 60  # of one test
WITHIN_S = 300  # of all tests within one host
BETWEEN_S = 150  # of the tests of one pair of hosts, the start of torchrun included
PAIR_TESTS = ("all_reduce.pair", "sendrecv.pair")
LABEL = "muster.purpose"


@dataclass(frozen=True, slots=True)
class Place:
    """A host that can be tested: what its containers need."""

    host: str
    index: int
    image: str
    image_id: str
    gpus: tuple[str, ...] = ()
    rdma_devices: tuple[str, ...] = ()


def waves(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Return the pairs of neighbours in a ring, in waves in which every host appears once at most."""
    count = len(names)
    if count < 2:
        return []
    ring = [(names[at], names[(at + 1) % count]) for at in range(count if count > 2 else 1)]
    even = len(ring) // 2 * 2  # an odd ring needs a third wave for its last pair
    found = [ring[0:even:2], ring[1:even:2], ring[even:]]
    return [wave for wave in found if wave]


def within(run: str, place: Place, *, busy_gpus: bool) -> ContainerSpec:
    """Return the container that tests one host by itself."""
    argv = [f"--gpus={len(place.gpus)}", f"--limit-s={LIMIT_S}", f"--budget-s={WITHIN_S}"]
    node = planning.NodePlan(
        place.index, place.host, 1, 0, "127.0.0.1", "lo", gpus=place.gpus, rdma_devices=place.rdma_devices
    )
    plan = planning.RunPlan(run, "ssh", (node,), "127.0.0.1", 0, image=place.image, image_id=place.image_id)
    spec = planning.container_spec(plan, node)
    return _marked(
        replace(spec, argv=("python", "-m", "trainer.active", *argv, *(["--busy-gpus"] if busy_gpus else []))),
        f"muster-{run}-h{place.index}",
    )


def between(
    run: str, places: tuple[Place, Place], routes: tuple[NodeFacts, NodeFacts], port: int
) -> tuple[ContainerSpec, ContainerSpec]:
    """Return the two containers that test a pair of hosts: as many ranks on both, on GPUs only when both have some."""
    ranks = min(len(place.gpus) for place in places)
    program = ["-m", "trainer.active.ranks", *PAIR_TESTS, f"--limit-s={LIMIT_S}"]
    program += [f"--host={place.host}" for place in places]
    program += [] if ranks else ["--cpu"]
    nodes = tuple(
        planning.NodePlan(
            at, place.host, ranks or 1, at * (ranks or 1), route.address, route.iface, place.gpus[:ranks],
            place.rdma_devices if ranks else (),
        )
        for at, (place, route) in enumerate(zip(places, routes, strict=True))
    )  # fmt: skip
    plan = planning.RunPlan(
        run, "ssh", nodes, nodes[0].address, port, tuple(program), image=places[0].image, image_id=places[0].image_id
    )
    first, second = (
        _marked(planning.container_spec(plan, node), f"muster-{run}-p{places[0].index}-n{node.node}") for node in nodes
    )
    return first, second


def _marked(spec: ContainerSpec, name: str) -> ContainerSpec:
    """Name a container and take its volume away: a test leaves nothing that is worth keeping."""
    return replace(spec, name=name, mounts=(), labels={**spec.labels, LABEL: "active"})


def line(
    test: str, error: str, kind: str, *, next_step: str = "", subject: str = "", hosts: tuple[str, ...] = ()
) -> bytes:
    """Return the line that says why a test gave no result, in the form in which results come."""
    told: dict[str, object] = {"schema": SCHEMA, "test": test, "subject": subject, "value": None, "unit": ""}
    told |= {
        "verified": None,
        "error": error or "no reason given",
        "kind": kind,
        "next": next_step,
        "hosts": list(hosts),
    }
    return json.dumps(told).encode() + b"\n"

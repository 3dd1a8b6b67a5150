"""Every rank, address, port and variable is decided before anything starts, or refused with the host's name."""

from __future__ import annotations

import contextlib
import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate import plan as planning
from orchestrate.errors import CannotTell, Refused, UsageError
from orchestrate.inventory import parse_hosts
from orchestrate.plan import Mount, NodeFacts, NodePlan, RunPlan
from trainer import contract


def make(hosts, facts=None, *, nodes=2, backend="ssh", **more):
    hosts = parse_hosts(hosts)
    known = {host.name: NodeFacts(f"10.0.0.{n}", "eth1") for n, host in enumerate(hosts, 1)} | (facts or {})
    return planning.make(run="r", backend=backend, hosts=hosts, facts=known, nodes=nodes, port=29500, **more)


def test_ranks_are_counted_through_nodes_of_different_sizes():
    gpus = {"a": 4, "b": 3, "c": 1}
    facts = {
        h: NodeFacts(f"10.0.0.{k}", gpus=tuple(f"GPU-{h}{i}" for i in range(n)))
        for k, (h, n) in enumerate(gpus.items(), 1)
    }
    plan = make("a slots=4\nb\nc\nd spare", facts, nodes=3)
    assert [(n.host, n.node, list(n.ranks)) for n in plan.nodes] == [
        ("a", 0, [0, 1, 2, 3]), ("b", 1, [4, 5, 6]), ("c", 2, [7]),
    ]  # fmt: skip
    assert plan.world_size == 8
    assert (plan.master_address, plan.master_port) == ("10.0.0.1", 29500)


def test_what_was_asked_for_beats_slots_and_slots_beat_gpus():
    gpus = {"a": NodeFacts("10.0.0.1", gpus=("GPU-0", "GPU-1", "GPU-2", "GPU-3"))}
    assert make("a slots=2", gpus, nodes=1, nproc=3).nodes[0].gpus == ("GPU-0", "GPU-1", "GPU-2")
    assert make("a slots=2", gpus, nodes=1).nodes[0].gpus == ("GPU-0", "GPU-1")
    assert make("a", gpus, nodes=1).nodes[0].nproc == 4
    assert make("a", nodes=1).nodes[0].nproc == 1


def test_two_ranks_never_share_a_gpu():
    with pytest.raises(Refused, match="2 ranks are asked for and the host has 1 GPUs") as caught:
        make("a\nb", {"b": NodeFacts("10.0.0.2", gpus=("GPU-0",))}, nproc=2)
    assert (caught.value.where, caught.value.next_step) == ("b", "use --nproc-per-node 1 or fewer")


def test_spares_are_passed_over():
    assert [n.host for n in make("a\nb spare\nc").nodes] == ["a", "c"]


def test_more_nodes_than_hosts_are_refused_and_spares_do_not_count():
    with pytest.raises(UsageError, match="3 nodes are asked for, and the inventory has 2 hosts besides spares"):
        make("a\nb\nc spare", nodes=3)


def test_an_address_that_other_hosts_cannot_reach_is_refused():
    for address in ("127.0.0.1", "::1", "127.1.2.3"):
        with pytest.raises(CannotTell, match="loopback") as caught:
            make("a\nb", {"b": NodeFacts(address)})
        assert caught.value.where == "b"
    assert make("a", {"a": NodeFacts("127.0.0.1", "lo")}, nodes=1).master_address == "127.0.0.1"


@pytest.mark.parametrize(("one", "other"), [("10.0.0.9", "10.0.0.9"), ("fd00::1", "fd00:0::1")])
def test_two_hosts_with_one_address_are_refused(one, other):
    with pytest.raises(Refused, match="b and a have the same training address"):
        make("a\nb", {"a": NodeFacts(one), "b": NodeFacts(other)})


def test_processes_of_one_machine_share_its_address():
    assert make("a\nb", dict.fromkeys("ab", NodeFacts("127.0.0.1", "lo")), backend="process").world_size == 2


def test_torchrun_is_told_a_static_world_that_restarts_nothing():
    plan = make("a\nb", nproc=2, program=("-m", "trainer", "--steps", "4"))
    assert planning.torchrun_argv(plan, plan.nodes[1], log_dir="D") == (
        "--nnodes=2", "--node-rank=1", "--nproc-per-node=2", "--rdzv-backend=static", "--master-addr=10.0.0.1",
        "--master-port=29500", "--local-addr=10.0.0.2", "--max-restarts=0", "--monitor-interval=0.1", "--log-dir=D", "--tee=3",
        "-m", "trainer", "--steps", "4",
    )  # fmt: skip


def test_the_environment_names_the_interface_exactly_and_the_users_variables_win():
    plan = make("a\nb", environment={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "7"}, nproc=2)
    values = planning.environment(plan, plan.nodes[1], out="/out")
    assert values["NCCL_SOCKET_IFNAME"] == "=eth1"
    assert values["GLOO_SOCKET_IFNAME"] == "eth1"
    assert values["NCCL_DEBUG"] == "INFO"
    assert values["OMP_NUM_THREADS"] == "7"
    assert {values[contract.ENV_RUN], values[contract.ENV_NODE], values[contract.ENV_HOST]} == {"r", "1", "b"}
    assert values[contract.ENV_OUT] == "/out"
    alone = make("a\nb")
    assert "OMP_NUM_THREADS" not in planning.environment(alone, alone.nodes[0], out="")


def test_a_container_gets_no_privilege_and_no_more_than_it_needs():
    plan = make("a\nb", image="muster:cpu", image_id="sha256:1")
    spec = planning.container_spec(plan, plan.nodes[0])
    assert (spec.cap_drop, spec.cap_add, spec.security_opt) == (("ALL",), (), ("no-new-privileges",))
    assert (spec.ulimits, spec.devices, spec.gpus) == ((), (), ())
    assert (spec.network, spec.ipv4, spec.hostname) == ("host", None, None)
    assert spec.image == "sha256:1"
    assert spec.argv[0] == "torchrun"
    assert not hasattr(spec, "privileged")
    assert spec.labels == {
        "muster.run": "r", "muster.node": "0", "muster.attempt": "1", "muster.host": "a", "muster.nodes": "2", "muster.ranks": "0-0",
    }  # fmt: skip
    assert [m.target for m in spec.mounts] == ["/run/muster"]


def test_memory_is_pinned_only_where_a_device_needs_it():
    gpu = make("a", {"a": NodeFacts("10.0.0.1", gpus=("GPU-0",))}, nodes=1)
    rdma = make("a", {"a": NodeFacts("10.0.0.1", rdma_devices=("/dev/infiniband/uverbs0",))}, nodes=1)
    with_gpu, with_rdma = (planning.container_spec(plan, plan.nodes[0]) for plan in (gpu, rdma))
    assert {u.name: u.soft for u in with_gpu.ulimits} == {"memlock": -1, "stack": 64 << 20}
    assert (with_gpu.cap_add, with_gpu.gpus) == ((), ("GPU-0",))
    assert (with_rdma.cap_add, with_rdma.devices) == (("IPC_LOCK",), ("/dev/infiniband/uverbs0",))


def test_hosts_with_and_without_gpus_are_no_world():
    facts = {"a": NodeFacts("10.0.0.1", gpus=("GPU-0",)), "b": NodeFacts("10.0.0.2")}
    with pytest.raises(Refused, match="b has no GPU and other nodes have") as caught:
        make("a\nb", facts)
    assert caught.value.where == "b"


def test_processes_of_one_machine_see_the_gpus_of_their_node_alone():
    facts = {"a": NodeFacts("127.0.0.1", "lo", ("GPU-0", "GPU-1")), "b": NodeFacts("127.0.0.1", "lo", ("GPU-2",))}
    plan = make("a\nb", facts, backend="process")
    seen = [planning.environment(plan, node, out="/o").get("CUDA_VISIBLE_DEVICES") for node in plan.nodes]
    assert seen == ["GPU-0,GPU-1", "GPU-2"]
    in_containers = make("a", {"a": NodeFacts("10.0.0.1", gpus=("GPU-0",))}, nodes=1)
    assert "CUDA_VISIBLE_DEVICES" not in planning.environment(in_containers, in_containers.nodes[0], out="/o")


def test_nodes_of_one_machine_get_addresses_that_no_network_of_it_has():
    used = ["10.201.0.0/16", "172.17.0.0/16", "fd00::/64", "10.202.77.128/25"]
    subnet, addresses = planning.one_machine(used, 3)
    assert (subnet, addresses) == ("10.203.77.0/24", ("10.203.77.10", "10.203.77.11", "10.203.77.12"))
    plan = make("a\nb", subnet=subnet)
    spec = planning.container_spec(plan, plan.nodes[1])
    assert (spec.network, spec.ipv4, spec.hostname) == ("muster-r", "10.0.0.2", "node1")
    with pytest.raises(Refused, match="no free private subnet"):
        planning.one_machine(["10.0.0.0/8"], 2)
    with pytest.raises(UsageError, match="room for 240 nodes"):
        planning.one_machine([], 241)
    assert ipaddress.ip_address(planning.one_machine([], 240)[1][-1]) in ipaddress.ip_network("10.201.77.0/24")


TEXT = st.text(max_size=20)
NODES = st.builds(
    NodePlan, st.integers(0, 99), TEXT, st.integers(1, 99), st.integers(0, 99), TEXT, TEXT, st.lists(TEXT, max_size=3).map(tuple), st.lists(TEXT, max_size=3).map(tuple)
)  # fmt: skip
PLANS = st.builds(
    RunPlan,
    run=TEXT,
    backend=TEXT,
    nodes=st.lists(NODES, max_size=3).map(tuple),
    master_address=TEXT,
    master_port=st.integers(1, 65535),
    program=st.lists(TEXT).map(tuple),
    image=TEXT,
    image_id=TEXT,
    preset=TEXT,
    environment=st.dictionaries(TEXT, TEXT),
    mounts=st.lists(st.builds(Mount, TEXT, TEXT, TEXT, st.booleans()), max_size=3).map(tuple),
    subnet=TEXT,
    attempt=st.integers(1, 9),
)


@given(PLANS)
def test_a_plan_that_is_written_reads_back_the_same(plan):
    assert planning.from_json(json.loads(json.dumps(planning.to_json(plan)))) == plan


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["nodes", "master", "ranks", "node"]), inner),
)  # fmt: skip


@given(PLANS, st.data())
def test_a_damaged_plan_is_a_value_error(plan, data):
    raw = planning.to_json(plan)
    raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(JSON)
    for text in (raw, data.draw(JSON)):
        with contextlib.suppress(ValueError):
            planning.from_json(text)

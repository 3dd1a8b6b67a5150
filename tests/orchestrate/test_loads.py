"""What the load tests run where."""

import itertools

import pytest

from orchestrate import loads
from orchestrate.plan import NodeFacts

GPUS = ("GPU-a", "GPU-b")


def place(index, gpus=()):
    return loads.Place(
        f"gpu0{index}", index, "muster:cuda", "sha256:1", gpus, ("/dev/infiniband/uverbs0",) if gpus else ()
    )


@pytest.mark.parametrize("count", range(9))
def test_neighbours_in_a_ring_meet_once_and_no_host_is_in_two_tests_at_once(count):
    names = [f"gpu{at}" for at in range(count)]
    waves = loads.waves(names)
    pairs = [frozenset(pair) for wave in waves for pair in wave]
    assert len(pairs) == len(set(pairs)) == (0 if count < 2 else 1 if count == 2 else count)
    assert all(len(pair) == 2 for pair in pairs)
    for wave in waves:
        in_it = list(itertools.chain(*wave))
        assert len(in_it) == len(set(in_it))


def test_a_host_is_tested_by_a_container_like_those_of_a_run_that_keeps_nothing():
    spec = loads.within("preflight-1", place(3, GPUS), busy_gpus=False)
    assert spec.labels["muster.run"] == "preflight-1"
    assert spec.labels["muster.host"] == "gpu03"
    assert (spec.gpus, spec.network, spec.mounts, spec.image) == (GPUS, "host", (), "sha256:1")
    assert spec.cap_drop == ("ALL",)
    assert spec.argv[:4] == ("python", "-m", "trainer.active", "--gpus=2")
    assert "--busy-gpus" not in spec.argv
    assert "--busy-gpus" in loads.within("preflight-1", place(3, GPUS), busy_gpus=True).argv


def test_a_pair_has_as_many_ranks_on_both_hosts():
    routes = (NodeFacts("10.0.0.1", "eth1"), NodeFacts("10.0.0.2", "eth1"))
    first, second = loads.between("preflight-1", (place(0, GPUS), place(1, GPUS[:1])), routes, 20123)
    for node, spec in enumerate((first, second)):
        assert f"--node-rank={node}" in spec.argv
        assert "--nproc-per-node=1" in spec.argv
        assert "--master-addr=10.0.0.1" in spec.argv
        assert spec.environment["GLOO_SOCKET_IFNAME"] == "eth1"
        assert "--cpu" not in spec.argv
        assert len(spec.gpus) == 1
        assert [word for word in spec.argv if word.startswith("--host=")] == ["--host=gpu00", "--host=gpu01"]
    assert first.name != second.name


def test_a_pair_of_which_one_has_no_gpu_meets_on_cpus():
    routes = (NodeFacts("10.0.0.1", "eth1"), NodeFacts("10.0.0.2", "eth1"))
    first, _ = loads.between("preflight-1", (place(0, GPUS), place(1)), routes, 20123)
    assert "--cpu" in first.argv
    assert (first.gpus, first.devices) == ((), ())

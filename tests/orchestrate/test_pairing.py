"""Which hosts try which peers: every ordered pair of a small fleet, a sample of a large one that reaches everybody."""

import pytest

from orchestrate.pairing import EVERY_PAIR_UP_TO, PORTS, pairs


def names(count):
    return [f"gpu{n:04}" for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, EVERY_PAIR_UP_TO])
def test_every_ordered_pair_of_a_small_fleet_is_tried(count):
    fleet = names(count)
    tried = {(source, peer) for source, peers in pairs(fleet).items() for peer in peers}
    assert tried == {(one, other) for one in fleet for other in fleet if one != other}


@pytest.mark.parametrize("count", [EVERY_PAIR_UP_TO + 1, 33, 100, 1000])
def test_a_sample_of_a_large_fleet_is_small_tries_the_first_host_from_everywhere_and_leaves_nobody_out(count):
    fleet = names(count)
    tried = pairs(fleet)
    assert set(tried) == set(fleet)
    assert max(map(len, tried.values())) <= 8
    assert all(fleet[0] in peers for name, peers in tried.items() if name != fleet[0])
    for name in fleet:
        assert name not in tried[name]
        assert len(set(tried[name])) == len(tried[name])
        assert sum(name in peers for peers in tried.values()) >= 2


def test_more_than_the_static_port_is_tried():
    assert set(PORTS) >= {29400, 29500}

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")

from trainer import order  # noqa: E402 - after the test for numpy

counts = st.integers(1, 200)
seeds = st.integers(0, 2**40)


@given(seeds, counts, st.integers(0, 50))
def test_an_epoch_covers_every_sample_once(seed, count, epoch):
    assert sorted(order.GlobalOrder(seed, count).epoch(epoch)) == list(range(count))


def test_each_epoch_and_each_seed_is_another_permutation():
    seen = {tuple(order.GlobalOrder(seed, 50).epoch(epoch)) for seed in (1, 2) for epoch in range(20)}
    assert len(seen) == 40


def test_the_order_does_not_change_between_versions():
    assert order.GlobalOrder(1851, 10).ids(0, 20).tolist() == [
        4,
        2,
        1,
        5,
        3,
        8,
        0,
        9,
        6,
        7,
        7,
        4,
        1,
        2,
        3,
        9,
        5,
        6,
        8,
        0,
    ]
    assert order.key(1851, "step", 3, 1) == 3327516707390123071


@given(seeds, counts, st.lists(st.integers(0, 500), min_size=2, max_size=2).map(sorted), st.integers(0, 500))
def test_a_range_cut_anywhere_is_the_same_range(seed, count, ends, cut):
    samples = order.GlobalOrder(seed, count)
    start, stop = ends
    cut = min(max(cut, start), stop)
    whole = samples.ids(start, stop)
    assert len(whole) == stop - start
    assert np.array_equal(whole, np.concatenate([samples.ids(start, cut), samples.ids(cut, stop)]))


@given(st.integers(1, 40), st.integers(1, 16))
def test_ranks_share_a_batch_evenly_without_loss_or_repeat(size, ranks):
    ids = np.arange(100, 100 + size)
    parts = [order.share(ids, rank, ranks) for rank in range(ranks)]
    assert len({len(mine) for mine, _ in parts}) == 1
    counted = [int(i) for mine, weights in parts for i, weight in zip(mine, weights, strict=True) if weight]
    assert counted == ids.tolist()
    assert {float(weight) for _, weights in parts for weight in weights} <= {0.0, 1.0}


@pytest.mark.parametrize("other", [(2, "step", 1, 0), (1, "init", 1, 0), (1, "step", 2, 0), (1, "step", 1, 1)])
def test_a_key_differs_when_anything_differs(other):
    assert order.key(1, "step", 1, 0) != order.key(*other)
    assert 0 <= order.key(1, "step", 1, 0) < 2**63

import math

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from trainer import optim, order  # noqa: E402 - after the test for torch
from trainer.config import Config  # noqa: E402
from trainer.data.blocks import Blocks  # noqa: E402
from trainer.models.gpt import GPT, Shape  # noqa: E402
from trainer.step import COUNT, LOSS, FastStep  # noqa: E402
from trainer.tasks import lm  # noqa: E402
from trainer.world import World  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = World(0, 0, 1, 1, torch.device("cpu"))
CONFIG = Config(steps=20, lr=1e-2)


def model(dropout=0.0):
    torch.manual_seed(1)
    return GPT(Shape(vocab=32, context=8, layers=2, heads=2, width=16, dropout=dropout))


@pytest.fixture
def blocks():
    return Blocks(np.random.default_rng(0).integers(0, 32, 400).astype(np.uint32), 8)


def batch(blocks, ids, weights=None):
    weights = np.ones(len(ids), np.float32) if weights is None else np.asarray(weights, np.float32)
    return blocks.batch(np.asarray(ids), weights)


def after(batches, clip=1.0, steps=2):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = FastStep(lm, net, optimizer, clip, ALONE)
    for _ in range(steps):
        totals = step(batches, range(len(batches)), 0.1, stop=False)
    return torch.cat([p.detach().flatten() for p in net.parameters()]), float(totals[LOSS] / totals[COUNT])


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_uneven_accumulation_equals_one_big_batch(blocks, clip):
    whole, loss = after([batch(blocks, range(7))], clip)
    parts, same = after([batch(blocks, [0, 1, 2]), batch(blocks, [3]), batch(blocks, [4, 5, 6])], clip)
    assert same == pytest.approx(loss, rel=1e-6)
    assert torch.allclose(whole, parts, atol=1e-6)
    assert not torch.allclose(whole, after([batch(blocks, range(6))], clip)[0], atol=1e-6)


def test_padding_of_weight_0_changes_nothing(blocks):
    whole, loss = after([batch(blocks, range(3))])
    padded, same = after([batch(blocks, [0, 1, 2, 9], [1, 1, 1, 0]), batch(blocks, [9], [0])])
    assert same == pytest.approx(loss, rel=1e-6)
    assert torch.allclose(whole, padded, atol=1e-6)


def test_clipping_bounds_the_length_of_the_step(blocks):
    begin = torch.cat([p.detach().flatten() for p in model().parameters()])
    moved, _ = after([batch(blocks, range(3))], clip=0.01, steps=1)
    assert float((moved - begin).norm()) == pytest.approx(0.1 * 0.01, rel=1e-2)


def test_random_draws_follow_the_key_alone(blocks):
    net = model(dropout=0.5)
    step = FastStep(lm, net, torch.optim.SGD(net.parameters(), lr=0.0), 0.0, ALONE)

    def loss(key):
        torch.rand(key)  # whatever was drawn before
        return float(step([batch(blocks, [1])], [key], 0.0, stop=False)[LOSS])

    assert loss(5) == loss(5) != loss(6)


def test_the_rate_rises_then_falls_to_its_floor_whatever_the_total():
    for steps in (1, 2, 7, 40, 1000):
        config = Config(steps=steps, lr=1.0, lr_floor=0.1, warmup=0.1)
        rates = [optim.rate(step, config) for step in range(1, steps + 1)]
        assert all(0 < rate <= 1.0 for rate in rates)
        assert rates[-1] == pytest.approx(0.1)
        top = max(range(steps), key=rates.__getitem__)
        assert rates[: top + 1] == sorted(rates[: top + 1])
        assert rates[top:] == sorted(rates[top:], reverse=True)


def test_decay_spares_biases_and_norms():
    net = model()
    decayed, spared = optim.build_optimizer(net, CONFIG).param_groups
    names = {id(p): name for name, p in net.named_parameters()}
    assert decayed["weight_decay"] == CONFIG.weight_decay
    assert spared["weight_decay"] == 0.0
    assert all("norm" in names[id(p)] or names[id(p)].endswith("bias") for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_the_optimizer_goes_on_from_its_saved_memory(blocks):
    def take(net, optimizer, ids):
        FastStep(lm, net, optimizer, 1.0, ALONE)([batch(blocks, ids)], [0], 1e-2, stop=False)

    one = model()
    first = optim.build_optimizer(one, CONFIG)
    take(one, first, [1, 2])
    other = model()
    other.load_state_dict(one.state_dict())
    second = optim.build_optimizer(other, CONFIG)
    optim.restore(other, second, {k: v.clone() for k, v in optim.state_tensors(one, first).items()})
    take(one, first, [3])
    take(other, second, [3])
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_fresh_model_knows_nothing_and_sees_no_future():
    net = model().eval()
    ids = torch.arange(8)[None]
    changed = ids.clone()
    changed[0, 5] = 30
    before, then = net(ids), net(changed)
    assert torch.equal(before[:, :5], then[:, :5])
    assert not torch.equal(before[:, 5:], then[:, 5:])
    loss_sum, count = lm.loss(net, {"x": ids, "y": ids + 1, "weight": torch.ones(1)})
    assert float((loss_sum / count).detach()) == pytest.approx(math.log(32), abs=0.1)


def test_blocks_meet_and_predict_the_next_token(blocks):
    got = batch(blocks, [0, len(blocks) - 1])
    assert torch.equal(got["x"][:, 1:], got["y"][:, :-1])
    assert got["y"][0, -1] == blocks.tokens[8]
    assert len(blocks) == (400 - 1) // 8
    assert sorted(order.GlobalOrder(1, len(blocks)).ids(0, len(blocks))) == list(range(len(blocks)))

"""One run on 1, 2 and 4 ranks."""

import math

import pytest

from trainer.contract import METRIC_FIELDS, parse_progress

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STEPS, BATCH = 8, 6  # 6 rows on 4 ranks: two of them are padding


@pytest.fixture(scope="module")
def runs(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    options = ("--steps", str(STEPS), "--global-batch", str(BATCH), "--set", "eval_every=4")
    done = {ranks: trainer(folder / str(ranks), *options, ranks=ranks) for ranks in (1, 2, 4)}
    for run in done.values():
        assert run.code == 0, run.text
    return done


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_loss_curve_of_many_ranks_lies_on_that_of_one(runs, ranks):
    alone = [row["loss"] for row in runs[1].rows]
    assert len(alone) == STEPS
    assert [row["loss"] for row in runs[ranks].rows] == pytest.approx(alone, rel=2e-4)


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_world_consumes_the_same_samples_in_the_same_order(runs, ranks):
    alone = runs[1].seen()
    assert [len(ids) for ids in alone] == [BATCH] * STEPS
    assert len({i for ids in alone for i in ids}) == STEPS * BATCH
    assert runs[ranks].seen() == alone


@pytest.mark.parametrize("ranks", [2, 4])
def test_evaluation_of_an_odd_sized_set_is_the_same_in_every_world(runs, ranks):
    alone = [row["eval_loss"] for row in runs[1].rows if "eval_loss" in row]
    assert len(alone) == 2
    assert [row["eval_loss"] for row in runs[ranks].rows if "eval_loss" in row] == pytest.approx(alone, rel=2e-4)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_reports_and_rank_0_alone_tells_progress(runs, ranks):
    lines = runs[ranks].text.splitlines()
    assert sum(line.startswith("rank ") and "host" in line and "device cpu" in line for line in lines) == ranks
    told = [progress for line in lines if (progress := parse_progress(line))]
    assert [progress.step for progress in told] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_row_of_metrics_has_the_fields_of_the_contract(runs, ranks):
    for row in runs[ranks].rows:
        assert set(METRIC_FIELDS) <= set(row)
        assert row["samples"] == row["step"] * BATCH
        assert row["step_s"] >= row["data_wait_s"] > 0
        assert row["gpu_util"] is None


def test_the_defaults_learn_the_novel_in_forty_steps(trainer, tmp_path):
    run = trainer(tmp_path, "--steps", "40", small=False)
    assert run.code == 0, run.text
    first, last = run.rows[0], run.rows[-1]
    assert (first["step"], last["step"]) == (1, 40)
    assert first["loss"] == pytest.approx(math.log(256), abs=0.1)
    assert last["loss"] < 4.0
    assert last["eval_loss"] < 4.0

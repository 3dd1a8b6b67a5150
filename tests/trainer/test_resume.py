"""A run that ends early, by force or by wish, and goes on."""

import re
import shutil
from signal import SIGKILL, SIGTERM

import pytest

from trainer.contract import EXIT_RETRY

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Dropout is on: the draws of a resumed run must be those of the undisturbed one.
RUN = ("--steps", "9", "--global-batch", "5", "--set", "dropout=0.2", "--set", "save_every=3", "--set", "eval_every=4")


@pytest.fixture(scope="module")
def undisturbed(trainer, tmp_path_factory):
    def make(ranks):
        run = trainer(tmp_path_factory.mktemp("whole"), *RUN, ranks=ranks)
        assert run.code == 0, run.text
        return run

    return {ranks: make(ranks) for ranks in (1, 2)}


@pytest.fixture(scope="module")
def killed(trainer, tmp_path_factory):
    """Two ranks, the second killed while it read its eighth batch: the newest checkpoint is that of step 6."""
    out = tmp_path_factory.mktemp("killed")
    run = trainer(out, *RUN, ranks=2, env={"SPY_SIGNAL": f"1:8:{SIGKILL}"})
    assert run.code != 0
    assert not (out / "final").exists()
    return out


def test_a_killed_run_goes_on_to_the_same_bits(trainer, killed, undisturbed, tmp_path):
    out = shutil.copytree(killed, tmp_path / "out")
    run = trainer(out, *RUN, ranks=2)
    assert run.code == 0, run.text
    assert "step-6: step 6, 30 samples" in run.text
    assert run.weights == undisturbed[2].weights
    assert [(r["step"], r["loss"]) for r in run.rows] == [(r["step"], r["loss"]) for r in undisturbed[2].rows]


def test_a_damaged_newest_checkpoint_is_passed_over_with_the_reason(trainer, killed, undisturbed, tmp_path):
    out = shutil.copytree(killed, tmp_path / "out")
    weights = out / "checkpoints/step-6/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    run = trainer(out, *RUN, ranks=2)
    assert run.code == 0, run.text
    assert "step-6 skipped: model.safetensors does not match its sha256" in run.text
    assert "step 4, 20 samples" in run.text  # step 4 was the best so far, and the newest that is whole
    assert run.weights == undisturbed[2].weights


def test_a_run_of_another_seed_or_model_is_refused_by_name(trainer, killed, tmp_path):
    out = shutil.copytree(killed, tmp_path / "out")
    run = trainer(out, *RUN, "--seed", "7", "--set", "width=64")
    assert run.code == 2
    assert "seed: there 1851, here 7; width: there 32, here 64" in run.text
    assert "Traceback" not in run.text


def test_sigterm_on_one_rank_saves_on_all_and_asks_for_another_run(trainer, undisturbed, tmp_path):
    run = trainer(tmp_path, *RUN, ranks=2, env={"SPY_SIGNAL": f"1:4:{SIGTERM}"})
    assert run.code != 0
    assert f"exitcode  : {EXIT_RETRY}" in run.text
    assert re.search(
        r"stopped at step [56]/9 with a checkpoint", run.text
    )  # heard in step 4 or 5, and read a step later
    assert trainer(tmp_path, *RUN, ranks=2).weights == undisturbed[2].weights


def test_stop_after_leaves_the_schedule_untouched(trainer, undisturbed, tmp_path):
    early = trainer(tmp_path, *RUN, "--stop-after", "4")
    assert early.code == 0, early.text
    assert [row["lr"] for row in early.rows] == [row["lr"] for row in undisturbed[1].rows][:4]
    assert not (tmp_path / "final").exists()
    late = trainer(tmp_path, *RUN)
    assert late.weights == undisturbed[1].weights
    again = trainer(tmp_path, *RUN)  # nothing is left to do, and nothing is done twice
    assert again.code == 0
    assert again.weights == undisturbed[1].weights
    assert [row["step"] for row in again.rows] == list(range(1, 10))


def test_resume_never_sets_the_earlier_run_aside(trainer, killed, tmp_path):
    out = shutil.copytree(killed, tmp_path / "out")
    run = trainer(out, *RUN, "--stop-after", "1", "--resume", "never")
    assert run.code == 0, run.text
    assert (out / "before-1/step-6/manifest.json").exists()
    assert (out / "before-1/metrics.jsonl").exists()
    assert [path.name for path in (out / "checkpoints").glob("step-*")] == ["step-1"]
    assert [row["step"] for row in run.rows] == [1]


def test_another_folder_begins_a_run_and_its_own_checkpoints_continue_it(trainer, killed, tmp_path):
    options = (*RUN, "--resume", str(killed))
    run = trainer(tmp_path, *options, "--stop-after", "7")
    assert run.code == 0, run.text
    assert f"resuming from {killed}/checkpoints/step-6: step 6, 30 samples" in run.text
    assert not (killed / "checkpoints/step-7").exists()
    again = trainer(tmp_path, *options, "--stop-after", "8")
    assert "step-7: step 7, 35 samples" in again.text


def test_a_folder_without_a_whole_checkpoint_is_refused(killed, tmp_path):
    from trainer import resume
    from trainer.errors import UsageError

    with pytest.raises(UsageError, match="no complete checkpoint there"):
        resume._choose(str(tmp_path / "none"), tmp_path)
    step = shutil.copytree(killed / "checkpoints/step-6", tmp_path / "step-6")
    (step / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"manifest\.json is missing"):
        resume._choose(str(step), tmp_path)


def test_an_older_checkpoint_of_the_run_itself_begins_a_new_timeline(trainer, killed, undisturbed, tmp_path):
    out = shutil.copytree(killed, tmp_path / "out")
    run = trainer(out, *RUN, "--resume", str(out / "checkpoints/step-4"), ranks=2)
    assert run.code == 0, run.text
    assert (out / "before-1/step-6").is_dir()
    assert run.weights == undisturbed[2].weights

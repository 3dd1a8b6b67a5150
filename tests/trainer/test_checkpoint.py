import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from trainer import checkpoint  # noqa: E402 - after the test for torch

pytestmark = pytest.mark.torch


def saved(number):
    tensors = {"weight": torch.full((3, 2), float(number))}
    return checkpoint.Saved({"step": number}, tensors, {"weight/step": torch.tensor(float(number))})


def save(root, *numbers, best=None, keep=2):
    for number in numbers:
        checkpoint.save(root, number, saved(number), best, keep)
    return root


def test_what_is_saved_is_loaded(tmp_path):
    folder = checkpoint.newest(save(tmp_path, 5), pytest.fail)
    loaded = checkpoint.load(folder)
    assert folder.name == "step-5"
    assert loaded.state == {"step": 5}
    assert torch.equal(loaded.model["weight"], torch.full((3, 2), 5.0))
    assert torch.equal(loaded.optimizer["weight/step"], torch.tensor(5.0))


def test_the_newest_and_the_best_are_kept_and_pointed_at(tmp_path):
    save(tmp_path, 1, 2, best=2)
    save(tmp_path, 3, 4, 10, best=2)
    assert checkpoint.steps(tmp_path) == [10, 4, 2]
    assert (tmp_path / "latest").read_text() == "step-10\n"
    assert (tmp_path / "best").read_text() == "step-2\n"
    assert {path.name for path in tmp_path.iterdir()} == {"step-10", "step-4", "step-2", "latest", "best"}


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path):
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("name", "harm", "reason"),
    [
        ("manifest.json", Path.unlink, "manifest.json is missing"),
        ("manifest.json", _cut, "manifest.json is unreadable"),
        ("manifest.json", lambda path: path.write_text("[]"), "manifest.json is unreadable"),
        ("manifest.json", lambda path: path.write_text('{"files": {}}'), "does not list model.safetensors"),
        ("model.safetensors", Path.unlink, "model.safetensors cannot be read"),
        ("model.safetensors", _cut, "the manifest says"),
        ("optimizer.safetensors", _flip, "optimizer.safetensors does not match its sha256"),
        ("state.json", _flip, "state.json does not match its sha256"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_its_reason(tmp_path, name, harm, reason):
    save(tmp_path, 1, 2)
    harm(tmp_path / "step-2" / name)
    told = []
    assert checkpoint.newest(tmp_path, told.append).name == "step-1"
    assert len(told) == 1
    assert reason in told[0]
    save(tmp_path, 2)  # the same step again takes the damaged one's place
    assert checkpoint.newest(tmp_path, pytest.fail).name == "step-2"


def test_nothing_whole_is_nothing_found(tmp_path):
    assert checkpoint.newest(tmp_path / "none", pytest.fail) is None
    save(tmp_path, 1)
    (tmp_path / "step-1/manifest.json").unlink()
    assert checkpoint.newest(tmp_path, str) is None


KILLED = """
import sys
from pathlib import Path
import torch
from trainer import checkpoint
torch.set_num_threads(1)
for number in range(1, 100_000):
    tensors = {"weight": torch.full((300, 200), float(number))}
    checkpoint.save(Path(sys.argv[1]), number, checkpoint.Saved({"step": number}, tensors, tensors), None, 2)
    print(number, flush=True)
"""


def test_a_process_killed_while_saving_leaves_no_mixture(tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) == 20:
                time.sleep(0.0137)
                process.send_signal(signal.SIGKILL)
                break
        rest = [int(line) for line in process.stdout]
    promised = max([20, *rest])
    folder = checkpoint.newest(tmp_path, pytest.fail)
    loaded = checkpoint.load(folder)
    assert loaded.state["step"] >= promised
    assert {float(loaded.model["weight"].min()), float(loaded.optimizer["weight"].max())} == {loaded.state["step"]}
    checkpoint.sweep(tmp_path)
    assert not [path for path in tmp_path.iterdir() if ".tmp-" in path.name]
    assert json.loads((folder / "manifest.json").read_text())["step"] == loaded.state["step"]

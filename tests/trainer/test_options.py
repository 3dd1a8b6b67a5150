import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config import KEYS, Config
from trainer.errors import UsageError
from trainer.options import parse


def test_the_later_source_wins(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('seed = 1\nsteps = 7\n[model]\nlayers = 3\nwidth = 128\ndata = "a"\n')
    config = parse(["--config", str(file), "--set", "seed=2", "--set", "width=96", "--seed", "3"])
    assert (config.seed, config.steps, config.layers, config.width, config.data) == (3, 7, 3, 96, "a")


def test_samples_on_the_command_line_replace_steps_of_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("steps = 7\n")
    config = parse(["--config", str(file), "--samples", "100", "--global-batch", "32"])
    assert (config.steps, config.total_samples, config.total_steps) == (0, 100, 4)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--set", "layer=3"], "unknown key 'layer'; near it: layers"),
        (["--set", "layers"], "write it as key=value"),
        (["--set", "layers=two"], "layers must be a whole number, not 'two'"),
        (["--set", "lr=nan"], "lr is nan"),
        (["--global-batch", "0"], "global_batch is 0; it must be at least 1"),
        (["--steps", "5", "--samples", "5"], "give one"),
        (["--set", "dropout=1.5"], "dropout is 1.5; it is a share"),
        (["--set", "heads=5"], "width 64 is not a multiple of heads 5"),
        (["--mode", "exact"], "exact is not built yet"),
        (["--mode", "slow"], "choose from fast, exact"),
        (["--tokenizer", "bpe", "--set", "vocab=100"], "must be larger"),
        (["--config", "none.toml"], "none.toml: cannot be read"),
        (["--stepz", "5"], "unrecognized arguments: --stepz"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_wrong(argv, told):
    with pytest.raises(UsageError) as caught:
        parse(argv)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["seed = true", "seed = 1.5", "data = 3", "seed = [1]", "seed ="])
def test_a_toml_value_of_another_type_is_refused(tmp_path, text):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"run\.toml"):
        parse(["--config", str(file)])


def test_a_wrong_option_ends_with_2_and_one_line_and_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; sys.argv[1:] = ['--set', 'sed=1']; import trainer.__main__ as m; m.leave()"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["python -m trainer: --set: unknown key 'sed'; near it: seed, steps, heads"]


def test_help_shows_examples_and_every_key(capsys):
    with pytest.raises(SystemExit) as left:
        parse(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert all(f"\n  {name} " in text for name in KEYS)


def test_the_defaults_stand():
    assert parse([]) == Config()
    assert Config().total_steps == 200

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.entry import PRESETS, apply, read_preset

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in PRESETS.glob("*.env"))
SHOW = "import os; print({k: v for k, v in os.environ.items() if k.startswith('NCCL_')})"


def enter(*command, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "MUSTER_"))}
    argv = [sys.executable, "-m", "trainer.entry", *command]
    return subprocess.run(argv, cwd=ROOT, env=clean | variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_parses_and_says_when_to_use_it(name):
    read_preset(name)
    assert "# When: " in (PRESETS / f"{name}.env").read_text()


def test_the_default_changes_nothing_and_says_nothing():
    assert read_preset("default") == {}
    done = enter(sys.executable, "-c", SHOW)
    assert (done.returncode, done.stdout.strip()) == (0, "{}")


def test_a_preset_reaches_the_command_in_the_same_process():
    done = enter(sys.executable, "-c", SHOW, MUSTER_PRESET="no-p2p-pcie")
    told, shown = done.stdout.splitlines()
    assert told == "preset no-p2p-pcie: NCCL_P2P_LEVEL=NVL  NCCL_NET_GDR_LEVEL=LOC"
    assert ast.literal_eval(shown) == read_preset("no-p2p-pcie")


def test_a_variable_that_is_set_is_kept_and_its_value_not_shown():
    done = enter(sys.executable, "-c", SHOW, MUSTER_PRESET="no-p2p-pcie", NCCL_P2P_LEVEL="PHB")
    told, shown = done.stdout.splitlines()
    assert "NCCL_P2P_LEVEL (already set, kept)" in told
    assert "PHB" not in told
    assert "'NCCL_P2P_LEVEL': 'PHB'" in shown
    assert apply({"A": "1", "B": "2"}, {"A": ""}) == ({"B": "2"}, ["A"])


@pytest.mark.parametrize("name", ["nope", "../presets/tcp", "TCP"])
def test_an_unknown_preset_is_refused_with_what_exists(name):
    done = enter("true", MUSTER_PRESET=name)
    assert done.returncode == 2
    assert f"no such preset; there are: {', '.join(NAMES)}" in done.stderr


@pytest.mark.parametrize("line", ["export A=1", "A = 1", "a=1", "A", "A=1 2", "A=1\nA=2"])
def test_a_malformed_preset_is_refused_with_its_line(tmp_path, line):
    (tmp_path / "x.env").write_text(f"# comment\n\n{line}\n")
    with pytest.raises(ValueError, match=r"x\.env:[34]: "):
        read_preset("x", tmp_path)


def test_the_command_keeps_its_exit_code_and_a_missing_one_is_named():
    assert enter(sys.executable, "-c", "raise SystemExit(75)").returncode == 75
    done = enter("no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr

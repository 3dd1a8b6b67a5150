import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract import Progress, parse_progress, parse_resumed, resumed_line

numbers = st.floats(0, 1e6, allow_nan=False)


@given(st.integers(0, 10**9), st.integers(0, 10**9), numbers, numbers, numbers, st.text(max_size=20))
def test_a_line_of_progress_reads_back(step, steps, loss, lr, rate, noise):
    told = parse_progress(noise.replace("\n", " ") + " " + Progress(step, steps, loss, lr, rate).line())
    assert (told.step, told.steps) == (step, steps)
    assert told.loss == pytest.approx(loss, abs=5e-5)
    assert told.lr == pytest.approx(lr, rel=1e-3)
    assert told.samples_per_s == pytest.approx(rate, abs=0.06)


@given(st.text())
def test_any_other_line_is_no_progress_and_no_error(text):
    assert parse_progress(text) is None


def test_an_evaluation_beside_the_progress_does_not_hide_it():
    line = Progress(5, 40, 3.25, 1e-3, 10.0).line() + "  eval_loss 3.1135"
    assert parse_progress(line) == Progress(5, 40, 3.25, 1e-3, 10.0)


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.integers(0, 10**9), st.integers(0, 10**9)
)
def test_the_step_a_run_goes_on_from_is_read_back(place, step, samples):
    assert parse_resumed(resumed_line(place, step, samples)) == step


@given(st.text())
def test_other_lines_tell_of_no_step(text):
    assert parse_resumed(text) is None or text.startswith("resuming from ")


@pytest.mark.parametrize("step", ["9" * 30, "3000000000000", "1" * 5000])
def test_a_step_beyond_any_run_is_no_progress(step):
    assert parse_progress(f"step {step}/1  loss 1.0  lr 1.0e-03  340.5 samples/s") is None

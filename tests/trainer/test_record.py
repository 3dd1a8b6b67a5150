import json

import pytest

from trainer.record import Metrics, Stopwatch


def test_rows_beyond_the_point_of_resumption_are_dropped_and_so_is_a_cut_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": n, "loss": 1.0}) + "\n" for n in range(1, 6)) + '{"step": 6, "lo')
    metrics = Metrics(path, step=3)
    metrics.row({"step": 4, "loss": 0.5})
    metrics.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]
    assert json.loads(path.read_text().splitlines()[-1])["loss"] == 0.5


def test_a_figure_that_json_cannot_hold_is_an_error_not_a_broken_file(tmp_path):
    metrics = Metrics(tmp_path / "metrics.jsonl", step=0)
    with pytest.raises(ValueError, match="JSON"):
        metrics.row({"step": 1, "loss": float("nan")})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_time_outside_of_steps_is_not_charged_to_them(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    watch = Stopwatch()
    for _ in range(2):
        with watch.waiting():
            now[0] += 0.5
        now[0] += 1.5
        watch.count(8)
    with watch.outside():
        now[0] += 100
    assert watch.read() == {"samples_per_s": 4.0, "step_s": 2.0, "data_wait_s": 0.5}
    now[0] += 1
    watch.count(8)
    assert watch.read() == {"samples_per_s": 8.0, "step_s": 1.0, "data_wait_s": 0.0}

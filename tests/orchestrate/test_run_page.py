"""The page of a run needs no network and believes nothing that hosts wrote."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from orchestrate.outcome import FirstFailure, Outcome
from orchestrate.plan import NodePlan, RunPlan
from orchestrate.report.run_page import MOST_POINTS, losses, page

EVIL = "<script src=//x>alert(1)</script>&\"'"
PLAN = RunPlan("r", "ssh", (NodePlan(0, EVIL, 2, 0, EVIL, EVIL),), EVIL, 1, program=(EVIL,), image=EVIL, image_id="sha256:" + EVIL)  # fmt: skip
FIRST = FirstFailure(EVIL, 1, 0, None, None, EVIL, (EVIL, "\x1b[31m"))


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text = set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "action", "style", "onload"}]

    def handle_data(self, data):
        self.text += data


def row(step, loss):
    return json.dumps({"step": step, "loss": loss})


def test_no_text_of_a_host_becomes_markup_and_nothing_is_fetched():
    text = page(PLAN, Outcome(EVIL, EVIL, 1, FIRST), "\n".join([row(1, 2.5), row(2, 1.5)]).encode())
    seen = Tags(text)
    assert "script" not in seen.tags
    assert seen.links == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert seen.text.count("alert(1)") >= 5
    assert "None" not in text
    assert "2.500" in text
    assert "1.500" in text


def test_metrics_that_are_no_metrics_are_passed_over():
    lines = [
        "", "{", "[]", "3", "null", "{}", '{"step": 1}', '{"loss": 1}', '{"step": "x", "loss": 1}', '{"step": null, "loss": 1}',
        row(1, float("nan")), row(2, float("inf")), row(float("inf"), 1.0), f'{{"step": 3, "loss": 1{"0" * 400}}}', "[" * 100_000,
        row(10**400, 1), row(7, 1.25), '{"step": 8, "eval_loss": 2}',
    ]  # fmt: skip
    assert losses("\n".join(lines).encode() + b"\n\xff\xfe") == [(7, 1.25)]


@given(st.binary())
def test_any_bytes_make_a_page(metrics):
    assert page(PLAN, Outcome("r", "finished", 0), metrics).endswith("</html>\n")


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    text = page(PLAN, Outcome("r", "finished", 0), "\n".join(row(n, 1 / (n + 1)) for n in range(50_000)).encode())
    points = re.search(r'points="([^"]*)"', text)[1].split()
    assert len(points) <= 2 * MOST_POINTS + 1
    assert "step 0 to" in text
    assert "at step 49999" in text


def test_a_curve_of_one_height_or_of_one_point_is_no_error():
    assert "polyline" in page(PLAN, Outcome("r", "finished", 0), "\n".join([row(1, 2.0), row(2, 2.0)]).encode())
    assert "polyline" not in page(PLAN, Outcome("r", "finished", 0), row(1, 2.0).encode())

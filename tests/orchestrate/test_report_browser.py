"""The HTML report in a real browser: Debian's Chromium without a network, by keyboard, in the dark, on a phone, on paper."""

import importlib.util
import itertools
import os
import re
import shutil
from pathlib import Path

import pytest

from orchestrate.cli import run

MACHINES = Path(__file__).parents[1] / "machines"
CHROMIUM = shutil.which("chromium")
WIDTHS = (360, 1400)


def lacking():
    if CHROMIUM is None:
        return "the report's browser tests need Chromium; next: apt-get install chromium"
    if importlib.util.find_spec("playwright") is None:
        return "the report's browser tests need playwright; next: make venv"
    return ""


@pytest.fixture(scope="module")
def browser():
    if lacking():
        if os.environ.get("MUSTER_LAB") == "1":
            pytest.fail(lacking(), pytrace=False)
        pytest.skip(lacking())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root, as in CI, has no sandbox; the page is our own
        browser = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=os.geteuid() != 0)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert run(["preflight", "--evidence", str(MACHINES), "--format", "html", "-o", str(path)]) == 1
    return path.as_uri()


@pytest.fixture
def visit(browser, report):
    """Open the report; whatever it asks of the network or says on the console fails the test."""
    contexts, complaints = [], []

    def visit(address=report, **options):
        context = browser.new_context(offline=True, **{"viewport": {"width": 1400, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def says(page, selector, text):
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(text)


def focused(page):
    return page.evaluate(
        "(() => { const a = document.activeElement; return [a.tagName, a.id, a.className, a.textContent.trim().slice(0, 40)]; })()"
    )


CONTRAST = """() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(".hidden, script, style")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([node.tagName, node.className, node.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return poor.slice(0, 5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_the_screen_and_can_be_read(visit, width, scheme):
    page = visit(viewport={"width": width, "height": 800}, color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 384) == (scheme == "dark")
    for _ in range(2):  # as it opens, and with all opened
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
        page.get_by_role("button", name="Open all").click()


def test_the_theme_is_the_systems_until_it_is_chosen(visit):
    page = visit(color_scheme="dark")
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    page.reload()
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"


def test_the_keyboard_alone_is_enough(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert focused(page)[2] == "skip-link"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    seen = []
    while focused(page)[1] != "words":
        page.keyboard.press("Tab")
        seen.append(focused(page))
        assert len(seen) < 20
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.type("time.skew")
    says(page, "#shown", re.compile("^[1-3] of "))  # the check's own card, and where it is named
    page.keyboard.press("Tab")
    assert focused(page)[3] == "\u2715 fail"
    page.keyboard.press("Enter")
    assert page.get_by_role("button", name="fail").get_attribute("aria-pressed") == "false"
    page.keyboard.press("Enter")
    about = page.locator(".card:visible summary", has_text="About time.skew")
    while focused(page)[0] != "SUMMARY" or "About time.skew" not in focused(page)[3]:
        page.keyboard.press("Tab")
        seen.append(focused(page))
        assert len(seen) < 80, seen
    assert not about.locator("..").evaluate("one => one.open")
    page.keyboard.press("Enter")
    assert about.locator("..").evaluate("one => one.open")


def test_the_skip_link_skips(visit):
    page = visit()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert focused(page)[1] == "main"


def test_search_finds_a_host_within_a_folded_name(visit, browser, tmp_path):
    from hostsetup.model import Finding, State
    from orchestrate.evidence import Visit
    from orchestrate.report.audit_page import as_html
    from orchestrate.report.findings import Audit

    hosts = [f"gpu{n:03}" for n in range(200)]
    found = [Finding(State.FAIL, saw="slow", check="a.a", hosts=(host,)) for host in hosts]
    found += [Finding(State.FAIL, saw="hot", check="b.b", hosts=(host,)) for host in hosts[:3]]
    (tmp_path / "fleet.html").write_text(
        as_html(Audit("fail", [Visit(h, "audited", 1, None) for h in hosts], {}, found))
    )
    page = visit((tmp_path / "fleet.html").as_uri())
    page.fill("#words", "gpu117")
    says(page, "#shown", "1 of 2 shown")
    assert page.locator(".card:visible h3").all_inner_texts() == ["a.a"]
    page.fill("#words", "gpu999")
    page.locator("#nothing").wait_for(state="visible")


def test_states_can_be_hidden_and_a_link_brings_them_back(visit):
    page = visit()
    page.get_by_role("button", name="fail").click()
    assert page.locator(".card.fail:visible").count() == 0
    assert page.locator(".card.warn:visible").count() > 0
    page.get_by_role("link", name="pcie: fail").click()
    assert page.locator(".card.fail:visible").count() > 0


def test_everything_has_a_name_in_the_accessibility_tree(visit):
    page = visit()
    page.get_by_role("button", name="Open all").click()
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in tree if not node.get("ignored")]
    roles = {}
    for node in shown:
        roles.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", "").strip())
    named = (
        "button",
        "link",
        "heading",
        "table",
        "columnheader",
        "rowheader",
        "searchbox",
        "article",
        "navigation",
        "region",
        "DisclosureTriangle",
    )
    for role in named:
        assert roles.get(role), role
        assert all(roles[role]), role
    assert {"main", "search", "status", "banner"} <= set(roles)
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 or (before, after) == (2, 4) for before, after in itertools.pairwise(levels))


def test_a_command_can_be_copied(visit):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the commands").first.click()
    says(page, "#shown", "Copied to the clipboard")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".command code").first.text_content()


def test_without_a_script_nothing_is_hidden(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("#controls").is_hidden()
    assert page.locator(".card").count() == page.locator(".card:visible").count() > 5
    summary = page.locator(".card summary", has_text="About").first
    summary.click()
    assert page.locator(".card pre.page:visible").count() == 1


def test_on_paper_all_is_open_and_controls_are_gone(visit):
    page = visit(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator("#controls").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.querySelectorAll('main details:not([open], .about)').length") == 0
    assert page.pdf()[:4] == b"%PDF"

"""The documents are true of the code: links lead somewhere, commands parse, and nothing that a person can ask for is left out."""

import re
import shlex
from pathlib import Path

import pytest

from hostsetup import checks
from orchestrate.cli import VERBS, cli
from orchestrate.errors import Exit
from trainer import config, entry, options

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))}
TEXTS = {name: path.read_text("utf-8") for name, path in PAGES.items()}
GUIDES = "\n".join(TEXTS[name] for name in TEXTS if name.startswith("docs/") or name == "README.md")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NOISE = re.compile(
    r"\b(simply|easily|effortless\w*|seamless\w*|powerful|robust|blazing\w*|leverag\w+|cutting-edge|world-class)\b|[☀-➿\U0001f300-\U0001faff]",
    re.IGNORECASE,
)


def commands(text):
    """Each command of the shell blocks, and each code span: as words, without what stands before the program."""
    lines = [line for kind, body in BLOCK.findall(text) if kind == "sh" for line in body.splitlines()]
    for line in (*lines, *INLINE.findall(BLOCK.sub("", text))):
        for part in re.split(r"&&|;|\|", line):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue  # a code span that is no command
            while words and (words[0] in {"time", "sudo"} or "=" in words[0]):
                words.pop(0)
            if words:
                yield words


def calls(*programs):
    """Every call of these programs in any document: (document, its words after the program)."""
    return [
        pytest.param(words[1:], id=f"{name}: {shlex.join(words)}")
        for name, text in TEXTS.items()
        for words in commands(text)
        if words[0].rpartition("/")[2] in programs
    ]


def trains(words):
    return "-m trainer " in " ".join(words) and not {"--help", "--config"} & set(words)


def heading_anchors(text):
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links():
    return [
        pytest.param(name, target, id=f"{name} -> {target}")
        for name, text in TEXTS.items()
        for target in LINK.findall(BLOCK.sub("", text))
        if "://" not in target
    ]


def verb_options():
    context = cli.make_context("orchestrate", [], resilient_parsing=True)
    return [
        (verb, max(parameter.opts, key=len))
        for verb in VERBS
        if not VERBS[verb].hidden
        for parameter in cli.get_command(context, verb).params
        if parameter.param_type_name == "option"
    ]


@pytest.mark.parametrize(("name", "target"), links())
def test_a_link_leads_somewhere(name, target):
    path, _, anchor = target.partition("#")
    place = (PAGES[name].parent / path).resolve() if path else PAGES[name]
    assert place.exists()
    if anchor:
        assert anchor in heading_anchors(place.read_text("utf-8"))


@pytest.mark.parametrize("words", calls("orchestrate"))
def test_a_command_parses(words):
    context = cli.make_context("orchestrate", [], resilient_parsing=True)
    _, rest, _ = cli.make_parser(context).parse_args(list(words))
    if rest:
        verb, *arguments = rest
        cli.get_command(context, verb).make_context(verb, arguments, parent=context)


@pytest.mark.parametrize(
    "words", [words for words in calls("orchestrate", "python", "torchrun") if trains(*words.values)]
)
def test_a_command_of_the_trainer_parses(words):
    options.parse(words[words.index("trainer") + 1 :])


@pytest.mark.parametrize("words", calls("make"))
def test_a_make_target_exists(words):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= set(targets)


def test_every_verb_and_every_option_is_told():
    assert [verb for verb in VERBS if not VERBS[verb].hidden and f"orchestrate {verb}" not in GUIDES] == []
    assert [pair for pair in verb_options() if not re.search(rf"{pair[1]}\b", GUIDES)] == []


def test_every_subsystem_key_preset_and_exit_code_is_told():
    subsystems = {check.id.partition(".")[0] for check in checks.catalogue()}
    assert [name for name in sorted(subsystems) if f"| `{name}` |" not in TEXTS["docs/preflight.md"]] == []
    told = {key for key in config.KEYS if re.search(rf"`(--)?{key.replace('_', '[_-]')}\b", TEXTS["docs/trainer.md"])}
    assert set(config.KEYS) - told == set()
    presets = [path.stem for path in entry.PRESETS.glob("*.env")]
    assert [name for name in presets if f"| `{name}` |" not in TEXTS["docs/launch.md"]] == []
    assert [code for code in Exit if f"| {code.value} |" not in TEXTS["README.md"]] == []


def test_the_picture_of_the_house_shows_every_room():
    rooms = [*ROOT.glob("hostsetup/*.py"), *ROOT.glob("hostsetup/facts/*.py"), *ROOT.glob("orchestrate/*.py")]
    words = set(re.findall(r"\w+", TEXTS["ARCHITECTURE.md"]))
    assert [path.name for path in rooms if path.stem.strip("_") not in words | {"init", "main"}] == []


@pytest.mark.parametrize("name", TEXTS)
def test_prose_is_plain(name):
    assert [found[0] for found in NOISE.finditer(TEXTS[name])] == []


def test_what_is_not_true_is_seen():
    text = (
        "```sh\nMUSTER_LAB=1 make nothing && .venv/bin/orchestrate launch --wrong  # why\n```\nand `orchestrate status`"
    )
    assert list(commands(text)) == [
        ["make", "nothing"],
        [".venv/bin/orchestrate", "launch", "--wrong"],
        ["orchestrate", "status"],
    ]
    assert heading_anchors("# Where data are\n```\n# no heading\n```\n") == {"where-data-are"}
    assert NOISE.search("It is simply there")

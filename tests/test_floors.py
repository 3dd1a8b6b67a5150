"""The floors of the house: who may import whom, what pure rooms stay clear of, and how large a file may be."""

import ast
import statistics
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hostsetup", "orchestrate", "trainer")
LONGEST_FILE = 400
MEDIAN_FILE = 100

IMPURE = {"os", "subprocess", "socket", "time", "random", "logging"}
NAMELESS = {"utils.py", "common.py", "helpers.py", "base.py", "manager.py"}

FACTS = ("hostsetup.model", "hostsetup.facts", "hostsetup.script", "hostsetup.recognise", "hostsetup.runlog")
OUTSIDE = ("click", "rich", "ClusterShell", "jinja2", "markupsafe")
TRAINING = ("torch", "numpy", "safetensors", "tokenizers", "pynvml")

# The first row that a module belongs to says what it may import beside the standard library and its own room.
TABLE = (
    ("hostsetup.model", ()),
    ("hostsetup.expect", ("hostsetup.model",)),
    ("hostsetup.uniform", ("hostsetup.model",)),
    ("hostsetup.scrub", ("hostsetup.model",)),
    ("hostsetup.profiles", (*FACTS, "hostsetup.expect", "hostsetup.host")),
    ("hostsetup.facts", ("hostsetup.model",)),
    ("hostsetup.script", ("hostsetup.model",)),
    ("hostsetup.recognise", ("hostsetup.model",)),
    ("hostsetup.runlog", ("hostsetup.model",)),
    ("hostsetup.host", FACTS),
    ("hostsetup.checks", (*FACTS, "hostsetup.host", "hostsetup.expect", "hostsetup.uniform")),
    ("hostsetup.symptoms", (*FACTS, "hostsetup.host")),
    ("hostsetup.fixes", (*FACTS, "hostsetup.host")),
    ("hostsetup.nccl", (*FACTS, "hostsetup.host")),
    ("hostsetup", ()),
    ("trainer.contract", ()),
    ("trainer", TRAINING),
    ("orchestrate.errors", ()),
    ("orchestrate.inventory", ("orchestrate.errors", "ClusterShell")),
    ("orchestrate.plan", ("hostsetup", "trainer.contract", "orchestrate.inventory", "orchestrate.errors")),
    (
        "orchestrate.outcome",
        ("hostsetup", "trainer.contract", "orchestrate.inventory", "orchestrate.errors", "orchestrate.plan"),
    ),
    ("orchestrate.remote", ("orchestrate", "fabric", "paramiko")),
    ("orchestrate.ssh", ("orchestrate.errors", "orchestrate.inventory", "paramiko")),
    (
        "orchestrate.engine",
        ("orchestrate", "hostsetup", "trainer.contract", "docker", "paramiko", "requests", "urllib3"),
    ),
    ("orchestrate", ("orchestrate", "hostsetup", "trainer.contract", *OUTSIDE)),
)
PURE = ("hostsetup", "trainer.contract", "orchestrate.plan", "orchestrate.outcome", "orchestrate.ssh.known_hosts")
MAY_PRINT = ("orchestrate.report", "trainer")


def within(module, rooms):
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def files():
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def sources():
    return {name_of(path): path.read_text("utf-8") for path in files()}


def type_only(tree):
    """The nodes below `if TYPE_CHECKING:`: they name types and import nothing when the program runs."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in node.body
        for inner in ast.walk(statement)
    }


def late(tree):
    """The nodes within functions: what they import is loaded when it is used."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {id(inner) for function in functions for inner in ast.walk(function)}


def leads_to(module, source, known):
    """The modules that a module needs in order to run; a package may load its own children late."""
    needed = set(imports(source, known=known, skipped=type_only)) & known.keys()
    at_once = set(imports(source, known=known, skipped=lambda tree: type_only(tree) | late(tree)))
    return {name for name in needed if name != module and (name in at_once or not within(name, [module]))}


def imports(source, *, known=(), skipped=lambda _tree: set()):
    """Every module that a source imports, wherever in it; `from a import b` is `a.b` where that is a module."""
    tree = ast.parse(source)
    left_out = skipped(tree)
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in known else node.module


def trespasses(module, source, known=()):
    """What the source imports, prints or touches although its room may not."""
    room, allowed = next((room, allowed) for room, allowed in TABLE if within(module, [room]))
    for imported in imports(source, known=known):
        top = imported.partition(".")[0]
        if within(imported, [room]) or top in sys.stdlib_module_names or within(imported, allowed):
            continue
        yield f"imports {imported}"
    if within(module, PURE):
        yield from (f"imports {name}" for name in imports(source) if name.partition(".")[0] in IMPURE)
        yield from (f"calls {name}" for name in called(source) if name in {"open", "input", "print"})
    if not within(module, MAY_PRINT):
        yield from (f"prints: {name}" for name in called(source) if name in {"print", "click.echo", "click.secho"})
        yield from (f"prints: {name}" for name in attributes(source) if name in {"sys.stdout", "sys.stderr"})


def called(source):
    return [ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def attributes(source):
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]


def cycles(graph):
    """The modules of each import cycle, found by walking away from every module and coming back."""
    state, found = {}, []

    def walk(module, path):
        state[module] = "open"
        for target in sorted(graph.get(module, ())):
            if state.get(target) == "open":
                found.append([*path[path.index(target) :], target])
            elif target not in state:
                walk(target, [*path, target])
        state[module] = "done"

    for module in sorted(graph):
        if module not in state:
            walk(module, [module])
    return found


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_a_module_keeps_to_its_room(path):
    assert list(trespasses(name_of(path), path.read_text("utf-8"), known=sources().keys())) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hostsetup.model", "import click"),
        ("hostsetup.facts.cpu", "from hostsetup.checks import run"),
        ("hostsetup.checks.x", "from hostsetup import symptoms"),
        ("hostsetup.checks.x", "def f():\n    import os"),
        ("hostsetup.script", "open('/etc/passwd')"),
        ("hostsetup.facts.cpu", "import time as t"),
        ("orchestrate.plan", "from orchestrate import remote"),
        ("orchestrate.outcome", "from time import monotonic"),
        ("orchestrate.watch", "import torch.distributed"),
        ("orchestrate.watch", "import trainer.loop"),
        ("orchestrate.watch", "import fabric"),
        ("orchestrate.remote", "import docker"),
        ("orchestrate.engine", "from fabric import Connection"),
        ("orchestrate.inventory", "from orchestrate import remote"),
        ("orchestrate.collect", "print('x')"),
        ("orchestrate.commands.launch", "import sys\nsys.stdout.write('x')"),
        ("orchestrate.commands.launch", "import click\nclick.echo('x')"),
        ("trainer.contract", "import torch"),
        ("trainer.loop", "import orchestrate.errors"),
        ("trainer.loop", "from hostsetup import model"),
    ],
)
def test_a_trespass_is_seen(module, source):
    known = {"hostsetup.symptoms", "orchestrate.remote", "hostsetup.model", "trainer.loop"}
    assert list(trespasses(module, source, known=known)) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hostsetup.host", "from hostsetup.facts import cpu"),
        ("hostsetup.checks.x", "from hostsetup.facts.access import Outcome"),
        ("orchestrate.plan", "from trainer import contract"),
        ("orchestrate.remote", "import fabric"),
        ("orchestrate.report.text", "print('x')"),
        ("trainer.loop", "import torch\nprint('x')"),
    ],
)
def test_what_the_table_allows_is_no_trespass(module, source):
    assert list(trespasses(module, source, known={"trainer.contract"})) == []


def test_no_module_imports_itself_by_a_detour():
    modules = sources()
    assert cycles({name: leads_to(name, source, modules) for name, source in modules.items()}) == []


def test_a_cycle_is_seen():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == [["a", "b", "c", "a"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_a_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_nothing_happens_when_a_module_is_imported(path):
    body = ast.parse(path.read_text("utf-8")).body
    assert [ast.unparse(node) for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)] == []


def length_of(text):
    """Lines of code: the page of a check, its docstring, is a document and may be as long as it needs."""
    first = ast.parse(text).body[:1]
    page = first[0].end_lineno if first and isinstance(first[0], ast.Expr) else 0
    return len(text.splitlines()) - page


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): length_of(path.read_text("utf-8")) for path in files()}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}
    assert statistics.median(length for length in lengths.values()) < MEDIAN_FILE


def test_no_file_has_a_name_that_says_nothing():
    assert [str(path) for path in files() if path.name in NAMELESS] == []

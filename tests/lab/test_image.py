"""The trainer's image, as the engine and a container of it show it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile

import lab as labs
import pytest

from trainer import contract

pytestmark = pytest.mark.lab

LOCK = labs.ROOT / "requirements/train-cpu.lock"


def in_image(image, script, *options):
    argv = ["docker", "run", "--rm", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", *options]
    return subprocess.run(
        [*argv, image, "sh", "-euc", script], capture_output=True, text=True, timeout=120, check=False
    )


def rebuild(tree, *options):
    argv = ["docker", "buildx", "build", "--build-arg=BASE=muster-lab-base", "--build-arg=VARIANT=cpu", *options]
    return subprocess.run([*argv, str(tree)], capture_output=True, text=True, timeout=300, check=False)


def test_the_labels_say_what_is_inside(trainer_image):
    labels = json.loads(labs.docker("image", "inspect", "--format", "{{json .Config.Labels}}", trainer_image))
    assert labels["muster.lock"] == hashlib.sha256(LOCK.read_bytes()).hexdigest()
    assert labels["muster.contract"] == str(contract.VERSION)
    assert labels["muster.variant"] == "cpu"
    assert len(labels["org.opencontainers.image.revision"].removesuffix("-dirty")) == 40


def test_it_runs_as_nobody_special_and_may_write_to_its_run_folder_alone(trainer_image):
    script = f"id -u; pwd; touch ${contract.ENV_OUT}/mine; for d in / /opt /opt/muster /opt/venv/bin /etc; do test ! -w $d; done"
    done = in_image(trainer_image, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1000", "/run/muster"]


def test_any_user_number_can_train_and_write_into_a_new_volume(trainer_image):
    script = "python -c 'import getpass, torch; getpass.getuser()'; touch $MUSTER_OUT/mine ~/mine; id -u"
    done = in_image(trainer_image, script, "--user=4321:4321", "--mount=type=volume,target=/run/muster")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4321"


def test_it_holds_the_trainer_and_nothing_else_of_the_tree(trainer_image):
    done = in_image(
        trainer_image, "ls -A /opt/muster; python -c 'import trainer.world'; ! python -c 'import orchestrate'"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trainer"]


def test_installed_versions_are_those_of_the_lock(trainer_image):
    listed = in_image(trainer_image, "pip list --format=json").stdout
    installed = {row["name"].lower().replace("_", "-"): row["version"] for row in json.loads(listed)}
    locked = dict(
        line.split(" ")[0].split("==") for line in LOCK.read_text().splitlines() if "==" in line and ";" not in line
    )
    assert {name: installed.get(name) for name in locked} == locked


def test_an_unknown_preset_ends_with_the_names_that_exist(trainer_image):
    done = in_image(trainer_image, "true", "--env=MUSTER_PRESET=nonsense")
    assert done.returncode == contract.EXIT_USAGE
    assert "default" in done.stderr


@pytest.fixture
def small_tree(tmp_path):
    """A tree whose image installs one wheel of a folder, with no index at all: the same Dockerfile, in a second."""
    tree, wheels = tmp_path / "tree", tmp_path / "wheels"
    for folder in (tree / "requirements", tree / "trainer", wheels):
        folder.mkdir(parents=True)
    for name in ("Dockerfile", ".dockerignore", "trainer/__init__.py", "trainer/contract.py"):
        (tree / name).write_bytes((labs.ROOT / name).read_bytes())
    wheel = wheels / "probe-1-py3-none-any.whl"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: probe\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "probe.py,,\nprobe-1.dist-info/METADATA,,\nprobe-1.dist-info/WHEEL,,\nprobe-1.dist-info/RECORD,,\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(
            "probe.py", f"MADE_IN = {str(tmp_path)!r}\n"
        )  # another layer for each test, never a cached one
        for name, text in info.items():
            archive.writestr(f"probe-1.dist-info/{name}", text)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tree / "requirements/train-cpu.lock").write_text(f"probe==1 --hash=sha256:{digest}\n")
    (tmp_path / "pip.conf").write_text("[global]\nno-index = true\n# muster-secret-marker\n")
    return tree, wheels, f"--secret=id=pip.conf,src={tmp_path / 'pip.conf'}"


def test_secrets_reach_the_step_that_needs_them_and_no_layer(small_tree, tmp_path):
    tree, wheels, pip_conf = small_tree
    (tmp_path / "ca.pem").write_text("muster-secret-marker\n")
    given = (pip_conf, f"--secret=id=ca,src={tmp_path / 'ca.pem'}", f"--build-context=wheels={wheels}")
    done = rebuild(tree, *given, "--quiet")
    assert done.returncode == 0, done.stderr
    image = done.stdout.strip()
    try:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            argv = ["grep", "--text", "--only-matching", "-e", "muster-secret-marker", "-e", "MADE_IN"]
            found = subprocess.run(argv, stdin=saved.stdout, capture_output=True, text=True, check=False)
        assert saved.returncode == 0
        assert set(found.stdout.split()) == {"MADE_IN"}  # the search finds what is there, and the secret is not
    finally:
        labs.docker("rmi", image)


def test_two_builds_without_a_cache_are_one_image(small_tree):
    tree, wheels, pip_conf = small_tree
    given = (pip_conf, f"--build-context=wheels={wheels}", "--build-arg=SOURCE_DATE_EPOCH=1700000000")
    images = [rebuild(tree, *given, "--no-cache", "--quiet").stdout.strip() for _ in range(2)]
    try:
        assert images[0].startswith("sha256:")
        assert images[0] == images[1]
    finally:
        labs.docker("rmi", *set(images))


@pytest.mark.parametrize(
    ("argument", "words"),
    [("LOCK_SHA256=" + "0" * 64, "checksum did NOT match"), ("CONTRACT=0", "CONTRACT=0, the code says")],
)
def test_a_label_that_would_not_be_true_stops_the_build(small_tree, argument, words):
    tree, wheels, pip_conf = small_tree
    done = rebuild(tree, pip_conf, f"--build-context=wheels={wheels}", f"--build-arg={argument}")
    assert done.returncode != 0
    assert words in done.stderr


def test_a_missing_wheel_ends_with_what_to_do(small_tree):
    tree, _, pip_conf = small_tree
    done = rebuild(tree, pip_conf)
    assert done.returncode != 0
    assert "next: the cpu variant needs every wheel" in done.stderr


def test_a_wheel_with_another_hash_is_refused(small_tree):
    tree, wheels, pip_conf = small_tree
    (tree / "requirements/train-cpu.lock").write_text(f"probe==1 --hash=sha256:{'0' * 64}\n")
    done = rebuild(tree, pip_conf, f"--build-context=wheels={wheels}")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr

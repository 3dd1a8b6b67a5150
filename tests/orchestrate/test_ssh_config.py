"""Routes: what ssh's configuration says of a host, compared with ssh itself where it can be asked."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrate.errors import UsageError
from orchestrate.ssh import config

TEXT = """
Host gpu01 gpu02
  HostName %h.cluster.example
  User trainer
  Port 2222
  IdentityFile ~/keys/%h
Host gpu02
  ProxyJump alice@gate:2200,[2001:db8::2]:22
Host near
  ProxyJump none
Host far*
  HostKeyAlias the-far
  UserKnownHostsFile "/a b/known" /c/known
  StrictHostKeyChecking accept-new
Host *
  ProxyJump gate
  IdentitiesOnly yes
  ServerAliveInterval 7
"""


@pytest.fixture
def files(tmp_path):
    path = tmp_path / "config"
    path.write_text(TEXT)
    return config.load(path)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs openssh-client")
@pytest.mark.parametrize("alias", ["gpu01", "gpu02", "near", "far7", "unheard-of"])
def test_a_route_says_what_ssh_says(files, tmp_path, alias):
    asked = subprocess.run(["ssh", "-F", tmp_path / "config", "-G", alias], check=True, capture_output=True, text=True)
    says = {}
    for line in asked.stdout.splitlines():
        key, _, value = line.partition(" ")
        says.setdefault(key, []).append(value)
    route = files.route(alias)
    assert [route.hostname, route.user, str(route.port)] == [says[key][0] for key in ("hostname", "user", "port")]
    assert ",".join(route.jumps) == says.get("proxyjump", [""])[0]
    assert route.strict == {"true": "yes", "false": "no"}.get(
        says["stricthostkeychecking"][0], says["stricthostkeychecking"][0]
    )


def test_key_files_are_named_by_the_hosts_full_name(files):
    assert files.route("gpu01").identities == (Path("~/keys/gpu01.cluster.example").expanduser(),)


def test_names_of_known_hosts_files_may_hold_blanks(files):
    route = files.route("far7")
    assert route.known_hosts[:2] == (Path("/a b/known"), Path("/c/known"))
    assert route.key_name == "the-far"


def test_user_and_port_of_the_hosts_file_come_before_the_configuration(files):
    route = files.route("gpu01", user="bob", port=7)
    assert (route.user, route.port, route.key_name) == ("bob", 7, "[gpu01.cluster.example]:7")
    assert route.command.endswith("-p 7 -l bob gpu01")


def test_hops_are_read_with_user_port_and_brackets(files):
    hops = [files.hop(jump) for jump in files.route("gpu02").jumps]
    assert [(hop.hostname, hop.port) for hop in hops] == [("gate", 2200), ("2001:db8::2", 22)]
    assert hops[0].user == "alice"


def test_includes_are_read_in_their_block_and_a_circle_of_them_is_refused(tmp_path):
    (tmp_path / "one.conf").write_text("User one\nHost other\n  User two\n")
    (tmp_path / "main").write_text(f"Host a\n  Include {tmp_path}/*.conf\n  Port 99\nHost *\n  User rest\n")
    files = config.load(tmp_path / "main")
    assert (files.route("a").user, files.route("a").port) == ("one", 99)
    assert files.route("b").user == "rest"
    (tmp_path / "round").write_text(f"Include {tmp_path}/round\n")
    with pytest.raises(UsageError, match="Include goes deeper"):
        config.load(tmp_path / "round")


def test_a_changed_file_is_read_anew(tmp_path):
    path = tmp_path / "config"
    path.write_text("Host a\n  Port 1\n")
    assert config.load(path).route("a").port == 1
    path.write_text("Host a\n  Port 22222\n")
    assert config.load(path).route("a").port == 22222

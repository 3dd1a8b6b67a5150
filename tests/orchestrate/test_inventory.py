"""Targets: what hosts files, comma lists and `local` mean, and how every mistake in them is told."""

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.errors import Exit, UsageError
from orchestrate.inventory import Host, format_hosts, parse_hosts, read_target

SAMPLE = (
    "\ufeff# the rack\r\n"
    "gpu01\r\n"
    "\r\n"
    "gpu[02-04,11]                                  # ranges expand\r\n"
    "alice@10.0.0.9:2222  slots=8  addr=192.168.50.9 iface=ens1f0\r\n"
    "[2001:db8::1]:22     spare\r\n"
)


def names(target):
    return [host.name for host in read_target(target)]


def refused(call, *words):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.exit_code == Exit.USAGE
    assert caught.value.next_step
    for word in words:
        assert word in f"{caught.value.where} {caught.value.what} {caught.value.next_step}"


def test_the_contracts_sample_reads_with_bom_crlf_comments_and_ranges():
    assert parse_hosts(SAMPLE) == (
        Host("gpu01", "gpu01", line=2),
        Host("gpu02", "gpu02", line=4),
        Host("gpu03", "gpu03", line=4),
        Host("gpu04", "gpu04", line=4),
        Host("gpu11", "gpu11", line=4),
        Host("10.0.0.9", "10.0.0.9", "alice", 2222, 8, "192.168.50.9", "ens1f0", line=5),
        Host("2001:db8::1", "2001:db8::1", port=22, spare=True, line=6),
    )


def test_mpi_and_deepspeed_hostfiles_read_as_they_are():
    hosts = parse_hosts("worker-1 slots=8\nworker-2 slots=4 max_slots=8\nworker-3 max-slots=2\n")
    assert [(host.name, host.slots) for host in hosts] == [("worker-1", 8), ("worker-2", 4), ("worker-3", None)]


def test_a_file_a_list_and_this_machine_are_targets(tmp_path):
    file = tmp_path / "fleet"
    file.write_text(SAMPLE)
    assert names(str(file)) == names(file)
    assert names("gpu01,gpu[03-04,09],alice@h:7,[::1]:22,fe80::1%eth0") == [
        "gpu01", "gpu03", "gpu04", "gpu09", "h", "::1", "fe80::1%eth0",
    ]  # fmt: skip
    (local,) = read_target("local")
    assert (local.name, local.local) == ("local", True)


def test_without_a_target_the_hosts_file_here_is_read_and_its_absence_names_the_three_forms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(read_target, "hosts file", "comma list", "`local`")
    (tmp_path / "hosts.txt").write_text("a\nb\n")
    assert names(None) == ["a", "b"]


def test_a_folder_of_a_hosts_name_does_not_hide_the_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu01").mkdir()
    assert names("gpu01") == ["gpu01"]


def test_hosts_that_differ_in_their_port_are_told_apart_by_it():
    assert names("127.0.0.1:2201,127.0.0.1:2202,other:7,[::1]:1,[::1]:2") == [
        "127.0.0.1:2201", "127.0.0.1:2202", "other", "[::1]:1", "[::1]:2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["hosts.txt", "names no host"]),
        ("# nothing\n\n", ["names no host"]),
        ("a\nb\na\n", ["hosts.txt:3", "'a' is named twice", "line 1"]),
        ("a\nroot@a:22\n", ["hosts.txt:2", "named twice"]),
        ("gpu[01-03]\ngpu02\n", ["hosts.txt:2", "line 1"]),
        ("a slot=8", ["hosts.txt:1", "'slot=8'", "did you mean 'slots'"]),
        ("a colour=red", ["unknown word", "slots=N"]),
        ("a b", ["unknown word 'b'"]),
        ("a slots=many", ["hosts.txt:1", "slots=many"]),
        ("a slots=0", ["slots=0"]),
        ("a slots=-1", ["slots=-1"]),
        ("a slots=1e3", ["slots=1e3"]),
        ("a slots=٣", ["is not a number"]),
        ("a slots=1 slots=1", ["stands twice"]),
        ("a spare=yes", ["spare=yes"]),
        ("a addr=", ["addr="]),
        ("a" * 64, ["is no host name"]),
        (".".join(["abcdefgh"] * 32), ["is no host name"]),
        ("a addr=some.name", ["addr=some.name", "addr=192.168.50.9"]),  # a name may mean another address on every host
        ("a[1-2] addr=10.0.0.1", ["one address", "2 hosts"]),
        ("a iface=eth0/../x", ["iface="]),
        ("a:0", ["port '0'"]),
        ("a:65536", ["65536"]),
        ("a:", ["port ''"]),
        ("a:b:c", ["port"]),
        ("x\ngpu[01-", ["hosts.txt:2", "malformed range"]),
        ("gpu[08-01]", ["malformed range"]),
        ("gpu[a-b]", ["malformed range"]),
        ("gpu[]", ["malformed range"]),
        ("gpu01]", ["malformed range"]),
        ("gpu[1-100000000]", ["more than 100000"]),
        ("a[1-999]b[1-999]c[1-999]", ["more than 100000"]),
        ("gpu[1-" + "9" * 5000 + "]", ["no range"]),
        ("-oProxyCommand=touch${IFS}x", ["looks like an option"]),
        ("root@-oProxyCommand=x", ["looks like an option"]),
        ("a -F/etc/passwd", ["unknown word"]),
        ("a;reboot", ["no host name"]),
        ("$(reboot)", ["no host name"]),
        ("a`b`", ["no host name"]),
        ("a|b@c", ["no user name"]),
        ("gpu01\x1b[31m", ["control character", r"\x1b"]),
        ("gpu01\x00", ["control character"]),
        ("a\u202eb", ["control character"]),
        ("gpü01", ["no host name"]),
        ("@all", ["no user name"]),
        ("a!b", ["no host name"]),
    ],
)
def test_a_mistake_is_told_with_its_line(text, words):
    refused(lambda: parse_hosts(text), *words)


def test_a_file_that_cannot_be_read_or_is_no_text_is_told(tmp_path):
    refused(lambda: read_target("no/such/hosts.txt"), "no/such/hosts.txt", "No such file")
    (tmp_path / "bad.txt").write_bytes(b"a\nb\xff\n")
    refused(lambda: read_target(tmp_path / "bad.txt"), "bad.txt:2", "UTF-8")
    os.mkfifo(tmp_path / "pipe")
    refused(lambda: read_target("a,,b"), "empty word")
    refused(lambda: read_target(""), "empty word")


def test_names_fold_and_what_does_not_fold_is_kept():
    assert format_hosts(["gpu02", "gpu01", "gpu07", "gpu03", "gpu01"]) == "gpu[01-03,07]"
    assert format_hosts(["10.0.0.1", "[::1]:22", "a"]) == "a,10.0.0.1,[::1]:22"
    assert format_hosts([]) == ""


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=200))
def test_any_text_is_a_list_of_distinct_hosts_or_a_usage_error(text):
    try:
        hosts = parse_hosts(text)
    except UsageError:
        return
    assert len({host.name for host in hosts}) == len(hosts) > 0
    assert not any(host.destination.startswith("-") for host in hosts)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{0,3}", fullmatch=True), min_size=1, unique=True))
def test_what_was_folded_reads_back_as_the_same_hosts(hosts):
    assert sorted(names(format_hosts(hosts))) == sorted(hosts)


def test_names_fold_in_time_in_proportion_to_their_number():
    names = [f"gpu{n:05}" for n in range(20_000)] + [f"10.0.{n // 250}.{n % 250}" for n in range(2_000)]
    start = time.process_time()
    assert format_hosts(names).startswith("gpu[00000-19999],10.0.0.0,")
    assert time.process_time() - start < 5

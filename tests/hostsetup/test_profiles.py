"""A platform adds what is known of it, under names that checks declare, and nothing to what is not listed."""

import pytest

from hostsetup import checks, host, profiles
from hostsetup.model import Evidence, Reply

EPYC = """Architecture: x86_64
CPU(s): 256
Vendor ID: AuthenticAMD
Model name: AMD EPYC 7742 64-Core Processor
CPU family: 23
Model: 49
Socket(s): 2
NUMA node(s): 8
"""
XEON = EPYC.replace("AuthenticAMD", "GenuineIntel").replace("AMD EPYC 7742 64-Core Processor", "Intel(R) Xeon(R) 8480C")


def facts(*devices, cpu=EPYC, vendor="10de"):
    gpus = "".join(
        f"0000:{at:02x}:00.0 3D controller [0302]: GPU [{vendor}:{one}]\n" for at, one in enumerate(devices, 1)
    )
    return host.read(Evidence("gpu01", {"lspci-vvv": Reply(gpus.encode()), "lscpu": Reply(cpu.encode())}))


def cpu_of(text):
    return facts(cpu=text).cpu.value


@pytest.mark.parametrize("platform", profiles.PLATFORMS, ids=lambda one: one.name)
@pytest.mark.parametrize("cpu", [EPYC, XEON], ids=["epyc", "xeon"])
def test_a_platform_uses_names_that_checks_declare_and_values_of_their_kind(platform, cpu):
    wants = {name: want for check in checks.catalogue() for name, want in check.expects.items()}
    for name, value in platform.values(cpu_of(cpu)).items():
        assert name in wants, f"no check declares {name}"
        assert wants[name].read(value) == value


def test_a_device_id_is_of_one_platform_and_four_digits():
    every = [device for one in profiles.PLATFORMS for device in one.devices]
    assert len(set(every)) == len(every)
    assert all(len(device) == 4 and int(device, 16) and device == device.lower() for device in every)


@pytest.mark.parametrize(("device", "links", "rate_gbps"), [("20b2", 12, 25.0), ("2330", 18, 25.0), ("2901", 18, 50.0)])
def test_eight_gpus_of_one_kind_are_that_platform(device, links, rate_gbps):
    told = profiles.expect_for(facts(*[device] * 8, cpu=XEON), checks.built_in())
    assert (told.whole("gpu.nvlink.links"), told.number("gpu.nvlink.rate_gbps")) == (links, rate_gbps)
    assert told.origin("gpu.nvlink.links").startswith("platform ")
    assert told.several("numa.nps") == (1,)
    assert told.origin("numa.nps") == "built-in"


def test_the_platform_that_ships_nps4_may_have_it_on_epyc_alone():
    base = checks.built_in()
    shipped = facts(*["20b0"] * 8)
    assert profiles.expect_for(shipped, base).several("numa.nps") == (1, 4)
    assert profiles.expect_for(facts(*["20b0"] * 8, cpu=XEON), base).several("numa.nps") == (1,)
    findings = checks.run({"gpu01": shipped}, only=["numa.nps"], expect=lambda one: profiles.expect_for(one, base))
    assert [finding.state.value for finding in findings] == ["pass"]
    assert "platform A100 SXM" in findings[0].wanted


@pytest.mark.parametrize(
    "host_facts",
    [
        None,
        facts(),
        facts("2330"),
        facts("2330", "20b0"),
        facts("2330", "2236"),
        facts("20b5", "20b5"),
        facts("2330", "2330", vendor="1002"),
        host.read(Evidence("gpu01")),
    ],
    ids=["fleet", "no GPU", "one GPU", "two kinds", "a kind that is not listed", "PCIe cards", "AMD", "nothing known"],
)
def test_of_what_is_not_listed_nothing_more_is_expected(host_facts):
    base = checks.built_in()
    assert profiles.expect_for(host_facts, base) is base


def test_what_a_site_says_comes_later():
    told = profiles.expect_for(facts(*["20b0"] * 8), checks.built_in()).over({"numa.nps": (1,)}, "site.toml")
    assert (told.several("numa.nps"), told.origin("numa.nps")) == ((1,), "site.toml")

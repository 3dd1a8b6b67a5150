"""What the whole catalogue says of whole hosts: nothing is wrong with healthy ones, and one difference is one finding."""

import re
from pathlib import Path

import pytest

from hostsetup import checks, host
from hostsetup.model import Evidence, Reply, State

MACHINES = Path(__file__).parent.parent / "machines"
BAD = {State.FAIL, State.WARN}

OTHER = (  # what the second of two equal hosts has for itself
    (r"hgx01", "hgx02"),
    (r"\b(10\.[23]0\.\d)\.11\b", r"\1.12"),
    (r"GPU-0", "GPU-1"),
    (r"machine-id:0f1e", "machine-id:1f1e"),
    (r"boot_id:5f0c", "boot_id:6f0c"),
)


def replies(name):
    folder = MACHINES / name
    told = {}
    for probe in {path.stem for path in folder.iterdir() if path.suffix in {".txt", ".rc", ".err"}}:
        parts = [folder / f"{probe}.{end}" for end in ("txt", "err", "rc")]
        out, err, rc = (part.read_bytes() if part.exists() else b"" for part in parts)
        told[probe] = Reply(out, err, int(rc or 0))
    return told


def changed(told, *changes, probe=None):
    """Return replies in which patterns are replaced: in one probe, where each has to occur, or wherever they do."""
    new = dict(told)
    for name in [probe] if probe else told:
        text = told[name].stdout.decode()
        for old, other in changes:
            assert probe is None or re.search(old, text, re.MULTILINE), (name, old)
            text = re.sub(old, other, text, flags=re.MULTILINE)
        new[name] = Reply(text.encode(), told[name].stderr, told[name].exit_code)
    return new


def audit(**hosts):
    return checks.run({name: host.read(Evidence(name, told)) for name, told in hosts.items()})


def ids(findings, *states):
    return {(finding.check, finding.state.value) for finding in findings if finding.state in states}


HGX = replies("hgx-h100")
SECOND = changed(HGX, *OTHER)


def test_nothing_is_wrong_with_two_healthy_hosts_and_nothing_is_unknown():
    findings = audit(hgx01=HGX, hgx02=SECOND)
    assert ids(findings, State.FAIL, State.WARN, State.UNKNOWN) == set()
    assert checks.verdict(findings, {"hgx01": "audited", "hgx02": "audited"}, strict=True) == "pass"
    assert len([finding for finding in findings if finding.state is State.INFO]) <= 8


DIFFERENCES = [
    ("nvidia-driver", [("580.95.05", "580.82.07")], {("gpu.driver.uniform", "warn"), ("gpu.fabric", "fail")}),
    ("uname", [("6.8.0-85-generic", "6.8.0-79-generic")], {("os.uniform", "warn")}),
    ("os-release", [("22.04", "24.04")], {("os.uniform", "warn")}),
    ("machine-files", [("bios_version:2.1", "bios_version:2.4")], {("bios.uniform", "warn")}),
    ("sysfs-net", [(r"\b400000$", "100000")], {("net.link", "warn")}),
    ("sysfs-rdma", [(r"^mlx5_0/ports/1/state:4: ACTIVE", "mlx5_0/ports/1/state:1: DOWN")], {("rdma.port", "warn")}),
    ("proc-meminfo", [("MemTotal: +[0-9]+", "MemTotal: 1056918188")], {("mem.size_swap", "warn")}),
    ("docker-objects", [("sha256:[0-9a-f]", "sha256:f")], {("docker.image", "fail")}),
    ("nvidia-smi-topo", [("NV18", "NV17")], {("gpu.topology", "warn")}),
    ("nvidia-toolkit", [("1.17.8", "1.16.2")], {("docker.toolkit", "warn")}),
]


@pytest.mark.parametrize(("probe", "changes", "wanted"), DIFFERENCES, ids=[one[0] for one in DIFFERENCES])
def test_one_difference_between_two_hosts_is_named_where_it_belongs(probe, changes, wanted):
    findings = audit(hgx01=HGX, hgx02=changed(SECOND, *changes, probe=probe))
    assert ids(findings, *BAD) == wanted


def test_every_host_is_compared_and_none_hides_another():
    dead = {"ssh": Reply(b'{"outcome": "timeout", "detail": "no answer"}')}
    findings = audit(hgx01=HGX, hgx02=changed(SECOND, ("580.95.05", "570.86.10"), probe="nvidia-driver"), hgx03=dead)
    assert {("ssh.reachable", "fail"), ("gpu.driver.uniform", "fail")} <= ids(findings, State.FAIL)
    assert {finding.check for finding in findings if "hgx01" in finding.hosts} == {one.id for one in checks.catalogue()}
    assert not [f for f in findings if f.hosts == ("hgx03",) and f.state is State.PASS]


OF_THE_MACHINE = (  # what a virtual machine shows of these is drawn by its hypervisor
    *("pcie.acs.redirect", "pcie.acs.other", "pcie.acs.readable", "pcie.acs.persist", "iommu.mode", "pcie.link"),
    *("pcie.errors", "numa.nps", "numa.snc", "numa.l3", "bios.uniform"),
)


@pytest.mark.parametrize("vendor", ["KVM", "Microsoft", "VMware", "Xen", "Amazon EC2", ""])
def test_the_rules_of_a_machine_are_not_applied_to_any_kind_of_virtual_machine(vendor):
    told = replies("pcie-switch-4gpu") | {"machine-files": HGX["machine-files"]}
    vm = changed(told, (r"^vm none", f"vm {vendor.lower().partition(' ')[0]}"), probe="machine-files")
    mark = (r"\Z", f"Hypervisor vendor: {vendor}\n") if vendor else (r"(Flags: +)", r"\1hypervisor ")
    vm = changed(vm, mark, probe="lscpu")
    findings = audit(one=vm, two=changed(vm, ("bios_version:2.1", "bios_version:2.4"), probe="machine-files"))
    assert {f.state for f in findings if f.check in OF_THE_MACHINE} == {State.SKIP}


@pytest.mark.parametrize("code", [127, 124, 255, 1])
def test_an_exit_code_alone_makes_no_host_bad(code):
    keep = {"ssh", "lspci-vvv", "lscpu"}
    told = {name: reply if name in keep else Reply(b"", b"", code) for name, reply in HGX.items()}
    found = ids(audit(hgx01=told), *BAD)
    # these three are about nothing else: a hang, an engine that is not there, a program that is missing
    assert {check for check, _ in found} <= {"gpu.responsive", "docker.daemon", "tools.present"}, found
    assert "pass" not in {
        f.state for f in audit(hgx01=told) if f.check.startswith(("gpu.", "net.", "rdma.", "docker."))
    }


BARE = {  # what the probes of GPUs and RDMA answer where there is neither
    "lspci-vvv": "0000:00:00.0 Host bridge: Intel Corporation 82G33/G31/P35/P31 Express DRAM Controller\n"
    "0000:00:02.0 Ethernet controller: Red Hat, Inc. Virtio 1.0 network device (rev 01)\n",
    "gpu-modules": "gpu-modules\n",
    "nvswitch": "nvswitch\nuptime 90000.1\n",
    "imex": "imex\n",
    "sysfs-rdma": "rdma\n",
    "nvidia-driver": "nvidia-driver\n",
    "nvidia-toolkit": "nvidia-toolkit\n",
    "stuck-processes": "stuck\n",
    "sysfs-pcie": "pcie\n",
    "sysfs-cpufreq": "cpufreq\n",
    "rdma-link": "",
    "ibv-devinfo": "No IB devices found\n",
}


def test_nothing_is_wrong_with_a_healthy_virtual_machine_without_gpus_and_little_is_unknown():
    gone = Reply(b"", b"sh: 1: nvidia-smi: not found\n", 127)
    told = {name: gone if name.startswith("nvidia-smi") else reply for name, reply in HGX.items()}
    told |= {name: Reply(text.encode()) for name, text in BARE.items()}
    told = changed(told, (r"^vm none", "vm kvm"), probe="machine-files")
    told = changed(told, (r"\Z", "Hypervisor vendor: KVM\n"), probe="lscpu")
    told = changed(told, (r"^.*ibp[^\n]*\n(    .*\n)*", ""), probe="ip-addr")
    findings = audit(vm1=told, vm2=changed(told, *OTHER))
    assert ids(findings, State.FAIL, State.WARN, State.UNKNOWN) == set()
    assert not [f for f in findings if f.check.startswith(("gpu.", "rdma.", "pcie.")) and f.state is not State.SKIP]

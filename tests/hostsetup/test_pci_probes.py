"""The probes of PCI, of boot files and of what runs at boot, run by real shells on a tree of files that looks like a host's."""

import re
import shutil
import subprocess

import pytest

from hostsetup import checks, host
from hostsetup.facts import acs_scripts, boot, cmdline, lockdown, pci, pcie
from hostsetup.model import Evidence, Known, Reply

SHELLS = [["sh"], ["dash"], ["busybox", "sh"], ["bash", "--posix"]]
WORD_AT = {"00:01.0": None, "01:00.0": None, "02:00.0": 0x1D, "02:01.0": 0x1D}
TREE = {
    "0000:00:01.0": ("0x8086", "0x352a", "0x060400", ()),
    "0000:01:00.0": ("0x1000", "0xc030", "0x060400", ("0000:00:01.0",)),
    "0000:02:00.0": ("0x1000", "0xc030", "0x060400", ("0000:00:01.0", "0000:01:00.0")),
    "0000:02:01.0": ("0x1000", "0xc030", "0x060400", ("0000:00:01.0", "0000:01:00.0")),
    "0000:03:00.0": ("0x10de", "0x2236", "0x030200", ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0")),
    "0000:04:00.0": ("0x15b3", "0x1021", "0x020700", ("0000:00:01.0", "0000:01:00.0", "0000:02:01.0")),
    "0000:04:00.1": ("0x15b3", "0x101e", "0x020700", ("0000:00:01.0", "0000:01:00.0", "0000:02:01.0")),
}


def config(word):
    data = bytearray(4096)
    data[0:4] = bytes.fromhex("001030c0")
    if word is None:
        data[0x100:0x104] = (0x00010001).to_bytes(4, "little")  # advanced error reporting alone
    else:
        data[0x100:0x108] = bytes.fromhex("0d000100") + (0x5F).to_bytes(2, "little") + word.to_bytes(2, "little")
    return bytes(data)


@pytest.fixture
def root(tmp_path):
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for address, (vendor, device, code, above) in TREE.items():
        home = tmp_path.joinpath("sys/devices/pci0000:00", *above, address)
        home.mkdir(parents=True, exist_ok=True)
        (bus / address).symlink_to(home)
        for name, value in (("vendor", vendor), ("device", device), ("class", code)):
            (home / name).write_text(f"{value}\n")
        (home / "config").write_bytes(config(WORD_AT.get(address.removeprefix("0000:"))))
        for name, value in (("link_speed", "32.0 GT/s PCIe"), ("link_width", "16")):
            (home / f"current_{name}").write_text(f"{value}\n")
            (home / f"max_{name}").write_text(f"{value}\n")
        (home / "aer_dev_nonfatal").write_text("Undefined 0\nCmpltTO 2\nTOTAL_ERR_NONFATAL 2\n")
        (home / "resource").write_text(
            "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
            "0x0000038000000000 0x00000387ffffffff 0x000000000014220c\n"
        )
        (home / "iommu_group").mkdir()
        (home / "iommu_group/type").write_text("DMA-FQ\n")
    gpu, nic, vf = (bus / address for address in ("0000:03:00.0", "0000:04:00.0", "0000:04:00.1"))
    (vf / "physfn").symlink_to(nic.resolve())
    (tmp_path / "sys/drivers/nvidia").mkdir(parents=True)
    (gpu / "driver").symlink_to(tmp_path / "sys/drivers/nvidia")
    for name, where in (("mlx5_0", nic), ("mlx5_1", vf)):
        folder = tmp_path / "sys/class/infiniband" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(where.resolve())
    (tmp_path / "sys/class/iommu/dmar0").mkdir(parents=True)
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text("none [integrity] confidentiality\n")
    write(tmp_path, "etc/default/grub", 'GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX="quiet"')  # no end of line
    write(tmp_path, "etc/default/grub.d/50-x.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n')
    write(
        tmp_path,
        "boot/grub/grub.cfg",
        "if x ; then\n   set default=\"0\"\nfi\nmenuentry 'Debian' --class debian $menuentry_id_option 'simple' {\n"
        "\tlinux\t/vmlinuz-6.1 root=/dev/sda1 ro quiet iommu=pt\n\tinitrd\t/initrd\n}\n",
    )
    write(
        tmp_path, "etc/systemd/system/noacs.service", f"[Service]\nExecStart=-{tmp_path}/usr/local/sbin/noacs.sh now\n"
    )
    (tmp_path / "etc/systemd/system/multi-user.target.wants").mkdir()
    (tmp_path / "etc/systemd/system/multi-user.target.wants/noacs.service").symlink_to("../noacs.service")
    write(tmp_path, "usr/local/sbin/noacs.sh", "#!/bin/sh\nsetpci -s 02:00.0 ECAP_ACS+6.w=0\n")
    return tmp_path


def write(root, path, text):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def ask(root, shell, module):
    """Run the probes with every absolute path moved below `root`; what they print of it is moved back."""
    replies = {}
    for probe in module.PROBES:
        if probe.name in {"lspci-vvv", "proc-cmdline"}:
            continue
        command = re.sub(r"(?<![\w.}$*/])/(sys|etc|boot|efi|run|usr/lib)\b", rf"{root}/\1", probe.command)
        command = command.replace("/(usr/local", f"{root}/(usr/local")
        done = subprocess.run([*shell, "-c", command], capture_output=True, check=False, timeout=30)
        text = done.stdout.decode().replace(f"{root}/", "/")
        replies[probe.name] = Reply(text.encode(), done.stderr, done.returncode)
    return replies


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_the_probes_read_a_tree_of_files(root, shell):
    if shutil.which(shell[0]) is None:
        pytest.skip(f"no {shell[0]} here")
    replies = {}
    for module in (pci, pcie, lockdown, boot, cmdline, acs_scripts):
        replies |= ask(root, shell, module)
    facts = host.read(Evidence("h", replies))
    for slot in ("pci", "acs", "pcie", "iommu", "lockdown", "boot", "cmdline", "acs_scripts", "bar1"):
        assert isinstance(getattr(facts, slot), Known), (slot, getattr(facts, slot), replies)
    assert [nic.address for nic in facts.pci.value.rdma_nics] == ["0000:04:00.0"]
    assert facts.pci.value.gpus[0].driver == "nvidia"
    assert facts.acs.value.words == {"0000:02:00.0": 0x1D, "0000:02:01.0": 0x1D}
    assert facts.iommu.value.active is True
    assert facts.iommu.value.of("0000:03:00.0") == "translated"
    assert facts.pcie.value.ports["0000:03:00.0"].errors == {"nonfatal": 2}
    assert facts.pcie.value.ports["0000:03:00.0"].kinds == {"nonfatal CmpltTO": 2}
    assert facts.bar1.value[0].size_mib == 32768
    assert facts.lockdown.value.mode == "integrity"
    assert facts.cmdline.value.configured == ("quiet", "iommu=pt")
    assert facts.boot.value.default.line.words == ("root=/dev/sda1", "ro", "quiet", "iommu=pt")
    assert facts.acs_scripts.value.files == ("/usr/local/sbin/noacs.sh",)
    (finding,) = checks.run({"h": facts}, only=["pcie.acs.redirect"])
    assert finding.state == "fail"
    assert finding.subject == "0000:03:00.0 <-> 0000:04:00.0"
    assert "locked down" in finding.remedy.text

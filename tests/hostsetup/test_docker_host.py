"""What could be a secret in an engine's file never leaves the host, and the rest is read as before."""

import json
import subprocess

from hostsetup.facts import docker_host

FILE = {
    "proxies": {"http-proxy": "http://ada:p@ss/w0rd@proxy.example:3128", "no-proxy": "localhost"},
    "log-opts": {"splunk-token": "t0ken with, more", "Splunk-Token": "T0KEN", "PASSWD": 'q"uote', "tag": "{{.Name}}"},
    "registry-mirrors": ["https://mirror.example/v2"],
    "data-root": "/srv/docker",
    "default-shm-size": "8G",
}


def test_secrets_are_masked_on_the_host(tmp_path):
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps(FILE).replace('"localhost"', r'"http:\/\/ada:esc@ped\/pw@proxy"'))
    (probe,) = docker_host.PROBES
    command = probe.command.replace("/etc/docker/daemon.json", str(path))
    told = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True, timeout=30).stdout
    for secret in ("ada", "ss/w0rd", "esc", "ped", "t0ken", "more", "T0KEN", "uote"):
        assert secret not in told, secret
    read = docker_host.parse_docker_host(told)
    assert read.config["data-root"] == "/srv/docker"
    assert read.config["registry-mirrors"] == FILE["registry-mirrors"]
    assert read.config["proxies"]["http-proxy"] == "http://***@proxy.example:3128"
    assert read.shm_bytes == 8 << 30

"""Training on two hosts: network namespaces of this machine, joined by a virtual cable."""

import os
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from training_runs import ROOT, launch

HOSTS = ("vaswani-test-0", "vaswani-test-1")
ADDRESSES = ("10.213.0.1", "10.213.0.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def two_hosts():
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "vt0", "netns", HOSTS[0], "type", "veth", "peer", "name", "vt1", "netns", HOSTS[1])
        for number, (host, address) in enumerate(zip(HOSTS, ADDRESSES, strict=True)):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", f"vt{number}")
            ip("-n", host, "link", "set", f"vt{number}", "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, timeout=20)


@pytest.mark.slow
def test_two_hosts_equal_two_processes_on_one_host(two_hosts, text, tmp_path):
    keys = {"max_steps": 8, "save_every": 4, "validation": [], "validate_every": None}
    folders = [tmp_path / "one host", tmp_path / "two hosts"]
    for folder in folders:
        folder.mkdir()
    config = ["--config_file", str(ROOT / "training" / "accelerate" / "one_host.yaml")]
    running = [launch(text, folders[0], *config, **keys)]
    assert running[0].wait(240) == 0, (folders[0] / "log").read_text()
    config = ["--config_file", str(ROOT / "training" / "accelerate" / "two_hosts.yaml")]
    for number, host in enumerate(HOSTS):
        words = [*config, "--machine_rank", str(number), "--main_process_ip", ADDRESSES[0], "--num_machines", "2"]
        # Without its name, gloo resolves the name of the host, which both share.
        variables = {"GLOO_SOCKET_IFNAME": f"vt{number}"}
        running.append(
            launch(text, folders[1], *words, prefix=("ip", "netns", "exec", host), variables=variables, **keys)
        )
    try:
        assert [process.wait(240) for process in running[1:]] == [0, 0], (folders[1] / "log").read_text()
    finally:
        for process in running:
            process.kill()
    one, two = (load_file(folder / "run/model.safetensors") for folder in folders)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)

"""Training on two hosts: network namespaces of this machine, joined by a virtual cable."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent
HOSTS = ("vaswani-test-0", "vaswani-test-1")
ADDRESSES = ("10.213.0.1", "10.213.0.2")
RECIPE = {
    "model": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
              "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
    "vocab_size": 270, "max_length": 40, "tokens_per_step": 800, "micro_batches": 4, "learning_rate": 0.01,
    "warmup_steps": 5, "max_steps": 8, "save_every": 4, "keep": 1, "average_last": 1, "validation": [],
    "validate_every": None,
}  # fmt: skip


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


def launch(flags: dict, number: int, hosts: int, log: Path) -> subprocess.Popen:
    """Run `accelerate launch` with a shipped file: two processes on one host, or one on each of two."""
    command = ["ip", "netns", "exec", HOSTS[number]] if hosts == 2 else []
    config = ROOT / "training" / "accelerate" / ("two_hosts.yaml" if hosts == 2 else "one_host.yaml")
    command += [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += ["--num_processes", "2", "--mixed_precision", "no"]
    if hosts == 2:
        command += ["--machine_rank", str(number), "--main_process_ip", ADDRESSES[0]]
    command += ["-m", "training"]
    command += [word for key, value in flags.items() for word in (f"--{key}", json.dumps(value))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if hosts == 2:
        environment["GLOO_SOCKET_IFNAME"] = f"vt{number}"  # otherwise gloo resolves the host name, which both share
    with log.open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_two_hosts_equal_two_processes_on_one_host(two_hosts, tmp_path):
    generator = random.Random(0)
    lines = ["".join(generator.choice("abcdefgh") for _ in range(generator.randint(2, 14))) for _ in range(120)]
    (tmp_path / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    for hosts in (1, 2):
        flags = RECIPE | {"data": str(tmp_path), "output_dir": str(tmp_path / f"run{hosts}")}
        logs = [tmp_path / f"log-{hosts}-{number}" for number in range(hosts)]
        running = [launch(flags, number, hosts, logs[number]) for number in range(hosts)]
        try:
            codes = [process.wait(240) for process in running]
        finally:
            for process in running:
                process.kill()
        assert codes == [0] * hosts, "".join(log.read_text() for log in logs)
    one, two = (load_file(tmp_path / f"run{hosts}/model.safetensors") for hosts in (1, 2))
    for name, weight in one.items():
        assert torch.equal(weight, two[name]), name

"""docs/two_machines.md's quick start, word for word: its blocks are run on two network namespaces that have the names and
addresses which they name. Only scp, for want of an ssh between them, is a program that copies between their folders.

With the commands of the release build, and with those of the wheel in a fresh environment. Needs root, `ip`, the release
build and torch.
"""

import os
import pathlib
import re
import shutil
import subprocess
import uuid
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
PAGE = ROOT / "docs" / "two_machines.md"
HOSTS = {"10.0.0.1": "host-one", "10.0.0.2": "host-two"}
LIMIT = 240  # seconds for each block


def blocks():
    """[(title, commands)] of the quick start, in order."""
    text = PAGE.read_text(encoding="utf-8").split("## Quick start\n")[1].split("\n## ")[0]
    found = []
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE):
        for part in re.split(r"^    # (?=10\.)", block, flags=re.MULTILINE)[1:]:
            title, commands = part.split("\n", 1)
            found.append((title.strip(), "\n".join(line[4:] for line in commands.splitlines())))
    return found


class Machine:
    def __init__(self, namespace, address, folder, programs):
        self.namespace, self.address, self.folder, self.programs = namespace, address, folder, programs
        folder.mkdir()
        shutil.copy(ROOT / "examples" / "gpt.py", folder)
        (folder / "tools").mkdir()
        (folder / "tools" / "scp").write_text('#!/bin/sh\n[ "$1" = -r ] && cp -r "$2" "' + str(folder.parent) + '/${3%:}"\n')
        (folder / "tools" / "scp").chmod(0o755)
        hosts = "".join(f"{address} {name}\n" for address, name in HOSTS.items())
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + hosts)

    def start(self, commands):
        """A shell that does them and then waits for what it started, on a machine with its own name and /etc/hosts."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        env["PATH"] = ":".join(map(str, (self.folder / "tools", *self.programs, "/usr/bin", "/bin", "/sbin")))
        env["OMP_NUM_THREADS"] = "1"
        # A daemon that fails must fail the block: `wait` alone would forget it.
        script = f"set -e\n{commands}\nfor job in $(jobs -p); do wait $job; done\n"
        # The program of unshare dies with it, and as the first process of its own it takes all others along.
        program = f'mount --bind hosts /etc/hosts; hostname {HOSTS[self.address]}; exec bash -c "$1"'
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child",
             "--mount-proc", "bash", "-ec", program, "-", script],
            cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, commands):
        process = self.start(commands)
        output, _ = process.communicate(timeout=LIMIT)
        return process.returncode, output


def wheel_programs(folder):
    """The folder of commands of a fresh environment with the wheel, and with the torch of this tree's environment."""
    import torch

    run = lambda *command: subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    has_nvcc = shutil.which("nvcc") or pathlib.Path("/usr/local/cuda/bin/nvcc").exists()
    run(ROOT / "scripts/wheel", "--out", folder, *([] if has_nvcc else ["--without-kernels"]))
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv/bin"
    run(programs / "python", "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "-q", "--no-index", wheel)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # A path alone does not bring that environment's editable packages.
    (packages / "torch_of_the_tree.pth").write_text(f"{pathlib.Path(torch.__file__).parents[1]}\n")
    (programs / "torchrun").write_text('#!/bin/sh\nexec python -m torch.distributed.run "$@"\n')
    (programs / "torchrun").chmod(0o755)
    return programs


@pytest.fixture(params=["build", "wheel"])
def machines(request, tmp_path):
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the program ip")
    tag = "bdn" + uuid.uuid4().hex[:6]
    names = {address: tag + letter for address, letter in zip(HOSTS, "ab")}
    made = []
    ip = lambda *arguments: subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    try:
        try:
            for name in names.values():
                ip("netns", "add", name)
                made.append(name)
            one, two = names.values()
            ip("-n", one, "link", "add", "net", "type", "veth", "peer", "name", "net", "netns", two)
            for address, name in names.items():
                ip("-n", name, "addr", "add", address + "/24", "dev", "net")
                ip("-n", name, "link", "set", "net", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {' '.join(error.cmd)}: {error.stderr.strip()}")
        programs = [BIN, ROOT / "build/venv/bin"] if request.param == "build" else [wheel_programs(tmp_path / "wheel")]
        yield {address: Machine(name, address, tmp_path / address, programs) for address, name in names.items()}
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def test_what_the_page_says_trains_on_two_machines(machines):
    steps = blocks()
    assert [title for title, _ in steps] == ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1, looking on"]
    one, two = machines.values()
    code, output = one.run(steps[0][1])
    assert code == 0, output
    assert (two.folder / "host-2" / "key.pem").stat().st_mode & 0o777 == 0o600

    jobs = [one.start(steps[1][1]), two.start(steps[2][1])]
    outputs = ["", ""]
    try:
        for line in jobs[0].stdout:  # the first lines of training: by then all have joined
            outputs[0] += line
            if re.search(r"step +\d", line):
                break
        code, status = one.run(steps[3][1])
        for i, job in enumerate(jobs):
            outputs[i] += job.communicate(timeout=LIMIT)[0]
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    said = "\n--- 10.0.0.2\n".join(outputs)
    assert [job.returncode for job in jobs] == [0, 0], said
    assert "loss" in said, said
    assert code == 0 and "running" in status, status + said
    for address in HOSTS:
        assert f"tcp://{address}:7100" in status, status

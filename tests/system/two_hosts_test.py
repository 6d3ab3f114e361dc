"""A job on two hosts with certificates, step by step as docs/security.md has it, and a stranger on a third.

The hosts are network namespaces, joined by a bridge in a fourth. Needs root, `ip` and the release build; no torch.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import threading
import uuid

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))
LIMIT = 60  # seconds for the whole job
HOST_A, HOST_B, STRANGER = "10.199.0.1", "10.199.0.2", "10.199.0.3"
SCHEDULER = f"{HOST_A}:7000"
DATA_PORT = 7100

WORKER = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration
with bandoneon.init() as worker:
    n = 10_000
    data = (ctypes.c_float * n)(*([worker.rank + 1.0] * n))
    (tensor,) = worker.declare([Declaration("w", n)])
    for step in range(int(sys.argv[1])):
        data[:] = [worker.rank + 1.0] * n
        worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
        assert set(data) == {1.5}, set(data)
    print("half way", flush=True)
    sys.stdin.readline()
    worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    assert set(data) == {1.5}, set(data)
print("ended well", flush=True)
"""

# Knocks at both ports, as a scanner does: neither says more than what its protocol begins with.
STRANGER_PROGRAM = """
import os, socket, sys
for host, port in ((sys.argv[1], 7000), (sys.argv[2], 7100)):
    with socket.create_connection((host, port), timeout=30) as connection:
        answer = b""
        try:
            connection.sendall(os.urandom(4096))
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(4096):
                answer += more
        except TimeoutError:
            raise
        except OSError:  # Whichever call is the first to see that the connection was cut.
            pass
        assert len(answer) <= 128, answer
print("knocked", flush=True)
"""


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """Names of three namespaces whose addresses are HOST_A, HOST_B and STRANGER."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the program ip")
    tag = "bdn" + uuid.uuid4().hex[:6]
    switch, names = tag + "s", [tag + letter for letter in "abc"]
    made = []
    try:
        try:
            for name in [switch, *names]:
                ip("netns", "add", name)
                made.append(name)
            ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge", "up")
            for name, address in zip(names, (HOST_A, HOST_B, STRANGER)):
                ip("-n", name, "link", "add", "net", "type", "veth", "peer", "name", name, "netns", switch)
                ip("-n", switch, "link", "set", name, "master", "bridge", "up")
                ip("-n", name, "addr", "add", address + "/24", "dev", "net")
                ip("-n", name, "link", "set", "net", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {' '.join(error.cmd)}: {error.stderr.strip()}")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Host:
    """Runs programs in one namespace, with the certificate of one name."""

    def __init__(self, namespace, folder):
        self.namespace, self.folder, self.started = namespace, folder, []

    def environment(self, certificate):
        env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
        if certificate:
            for setting, file in (("CA", "ca"), ("CERT", "cert"), ("KEY", "key")):
                env["BANDONEON_TLS_" + setting] = str(self.folder / certificate / (file + ".pem"))
        return env

    def start(self, certificate, *command, **variables):
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *map(str, command)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment(certificate) | variables)
        self.started.append(process)
        return process

    def run(self, certificate, *command, **variables):
        process = self.start(certificate, *command, **variables)
        output, _ = process.communicate(timeout=LIMIT)
        return process.returncode, output


def await_line(process, text):
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError(f"ended before {text!r}: {''.join(seen)}")


def issue(folder, job, *certificates):
    subprocess.run([BIN / "bandoneon", "certs", "init", "--dir", folder, "--job", job], check=True,
                   stdout=subprocess.DEVNULL)
    for name, role in certificates:
        subprocess.run([BIN / "bandoneon", "certs", "issue", "--dir", folder, "--role", role, "--name", name],
                       check=True, stdout=subprocess.DEVNULL)


def test_a_job_on_two_hosts_and_a_stranger_who_gets_nothing(hosts, tmp_path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    issue(mine, "gpt-7", ("scheduler", "scheduler"), ("server-a", "server"), ("worker-a", "worker"),
          ("anna", "observer"))
    issue(theirs, "gpt-7", ("thief", "server"), ("reader", "worker"))  # of the same name, and no more
    a, b, stranger = (Host(name, folder) for name, folder in zip(hosts, (mine, mine, theirs)))
    deadline = threading.Timer(LIMIT, lambda: [p.kill() for h in (a, b, stranger) for p in h.started])
    deadline.start()
    try:
        scheduler = a.start("scheduler", BIN / "bandoneon-scheduler", "--listen", SCHEDULER, "--workers", 2,
                            "--servers", 1)
        await_line(scheduler, "listens at port")
        server = b.start("server-a", BIN / "bandoneon-server", "--scheduler", SCHEDULER, "--listen",
                         f"tcp://{HOST_B}:{DATA_PORT}")
        # Before the job is full: a stranger may not take the second worker's place, nor the first one's.
        for name, program in (("thief", "server"), (None, "server")):
            code, output = stranger.run(name, BIN / "bandoneon-server", "--scheduler", SCHEDULER, "--listen",
                                        f"tcp://{STRANGER}:{DATA_PORT}", "--token", "guess", "--insecure",
                                        "--join-timeout", "1s")
            assert code == 1 and "cannot be reached" in output, output
        workers = [host.start("worker-a", sys.executable, "-c", WORKER, "20", BANDONEON_SCHEDULER=SCHEDULER,
                              BANDONEON_RANK=str(rank)) for rank, host in enumerate((a, b))]
        for worker in workers:
            await_line(worker, "half way")

        code, output = b.run("anna", BIN / "bandoneon", "status", "--scheduler", SCHEDULER)
        assert code == 0 and "running" in output, output
        for name in ("reader", None):
            code, output = stranger.run(name, BIN / "bandoneon", "status", "--scheduler", SCHEDULER, "--token", "guess",
                                       "--insecure")
            assert code == 1 and "worker" not in output, output
        code, output = stranger.run(None, sys.executable, "-c", STRANGER_PROGRAM, HOST_A, HOST_B)
        assert code == 0 and "knocked" in output, output

        for worker in workers:
            worker.stdin.write("go on\n")
            worker.stdin.flush()
        ends = [process.communicate(timeout=LIMIT)[0] for process in (*workers, server, scheduler)]
        assert [p.returncode for p in (*workers, server, scheduler)] == [0, 0, 0, 0], ends
        assert all("ended well" in output for output in ends[:2]), ends
    finally:
        deadline.cancel()
        for host in (a, b, stranger):
            for process in host.started:
                process.kill()
                process.communicate()

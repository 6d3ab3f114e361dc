"""A scheduler, a server and two workers, each a process of its own, train over every transport of the tests.

The workers compare all weights with plain arithmetic after every step. Needs the release build; no torch.
"""

import os
import subprocess

from process_helpers import BIN, Process

NODE = BIN / "job_node"


def train(scheme, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    env["BANDONEON_JOIN_TIMEOUT"] = "60s"
    env["BANDONEON_TRANSPORT"] = "network"  # frames would go over shared memory otherwise
    port_file = tmp_path / f"{scheme}.port"
    processes = []

    def start(name, *command):
        processes.append(Process(f"{scheme}: {name}", [str(word) for word in command], env))
        return processes[-1]

    try:
        scheduler = start("scheduler", BIN / "bandoneon-scheduler", "--workers=2", "--servers=1",
                          f"--port-file={port_file}")
        scheduler.wait_for("listens at")
        env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{port_file.read_text().strip()}"
        start("server", NODE, "server", f"--listen={scheme}://{tmp_path}/{scheme}")
        for rank in range(2):
            start(f"worker {rank}", NODE, "worker", scheme, f"--rank={rank}")
        for process in processes:
            assert process.child.wait(60) == 0, f"{process.name}:\n{process.output()}"
        # Half of the way to the mean target 6 with each of ten steps.
        for process in processes[2:]:
            assert process.output() == f"trained: w[6] = {6 * (1 - 0.5**10):g}\n", process.name
    finally:
        for process in processes:
            process.child.kill()
            process.child.wait()


def test_two_workers_train_over_every_transport(tmp_path):
    schemes = subprocess.run([NODE, "schemes"], capture_output=True, text=True, check=True).stdout.split()
    assert "ipc" in schemes
    for scheme in schemes:
        train(scheme, tmp_path)

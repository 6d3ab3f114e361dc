"""Two islands of two processes, each with a torch.distributed of its own as torchrun makes it, in one job. Real processes."""

import os
import pathlib
import sys

from process_helpers import BIN, Process, free_port

PROGRAM = pathlib.Path(__file__).with_name("islands_program.py")


def test_islands_that_know_nothing_of_each_other_train_one_model(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    port_file = tmp_path / "port"
    processes = []
    try:
        processes.append(Process("scheduler", [str(BIN / "bandoneon-scheduler"), "--workers=4", "--servers=1", f"--port-file={port_file}"], env))
        processes[0].wait_for("listens at")
        env["BANDONEON_SCHEDULER"] = f"127.0.0.1:{port_file.read_text().strip()}"
        processes.append(Process("server", [str(BIN / "bandoneon-server")], env))
        for island in range(2):
            port = free_port()
            for rank in range(2):
                of_torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2,
                               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "BANDONEON_ISLAND": island}
                processes.append(Process(f"island {island} rank {rank}", [sys.executable, str(PROGRAM)],
                                         env | {name: str(value) for name, value in of_torchrun.items()}))
        for process in processes[2:]:
            code = process.child.wait(200)
            assert code == 0 and "right" in process.output(), process.output()[-4000:]
    finally:
        for process in processes:
            process.close()

"""A worker with several connections to each server: the weights are those of one, and a connection that is cut ends nothing.
Real processes over TCP."""

import ctypes
import os
import pathlib
import socket
import time

import pytest
from restarted_job import WORKERS, start, undisturbed, weights_of  # noqa: F401  (start is a fixture)

LISTENING, ESTABLISHED = "0A", "01"
PIDFD_GETFD = 438  # a call of the kernel's that Python has no name for


def connections_of(pid):
    """Descriptors of the connections that a process has accepted."""
    states = {}
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
        states[inode] = (state, local.partition(":")[2])
    sockets = {}
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            sockets[int(entry.name)] = states.get(target[8:-1], ("", ""))
    ports = {port for state, port in sockets.values() if state == LISTENING}
    return [fd for fd, (state, port) in sockets.items() if state == ESTABLISHED and port in ports]


def await_connections(pid, count):
    deadline = time.monotonic() + 60
    while len(found := connections_of(pid)) != count:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def cut(pid, descriptor):
    """Shuts a connection of another process in both directions."""
    process = os.pidfd_open(pid)
    copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, descriptor, 0)
    os.close(process)
    assert copy >= 0, os.strerror(ctypes.get_errno())
    with socket.socket(fileno=copy) as connection:
        connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("security", ["authenticated", "encrypted"])
def test_three_connections_to_each_server_give_the_weights_of_one(start, security):
    options = ["--transport", "network", "--set", f"data-security={security}", "--set", "partition-bytes=8KiB"]
    expected = undisturbed(start, *options)
    run = start(*options, "--set", "connections=3")
    run.process.wait_for("at 15", times=WORKERS)
    servers = [run.daemon("bandoneon-server", f"--rank={rank}") for rank in range(2)]
    for pid in servers:
        connections = await_connections(pid, 3 * WORKERS)
        cut(pid, connections[0])
        cut(pid, connections[-1])
    run.go(15)
    run.process.wait_for("at 30", times=WORKERS)
    for pid in servers:
        await_connections(pid, 3 * WORKERS)
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]
    assert weights_of(output) == expected


def test_a_server_of_the_same_machine_has_one_connection_of_each_worker(start):
    run = start("--transport", "network")
    run.process.wait_for("at 15", times=WORKERS)
    for rank in range(2):
        await_connections(run.daemon("bandoneon-server", f"--rank={rank}"), WORKERS)
    run.go(15)
    run.go(30)
    code, output = run.end()
    assert code == 0, output[-3000:]


@pytest.mark.parametrize("value", ["0", "65", "many"])
def test_a_number_out_of_range_names_the_setting(start, value):
    run = start("--transport", "network", "--set", f"connections={value}")
    code, output = run.end()
    assert code != 0
    assert f"setting connections is '{value}' (from the environment): expected a whole number from 1 to 64, or auto" in output

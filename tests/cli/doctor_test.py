"""`bandoneon doctor`, with real processes and sockets."""

import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
import subprocess
import time

import pytest
from command_helpers import BIN, LIMIT, read_until

CODES = {"ok": 0, "note": 0, "warning": 1, "error": 2}


def findings(real, *args):
    """{subject: finding}, held to the exit code."""
    done = real.run("doctor", "--json", *args)
    found = json.loads(done.stdout)
    assert all(finding["remedy"] for finding in found if finding["level"] in ("warning", "error"))
    assert done.returncode == max(CODES[finding["level"]] for finding in found), done.stdout
    return {finding["subject"]: finding for finding in found}


def listening(backlog=8):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(backlog)
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def scheduler(real, tmp_path):
    """A real one that waits for a worker and a server; its address."""
    (tmp_path / "token").write_text("sesame\n")
    process = subprocess.Popen([BIN / "bandoneon-scheduler", f"--port-file={tmp_path}/port", "--job-id=gpt-7"],
                               env=real.environment | {"BANDONEON_TOKEN": "sesame"}, stderr=subprocess.PIPE, text=True)
    read_until(process.stderr, 1, "listens at port")
    yield f"127.0.0.1:{(tmp_path / 'port').read_text().strip()}"
    process.kill()
    process.communicate()


def test_looks_at_this_machine(real):
    found = findings(real)
    assert re.search(r"^bandoneon-server \S+, wire version \d+, kernels \w+$", found["programs"]["seen"])
    assert found["cpu"]["seen"].endswith(found["programs"]["seen"].split()[-1])
    assert "libzmq" in found["libraries"]["seen"] and "gRPC" in found["libraries"]["seen"]
    assert {"memory", "memlock", "open files", "/dev/shm", "clock", "network", "rdma", "gpu"} <= found.keys()
    text = real.run("doctor").stdout
    assert re.search(r"^ok +programs +bandoneon-server", text, re.MULTILINE)


def test_a_daemon_that_is_not_there_is_an_error(staged):
    (staged.path.parent / "bandoneon-server").unlink()
    assert findings(staged)["programs"]["level"] == "error"


def is_in_memory(path):
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip() == "tmpfs"


def test_the_directory_of_a_journal(real, tmp_path):
    if is_in_memory(tmp_path):
        pytest.skip("temporary files are in memory here")
    journal = tmp_path / "journal"
    assert "journal" not in findings(real)
    found = findings(real, "--journal", journal)["journal"]
    assert f"{journal} can be made; " in found["seen"] and not journal.exists()
    journal.mkdir(0o700)
    found = findings(real, "--journal", f"{journal}/")["journal"]
    assert f"{journal} is there; " in found["seen"] and found["seen"].endswith("GiB free")
    journal.chmod(0o770)
    real.environment["BANDONEON_JOURNAL"] = str(journal)
    found = findings(real)["journal"]
    assert found["level"] == "error" and "mode 0770" in found["seen"] and found["remedy"] == f"chmod 700 {journal}"
    found = findings(real, "--journal", journal / "one" / "more")["journal"]
    assert found["level"] == "error" and f"{journal}/one cannot be looked at: No such file" in found["seen"]
    (journal / "file").touch()
    assert "is no directory" in findings(real, "--journal", journal / "file")["journal"]["seen"]
    assert "Not a directory" in findings(real, "--journal", journal / "file" / "more")["journal"]["seen"]


def test_a_journal_in_memory(real):
    if not is_in_memory("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs here")
    found = findings(real, "--journal", "/dev/shm/bandoneon-journal-that-is-not-there")["journal"]
    assert found["level"] == "warning" and "does not outlive a restart of the machine" in found["seen"] + found["remedy"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user's")
def test_a_journal_of_another_user(real, tmp_path):
    (tmp_path / "journal").mkdir(0o700)
    os.chown(tmp_path / "journal", 65532, 65532)
    found = findings(real, "--journal", tmp_path / "journal")["journal"]
    assert found["level"] == "error" and "belongs to user 65532, and this is user 0" in found["seen"]


def test_a_port_where_nobody_listens(real):
    listener, address = listening()
    listener.close()
    found = findings(real, "--scheduler", address)["scheduler"]
    assert found["level"] == "error" and "refuses" in found["seen"] and "bandoneon-scheduler" in found["remedy"]


def test_a_name_without_an_address(real):
    found = findings(real, "--scheduler", "no-such-host.invalid:7000")
    assert found["name"]["level"] == "error" and "no-such-host.invalid" in found["name"]["seen"]
    assert "scheduler" not in found


def test_a_port_that_swallows_what_comes(real):
    # As behind a firewall: a listener whose queue is full drops who comes.
    listener, address = listening(backlog=0)
    callers = []
    for _ in range(4):
        callers.append(socket.socket())
        callers[-1].setblocking(False)
        callers[-1].connect_ex(listener.getsockname())
    found = findings(real, "--scheduler", address, "--timeout", "500ms")["scheduler"]
    assert found["level"] == "error" and "does not answer within 0.5 s" in found["seen"]
    assert "firewall" in found["remedy"]
    for one in (*callers, listener):
        one.close()


def test_what_answers_no_call(real):
    listener, address = listening()
    found = findings(real, "--scheduler", address, "--timeout", "1s")
    assert found["scheduler"]["level"] == "ok" and found["handshake"]["level"] == "error"
    assert "without certificates" in found["handshake"]["seen"] and "--tls-ca" in found["handshake"]["remedy"]
    listener.close()


def test_a_wrong_token(real, scheduler):
    found = findings(real, "--scheduler", scheduler, "--token", "parsley")
    assert found["trust"]["level"] == "error" and "wrong token" in found["trust"]["seen"]
    assert "job" not in found


def test_who_is_missing(real, scheduler, tmp_path):
    found = findings(real, "--scheduler", scheduler, "--token-file", tmp_path / "token")
    assert found["version"]["level"] == "ok"
    assert found["job"]["level"] == "warning"
    assert "worker rank 0" in found["job"]["seen"] and "server rank 0" in found["job"]["seen"]


def test_a_server_whose_address_leads_nowhere(real, scheduler):
    listener, address = listening()
    listener.close()
    real.environment["BANDONEON_TOKEN"] = "sesame"
    server = subprocess.Popen([BIN / "bandoneon-server", f"--scheduler={scheduler}", f"--advertise=tcp://{address}"],
                              env=real.environment, stderr=subprocess.DEVNULL)
    worker = subprocess.Popen([real.path, "idle-worker"], env=real.environment | {"BANDONEON_SCHEDULER": scheduler},
                              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT
    found = {}
    while "server 0" not in found:
        assert time.monotonic() < deadline, found
        found = findings(real, "--scheduler", scheduler)
    for process in (worker, server):
        process.kill()
        process.communicate()
    assert found["server 0"]["level"] == "error" and "refuses" in found["server 0"]["seen"]
    assert "--advertise" in found["server 0"]["remedy"]


def test_a_job_that_runs(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = real.start("run", "-n", 2, "-s", 2, "--linger", "0s", "--", "sh", "-c",
                     f"mkfifo in.$RANK; exec {real.path} idle-worker 0<>in.$RANK")
    address = read_until(run.stderr, 1, "scheduler at")[-1].split()[-1]
    token_file = read_until(run.stderr, 1, "--token-file")[-1].split()[-1]
    read_until(run.stdout, 2, "ready")
    found = findings(real, "--scheduler", address, "--token-file", token_file, "--rates")
    assert found["job"]["level"] == "ok" and "running" in found["job"]["seen"]
    for rank in range(2):
        assert re.search(r"answers in .* 21 connections: median [\d.]+ ms", found[f"server {rank}"]["seen"])
    run.terminate()
    run.communicate(timeout=LIMIT)


def test_two_of_them_measure_the_network_between_them(real, tmp_path):
    (tmp_path / "token").write_text("sesame\n")
    listener = real.start("doctor", "--listen", "127.0.0.1:0", "--token-file", tmp_path / "token", "--json")
    place = read_until(listener.stderr, 1, "listens at")[-1].split()[-1]
    wrong = real.run("doctor", "--peer", place, "--token", "parsley")
    assert wrong.returncode == 2 and "another token" in wrong.stderr and wrong.stdout == ""
    none = real.run("doctor", "--peer", place)
    assert none.returncode == 2 and "another token" in none.stderr
    right = real.run("doctor", "--peer", place, "--token-file", tmp_path / "token", "--json")
    assert right.returncode == 0, right.stderr
    here = json.loads(right.stdout)
    out, error = listener.communicate(timeout=LIMIT)
    assert listener.returncode == 0 and error.count("another token") == 2
    there = json.loads(out)
    assert 0 < here["latency_median_us"] <= here["latency_p99_us"]
    for rate in (here["sent_gbit_per_s"], here["received_gbit_per_s"], there["sent_gbit_per_s"]):
        assert rate > 0.01
    # The same bytes in about the same time, seen from either end.
    assert there["received_gbit_per_s"] == pytest.approx(here["sent_gbit_per_s"], rel=0.5)


def test_each_pair_of_several_hosts_is_measured(real):
    """Three ends: two listen, each for two; each of the others measures with both."""
    listeners = [real.start("doctor", "--listen", "127.0.0.1:0", "--peers", 2, "--json") for _ in range(2)]
    places = [read_until(one.stderr, 1, "listens at")[-1].split()[-1] for one in listeners]
    for _ in range(2):
        done = real.run("doctor", "--peer", places[0], "--peer", places[1], "--json")
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["address"] for line in done.stdout.splitlines()] == places
    for one in listeners:
        out, _ = one.communicate(timeout=LIMIT)
        assert one.returncode == 0 and len(out.splitlines()) == 2


def test_one_peer_that_is_not_there_keeps_no_other_from_being_measured(real):
    closed, gone = listening()
    closed.close()
    listener = real.start("doctor", "--listen", "127.0.0.1:0")
    place = read_until(listener.stderr, 1, "listens at")[-1].split()[-1]
    done = real.run("doctor", "--peer", gone, "--peer", place)
    assert done.returncode == 2 and gone.split(":")[1] in done.stderr and done.stdout.startswith(place)
    listener.communicate(timeout=LIMIT)


def test_a_peer_that_is_no_doctor(real):
    listener, address = listening()
    peer = real.start("doctor", "--peer", address)
    connection, _ = listener.accept()
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    _, error = peer.communicate(timeout=LIMIT)
    assert peer.returncode == 2 and "no bandoneon doctor" in error
    connection.close()
    listener.close()


def queue_up(place):
    """A connection that has shown, where there is no token, that it has none; what it is told then is not read."""
    connection = socket.create_connection(place.rsplit(":", 1), timeout=LIMIT)
    stream = connection.makefile("rb")
    assert stream.readline() == b"bandoneon doctor 2\n"
    theirs, ours = stream.read(32), bytes(32)
    connection.sendall(ours + hmac.digest(b"", b"peer" + theirs + ours, hashlib.sha256))
    assert stream.read(33) == b"y" + hmac.digest(b"", b"listener" + theirs + ours, hashlib.sha256)
    return connection, stream


def keep_turn(connection, stream):
    """Who is measured, and stands still for 10 s, is given up."""
    connection.sendall(bytes(64))
    assert stream.read(64) == bytes(64)


def ended(process):
    out, error = process.communicate(timeout=LIMIT)
    return process.returncode, out, error


def test_who_says_nothing_keeps_nobody_waiting(real):
    listener = real.start("doctor", "--listen", "127.0.0.1:0")
    place = read_until(listener.stderr, 1, "listens at")[-1].split()[-1]
    with contextlib.ExitStack() as silent:
        for _ in range(65):  # one more than are borne with
            silent.enter_context(socket.create_connection(place.rsplit(":", 1)))
        done = real.run("doctor", "--peer", place)
        assert done.returncode == 0, done.stderr
        code, _, error = ended(listener)
    assert code == 0 and "does not say its token" in error


def two_who_wait(real, *options):
    """A listener, where it listens, and two peers who wait there, for one that takes its time and then leaves."""
    listener = real.start("doctor", "--listen", "127.0.0.1:0", *options)
    place = read_until(listener.stderr, 1, "listens at")[-1].split()[-1]
    first, stream = queue_up(place)
    with first, stream:
        assert stream.read(3)[:1] == b"g", "it is measured"
        peers = []
        for before in (1, 2):
            peers.append(real.start("doctor", "--peer", place))
            read_until(peers[-1].stderr, 1, f"one at a time: {before} before this one")
            keep_turn(first, stream)
    return listener, place, peers


def test_who_waits_is_told_how_many_are_before_it(real):
    listener, place, peers = two_who_wait(real, "--peers", 2)
    for peer in peers:
        code, out, error = ended(peer)
        assert code == 0 and out.startswith(place), error
    assert "1 before this one" in error, "the second is told again when it is next"
    assert ended(listener)[0] == 0


def test_who_waits_when_it_ends_is_told_so(real):
    listener, _, (first, second) = two_who_wait(real)
    assert ended(first)[0] == 0
    code, _, error = ended(second)
    assert code == 2 and "it has ended, with as many as its --peers says" in error
    assert ended(listener)[0] == 0


@pytest.mark.parametrize("args, names", [
    (["--listen", "0.0.0.0:0"], "there is no token"),
    (["--listen", "127.0.0.1:0", "--timeout", "100ms"], "nobody came"),
    (["--listen", "127.0.0.1:0", "--peer", "127.0.0.1:1"], "--peer on another"),
    (["--peer", "127.0.0.1:1", "--peers", 2], "--peers is of --listen"),
    (["--listen", "127.0.0.1:0", "--peers", 0], "--peers"),
    (["--peer", "127.0.0.1:0"], "expected host:port"),
    (["--scheduler", "host"], "expected host:port"),
    (["--rates"], "say --scheduler"),
    (["--journal", ""], "--journal needs a directory"),
    (["--timeout", "soon"], "--timeout is 'soon'"),
])
def test_names_what_is_wrong(real, args, names):
    done = real.run("doctor", *args)
    assert done.returncode == 2 and names in done.stderr

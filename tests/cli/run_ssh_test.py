"""`bandoneon run --ssh` over an sshd of its own on loopback."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import pytest
from command_helpers import LIMIT, Watched, read_until

SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
PROGRAM = pathlib.Path(__file__).with_name("train_program.py")
HOSTS = ("127.0.0.1", "localhost")

pytestmark = [
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="no sshd or no ssh here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd with a configuration of its own wants root"),
]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """Options of ssh with which it reaches it. Nothing lies outside of the folder."""
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)  # sshd's own demand
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\nMaxStartups 100\n")
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=subprocess.PIPE, text=True)
    read_until(daemon.stderr, 1, "Server listening")
    key = (folder / "host.pub").read_text().split()[:2]
    (folder / "known").write_text("".join(f"[{host}]:{port} {key[0]} {key[1]}\n" for host in HOSTS))
    options = [f"Port={port}", f"IdentityFile={folder}/user", f"UserKnownHostsFile={folder}/known",
               "StrictHostKeyChecking=yes"]
    yield [word for option in options for word in ("--ssh-option", option)]
    daemon.kill()
    daemon.communicate()


def remote(sshd, hosts, *more):
    return ["run", "--ssh", hosts, *sshd, *more]


def test_a_job_trains(real, sshd):
    run = real.start(*remote(sshd, "127.0.0.1:1,localhost:2", "-s", 2), "--", sys.executable, PROGRAM)
    out, error = run.communicate(timeout=2 * LIMIT)
    assert run.returncode == 0, error
    lines = sorted(out.splitlines())
    assert [line.split(" trained ")[0] for line in lines] == [
        "[worker 0 at 127.0.0.1]", "[worker 1 at localhost]", "[worker 2 at localhost]"]
    assert [line.split(" trained ")[1].split(" to ")[0] for line in lines] == ["0 of 3", "1 of 3", "2 of 3"]
    assert len({line.split(" to ")[1] for line in lines}) == 1
    assert real.left_behind() == []


def test_workers_find_the_job_and_the_secret_is_on_no_command_line(staged, sshd, tmp_path, monkeypatch):
    odd = tmp_path / "it's a \"folder\""
    odd.mkdir()
    monkeypatch.chdir(odd)
    line = ('echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $GROUP_RANK $BANDONEON_RANK $MASTER_ADDR"; '
            'echo "dir $PWD"; echo "token $BANDONEON_TOKEN"; echo "$BANDONEON_PUSH"; '
            'for p in /proc/[0-9]*; do grep -qa "$BANDONEON_TOKEN" $p/cmdline 2>/dev/null && echo "shown by $p"; done; '
            "echo \"two\nlines\"; exit 0")
    done = staged.run(*remote(sshd, "localhost:1,127.0.0.1:1", "--push", "ef(onebit)"), "--", "sh", "-c", line)
    assert done.returncode == 0, done.stderr
    said = {tag: [text.split("] ", 1)[1] for text in done.stdout.splitlines() if text.startswith(tag)]
            for tag in ("[worker 0 at localhost]", "[worker 1 at 127.0.0.1]")}
    (first, second) = said.values()
    assert first[0] == "0 0 1 2 0 0 localhost" and second[0] == "1 0 1 2 1 1 localhost"
    assert first[1] == f"dir {odd}" and len(first[2]) == 64 + len("token ") and first[2] == second[2]
    assert first[3:] == second[3:] == ["ef(onebit)", "two", "lines"]


def test_returns_the_code_of_the_worker_that_failed_and_ends_the_others(staged, sshd, tmp_path):
    listens = tmp_path / "listens"
    fails = f"until [ -e {listens} ]; do sleep 0.05; done; exit 7"
    line = f'if [ $RANK = 1 ]; then {fails}; fi; trap "echo told; exit 0" TERM; touch {listens}; sleep 1000 & wait'
    done = staged.run(*remote(sshd, "localhost:2", "--linger", "0s"), "--", "sh", "-c", line)
    assert done.returncode == 7
    assert "[worker 0 at localhost] told" in done.stdout
    assert "worker 1 at localhost" in done.stderr and "exited with code 7" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_passes_signals_on(staged, sshd, number):
    line = f'trap "echo got it; exit 0" {number.value}; echo ready; sleep 1000 & wait'
    run = staged.start(*remote(sshd, "localhost:1,127.0.0.1:1"), "--", "sh", "-c", line)
    read_until(run.stdout, 2, "ready")
    run.send_signal(number)
    out, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + number
    assert sorted(out.splitlines()) == ["[worker 0 at localhost] got it", "[worker 1 at 127.0.0.1] got it"]


def test_what_ignores_sigterm_is_killed(staged, sshd):
    line = 'if [ $RANK = 1 ]; then exit 7; fi; trap "" TERM; echo pid $$; exec sleep 1000'
    run = staged.start(*remote(sshd, "localhost:2", "--linger", "1s", "--grace", "200ms"), "--", "sh", "-c", line)
    stubborn = Watched(int(read_until(run.stdout, 1, "pid")[-1].split()[-1]))
    run.communicate(timeout=LIMIT)
    assert run.returncode == 7
    assert stubborn.ends()


def test_nothing_is_left_there_when_it_is_killed(staged, sshd):
    line = "sleep 1000 & echo pid $!; echo pid $$; wait"
    run = staged.start(*remote(sshd, "localhost:1,127.0.0.1:1", "--grace", "200ms"), "--", "sh", "-c", line)
    everybody = [Watched(int(text.split()[-1])) for text in read_until(run.stdout, 4, "pid")]
    run.kill()
    run.wait(timeout=LIMIT)
    assert all(process.ends() for process in everybody)


def test_children_of_a_worker_that_ended_well_do_not_stay(staged, sshd):
    run = staged.start(*remote(sshd, "localhost"), "--", "sh", "-c", "sleep 1000 & echo stray $!; exec sleep 0")
    stray = Watched(int(read_until(run.stdout, 1, "stray")[-1].split()[-1]))
    run.communicate(timeout=LIMIT)
    assert run.returncode == 0
    assert stray.ends()


def test_a_host_that_is_not_reached_is_named(staged, sshd):
    wrong = [word if "IdentityFile" not in word else "IdentityFile=/nowhere" for word in sshd]
    done = staged.run(*remote([*wrong, "--ssh-option", "IdentitiesOnly=yes"], "localhost"), "--", "true")
    assert done.returncode == 255
    assert "worker 0 at localhost" in done.stderr and "ssh -o BatchMode=yes HOST true" in done.stderr


def test_a_program_that_is_not_there_is_named(staged, sshd):
    done = staged.run(*remote(sshd, "localhost"), "--", "no-such-program")
    assert done.returncode == 127 and "no-such-program" in done.stderr


@pytest.mark.parametrize("args, names", [
    (["--ssh", "a:0"], "'a:0' is no host"),
    (["--ssh", "a:2,,b"], "'' is no host"),
    (["--ssh", "-oProxyCommand=true"], "is no host"),
    (["--ssh", "a b"], "'a b' is no host"),
    (["--ssh", "a:2,a:1"], "names a twice"),
    (["--ssh", "a:2", "-n", "2"], "no --workers"),
    (["--ssh", "no-such-host.invalid"], "say --advertise"),
    (["--advertise", "10.0.0.1"], "are of --ssh"),
    (["--ssh", "localhost", "--set", "a;b=1"], "takes no variable 'BANDONEON_A;B'"),
])
def test_names_what_is_wrong_before_anything_starts(staged, args, names):
    done = staged.run("run", *args, "--", "true")
    assert done.returncode == 2 and names in done.stderr

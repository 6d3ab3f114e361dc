"""`bandoneon certs`: a job's authority and what it issues, as its help says, and jobs that use them."""

import stat
import subprocess

import pytest
from command_helpers import BIN


@pytest.fixture
def folder(real, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_issued_is_shown_and_known_to_openssl(real, folder):
    made = real.run("certs", "init", "--job", "gpt-7")
    assert made.returncode == 0, made.stderr
    assert "bandoneon certs issue --role scheduler" in made.stdout
    issued = real.run("certs", "issue", "--role", "server", "--role", "worker", "--name", "host1", "--days", 30)
    assert issued.returncode == 0, issued.stderr
    assert "--tls-cert certs/host1/cert.pem --tls-key certs/host1/key.pem" in issued.stdout
    shown = real.run("certs", "show", "--file", "certs/host1/cert.pem").stdout
    assert "CN = host1" in shown and "CN = gpt-7" in shown
    assert "server of job gpt-7" in shown and "worker of job gpt-7" in shown
    assert "is an authority" in real.run("certs", "show", "--file", "certs/ca.pem").stdout
    checked = subprocess.run(["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "certs/ca.pem",
                              "certs/host1/cert.pem"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    for path in (folder / "certs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_mistakes_are_named(real, folder):
    assert "--job" in real.run("certs", "init").stderr
    assert "certs/ca.pem" in real.run("certs", "issue", "--role", "server").stderr
    assert real.run("certs", "init", "--job", "j").returncode == 0
    assert "is there already" in real.run("certs", "init", "--job", "j").stderr
    assert "--role" in real.run("certs", "issue").stderr
    assert "role 'boss'" in real.run("certs", "issue", "--role", "boss").stderr
    assert "days" in real.run("certs", "issue", "--role", "server", "--days", 0).stderr
    assert "/nonexistent" in real.run("certs", "show", "--file", "/nonexistent").stderr
    for command in ("init", "issue", "show"):
        help_text = real.run("certs", command, "--help").stdout
        assert "Examples:" in help_text and f"bandoneon certs {command}" in help_text


def test_a_job_runs_with_certificates_and_others_see_nothing_of_it(real, folder):
    assert real.run("certs", "init", "--job", "job").returncode == 0
    for role in (("scheduler", "server", "worker"), ("observer",)):
        flags = [flag for name in role for flag in ("--role", name)]
        assert real.run("certs", "issue", *flags, "--name", role[0]).returncode == 0

    def use(name):
        for setting, file in (("CA", "ca"), ("CERT", "cert"), ("KEY", "key")):
            real.environment[f"BANDONEON_TLS_{setting}"] = str(folder / f"certs/{name}/{file}.pem")

    use("scheduler")
    real.environment["BANDONEON_TOKEN"] = "secret"
    done = real.run("run", "-n", 2, "-s", 1, "--", "sh", "-c",
                    f"mkfifo in.$RANK; {real.path} idle-worker 0<>in.$RANK & worker=$!; "
                    f"until {real.path} status --scheduler $BANDONEON_SCHEDULER | grep running; do :; done; "
                    f"env -u BANDONEON_TLS_CA -u BANDONEON_TLS_CERT -u BANDONEON_TLS_KEY "
                    f"{real.path} status --scheduler $BANDONEON_SCHEDULER || echo refused; kill $worker; wait $worker; true")
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr
    use("observer")
    wrong = subprocess.run([BIN / "bandoneon-server", "--scheduler", "127.0.0.1:1", "--check-config"],
                           env=real.environment, capture_output=True, text=True)
    assert wrong.returncode == 2 and "--role server" in wrong.stderr

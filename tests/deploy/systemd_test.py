"""The units of deploy/systemd: systemd's own checks of them, and the daemons' of what they are started with."""

import re
import shlex
import shutil

import pytest
from deploy_helpers import BIN, DEPLOY, ROLES, check_config, issue_certificates, run, seconds

UNITS = DEPLOY / "systemd"
JOB = "gpt-7"
MOST_EXPOSED = 20  # tenths, of systemd-analyze's ten


def unit_of(role):
    return (UNITS / f"bandoneon-{role}@.service").read_text(encoding="utf-8")


def values(role, key):
    return re.findall(rf"^{key}=(.*)$", unit_of(role), re.MULTILINE)


def variables_of(role, with_commented):
    text = (UNITS / f"{role}.env").read_text(encoding="utf-8")
    lines = re.findall(r"^#?(BANDONEON_\w+)=(.*)$" if with_commented else r"^(BANDONEON_\w+)=(.*)$", text, re.MULTILINE)
    assert lines and len(dict(lines)) == len(lines)
    return dict(lines)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return issue_certificates(tmp_path_factory.mktemp("certs"), JOB)


def command_of(role, credentials):
    """The words of ExecStart, as systemd fills them in."""
    (line,) = values(role, "ExecStart")
    return shlex.split(line.replace("%i", JOB).replace("%d", str(credentials)))


def test_there_is_a_unit_and_an_environment_of_each_role():
    names = sorted(path.name for path in UNITS.iterdir())
    assert names == sorted(name for role in ROLES for name in (f"bandoneon-{role}@.service", f"{role}.env"))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("with_commented", [False, True])
def test_the_daemon_accepts_what_it_is_started_with(certificates, role, with_commented):
    settings = check_config(command_of(role, certificates[role]), variables_of(role, with_commented))
    assert settings["job-id"] == JOB and settings["exit-when-done"] == "false"
    assert settings["tls-key"] == str(certificates[role] / "key.pem")


@pytest.mark.parametrize("role", ROLES)
def test_files_come_from_the_folder_of_the_job(certificates, role):
    loaded = dict(line.split(":", 1) for line in values(role, "LoadCredential"))
    assert loaded == {name: f"/etc/bandoneon/%i/{role}/{name}" for name in ("ca.pem", "cert.pem", "key.pem")}
    assert all((certificates[role] / name).is_file() for name in loaded)
    assert values(role, "EnvironmentFile") == [f"/etc/bandoneon/%i/{role}.env"]


@pytest.mark.parametrize("role", ROLES)
def test_a_stop_waits_longer_than_the_drain(role):
    (stop,) = values(role, "TimeoutStopSec")
    assert seconds(stop) > seconds(variables_of(role, False)["BANDONEON_DRAIN_TIMEOUT"])


@pytest.mark.parametrize("role", ROLES)
def test_a_daemon_that_is_lost_is_started_again(role):
    assert values(role, "Restart") == ["on-failure"] and seconds(values(role, "RestartSec")[0]) < 10


def test_the_scheduler_keeps_its_journal_in_a_directory_of_its_own(certificates):
    (state,), (mode,) = values("scheduler", "StateDirectory"), values("scheduler", "StateDirectoryMode")
    ((name, path),) = [line.split("=", 1) for line in values("scheduler", "Environment")]
    assert (name, mode) == ("BANDONEON_JOURNAL", "0700") and "%i" in state
    assert path == f"%S/{state}/journal", "the scheduler makes the last directory, and none above it"
    # The file with the settings comes later, so that its values count.
    assert unit_of("scheduler").index("Environment=") < unit_of("scheduler").index("EnvironmentFile=")
    variables = {"BANDONEON_JOURNAL": path.replace("%S", "/var/lib").replace("%i", JOB)} | variables_of("scheduler", False)
    command = command_of("scheduler", certificates["scheduler"])
    assert check_config(command, variables)["journal"] == "/var/lib/bandoneon/gpt-7/journal"
    assert check_config(command, variables | variables_of("scheduler", True))["journal"] == "", "as the example turns it off"


def test_units_differ_in_what_they_start_and_keep_alone():
    """So that hardening is the same for all."""
    def rest(role):
        text = unit_of(role).split("[Service]")[1].replace(f"bandoneon-{role}", "bandoneon-ROLE")
        text = re.sub(r"(?m)^(ExecStart|Environment|StateDirectory|StateDirectoryMode)=.*\n", "", text.replace(f"/{role}", "/ROLE"))
        return re.sub(r"(?m)^# Before the file.*\n", "", text)
    assert rest("scheduler") == rest("server") == rest("worker")


@pytest.fixture
def installed(tmp_path):
    """{role: its unit}, of programs that are there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze: apt-get install systemd")
    paths = {}
    for role in ROLES:
        paths[role] = tmp_path / f"bandoneon-{role}@{JOB}.service"
        paths[role].write_text(unit_of(role).replace("/usr/local/bin", str(BIN)), encoding="utf-8")
    return paths


@pytest.mark.parametrize("role", ROLES)
def test_systemd_finds_nothing_wrong(installed, role):
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", installed[role])
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_systemd_would_find_a_mistake(installed):
    unit = installed["server"]
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectHome=yes", "ProtectHomes=yes"), encoding="utf-8")
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", unit)
    assert "ProtectHomes" in done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_a_daemon_is_shut_in(installed, role):
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", installed[role])
    assert done.returncode == 0, done.stdout

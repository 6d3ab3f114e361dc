"""What the checks of deploy/ have in common: the daemons' own opinion of flags and variables, and certificates."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))
ROLES = ("scheduler", "server", "worker")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False, **options)


def issue_certificates(folder, job):
    """{role: its folder with ca.pem, cert.pem and key.pem}."""
    assert run(BIN / "bandoneon", "certs", "init", "--dir", folder, "--job", job).returncode == 0
    for role in ROLES:
        assert run(BIN / "bandoneon", "certs", "issue", "--dir", folder, "--role", role).returncode == 0
    return {role: folder / role for role in ROLES}


def check_config(command, variables):
    """The settings, {name: value}, that a daemon says it would run with."""
    program = pathlib.Path(command[0]).name
    assert program in [f"bandoneon-{role}" for role in ROLES], command
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    done = run(BIN / program, *command[1:], "--check-config", env=env | variables)
    assert done.returncode == 0, f"{command} with {variables}: {done.stderr}"
    return dict(re.findall(r"^([\w-]+) = (.*) \(\w+\)$", done.stdout, re.MULTILINE))


def seconds(text):
    """Of "10m", "90s", "1h30m", and systemd's "11min"."""
    units = {"h": 3600, "min": 60, "m": 60, "s": 1}
    parts = re.findall(r"(\d+)(h|min|m|s)", text)
    assert parts and "".join(map("".join, parts)) == text, text
    return sum(int(number) * units[unit] for number, unit in parts)


def fill_in(text, variables):
    """Of compose.yaml: "${NAME-default}" as an engine fills it in."""
    filled = re.sub(r"\$\{(\w+)-([^}]*)\}", lambda match: variables.get(match[1], match[2]), text)
    assert "${" not in filled, text
    return filled

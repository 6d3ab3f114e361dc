"""A Debian of its own, for containers and images; made once, in build/deploy."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What the daemons are linked with, as deploy/docker/Dockerfile installs it; and what a system boots with.
LIBRARIES = "libgrpc++1.51,libprotobuf32,zlib1g,libssl3,libzmq5,libhwy1,libmicrohttpd12,libprometheus-cpp-core1.0,libfabric1"
SYSTEM = "systemd,systemd-sysv,dbus,python3"


def need(*programs):
    """Skips where one of them, or root, is missing."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


def debian(name, *options):
    """The folder build/deploy/NAME with a root of Debian 12."""
    need("debootstrap")
    folder = ROOT / "build" / "deploy" / name
    made = folder / ".made"
    if not made.exists() or made.read_text(encoding="utf-8") != " ".join(options):
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["debootstrap", "--variant=minbase", *options, "bookworm", folder], capture_output=True,
                              text=True, timeout=900, check=False)
        assert done.returncode == 0, f"debootstrap: {done.stdout[-2000:]}{done.stderr}"
        made.write_text(" ".join(options), encoding="utf-8")
    return folder

"""What `cmake --install` leaves: a tree that can be moved, and that other builds find."""

import pathlib
import subprocess
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 120


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, check=False,
                          **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    first = tmp_path_factory.mktemp("install") / "first"
    run("cmake", "--install", ROOT / "build/release", "--prefix", first)
    return first.rename(first.with_name("moved"))


@pytest.fixture
def program(tmp_path):
    source = tmp_path / "version.c"
    source.write_text(textwrap.dedent("""
        #include <bandoneon.h>
        #include <stdio.h>
        int main(void) { return printf("%s\\n", bdn_version()) > 0 ? 0 : 1; }
    """))
    return source


def version(prefix):
    return run(prefix / "bin/bandoneon", "--version").split()[1]


def test_the_command_runs_a_job_with_the_daemons_beside_it(prefix):
    assert '"result_hash"' in run(prefix / "bin/bandoneon", "bench", "pushpull", "--bytes=65536", "--iters=2", "--json")


def test_cmake_finds_it(prefix, program, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(textwrap.dedent("""
        cmake_minimum_required(VERSION 3.25)
        project(user C)
        find_package(bandoneon 0.1 CONFIG REQUIRED)
        add_executable(version version.c)
        target_link_libraries(version PRIVATE bandoneon::bandoneon)
    """))
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert run(tmp_path / "build/version").strip() == version(prefix)


def test_pkg_config_finds_it(prefix, program, tmp_path):
    (package,) = prefix.rglob("bandoneon.pc")
    environment = {"PKG_CONFIG_PATH": str(package.parent), "PATH": "/usr/bin:/bin"}
    flags = run("pkg-config", "--cflags", "--libs", "bandoneon", env=environment).split()
    run("cc", program, *flags, "-o", tmp_path / "version")
    (library,) = prefix.rglob("libbandoneon.so")
    assert run(tmp_path / "version", env={"LD_LIBRARY_PATH": str(library.parent)}).strip() == version(prefix)

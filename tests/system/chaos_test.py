"""scripts/chaos: a seed gives the same losses again, and what it looks for is found."""

import re
import subprocess

import pytest
from faulty_job import PROGRAM, ROOT, Finding, Job, Plan, undisturbed

CHAOS = ROOT / "scripts" / "chaos"


def run(*options):
    return subprocess.run([CHAOS, *options], capture_output=True, text=True, check=False)


def test_a_job_of_a_seed_loses_the_same_processes_again():
    outputs = [run("--seed", "1", "--transport", "shm", "--only", "2") for _ in range(2)]
    texts = [re.sub(r"; \d+ s;", ";", output.stdout) for output in outputs]
    assert outputs[0].returncode == 0, outputs[0].stdout + outputs[0].stderr
    assert texts[0] == texts[1]
    assert re.search(r"kill at \S+ \d+.*: as it is to be\n1 jobs, [1-9]\d* faults, 0 findings\n$", texts[0]), texts[0]


@pytest.fixture(scope="module")
def plan():
    return Plan([PROGRAM, "codecs", "--steps", "20"], [])


@pytest.fixture(scope="module")
def job(tmp_path_factory, plan):
    """A job that has ended well."""
    ended = Job(plan, tmp_path_factory.mktemp("ended") / "job")
    ended.run()
    return ended


def test_a_job_that_ended_well_has_no_finding(job, plan, tmp_path):
    job.check(undisturbed(plan, tmp_path / "undisturbed"))


@pytest.mark.parametrize("pattern, broken, found", [
    ("steps.1", lambda text: text.replace("\n7 ", "\n7 0"), "other weights in line 7"),
    ("history.worker-1-*", lambda text: text.replace('"event":"reply","key":"0.0","step":3,', '"event":"reply","key":"0.0","step":4,'),
     "contradict each other"),
])
def test_what_is_broken_is_found(job, pattern, broken, found):
    (path,) = job.folder.glob(pattern)
    text = path.read_text()
    assert broken(text) != text
    path.write_text(broken(text))
    try:
        with pytest.raises(Finding, match=found):
            job.check()
    finally:
        path.write_text(text)


def test_other_weights_and_another_end_are_found(job):
    with pytest.raises(Finding, match="in an undisturbed run"):
        job.check("0" * 64)
    code, job.code = job.code, 1
    with pytest.raises(Finding, match="ended with 1"):
        job.check()
    job.code = code
    left = job.folder / "bandoneon-left"
    left.touch()
    with pytest.raises(Finding, match="bandoneon-left"):
        job.check()
    left.unlink()


def test_a_process_that_is_left_is_found(job):
    child = subprocess.Popen(["sleep", "60"], env={"TEST_DIR": str(job.folder)})
    try:
        with pytest.raises(Finding, match=f"processes are left: \\[{child.pid}\\]"):
            job.check()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("options, named", [(["--roles", "servers,nobody"], "nobody"), (["--minutes", "0"], "--minutes"),
                                            (["--transport", "smoke"], "smoke")])
def test_wrong_options_are_named(options, named):
    done = run(*options)
    assert done.returncode == 2 and named in done.stderr

"""Exchange among some of the ranks, where servers and workers are lost amid the steps. Real processes."""

import os
import pathlib
import re
import signal

import pytest
from restarted_job import Run
from restarted_server_test import kill

PROGRAM = pathlib.Path(__file__).with_name("groups_program.py")
WORKERS = 4


@pytest.fixture
def start(tmp_path):
    runs = []

    def make(*options):
        runs.append(Run(tmp_path / f"run-{len(runs)}", 2, *options, program=PROGRAM, workers=WORKERS))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def weights_of(run):
    """{rank: [checksum of its group's weights, of those of all]} of a job that has ended well."""
    code, output = run.end()
    assert code == 0, output[-3000:]
    return {int(rank): sums.split() for rank, sums in re.findall(r"weights of (\d): (.*)$", output, re.MULTILINE)}


def check(weights, ranks):
    """Ranks of one group have the same weights, and others not; all have the same of all."""
    assert sorted(weights) == ranks
    assert len({sums[1] for sums in weights.values()}) == 1
    assert weights[0][0] == weights[2][0] != weights[1][0]


@pytest.mark.parametrize("options", [[], ["--transport", "network"]], ids=["shm", "network"])
def test_groups_have_the_weights_of_an_undisturbed_run_after_a_server_is_lost(start, options):
    run = start(*options)
    run.go(15)
    expected = weights_of(run)
    check(expected, [0, 1, 2, 3])
    run = start("--restarts", "1", *options)
    run.process.wait_for("at 15", times=WORKERS)
    kill(run, "bandoneon-server", "--rank=0")
    run.go(15)
    assert weights_of(run) == expected


def test_a_group_goes_on_without_a_worker_and_the_others_do_not_notice(start):
    run = start()
    run.go(15)
    expected = weights_of(run)
    run = start("--set", "min-workers=1")
    run.process.wait_for("at 15", times=WORKERS)
    os.kill(run.worker(3), signal.SIGKILL)
    run.process.wait_for("the job goes on with 3 of 4 workers")
    run.go(15)
    weights = weights_of(run)
    check(weights, [0, 1, 2])
    assert weights[0][0] == expected[0][0]
    assert weights[1][0] != expected[1][0]

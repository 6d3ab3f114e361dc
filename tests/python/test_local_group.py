"""Processes of a host that share the exchange of their gradients, by torch.distributed over gloo."""

import functools
import pathlib

import pytest
import torch

import test_processes

run_processes = functools.partial(test_processes.run_processes, programs=pathlib.Path(__file__).parent / "local_group_programs.py")

OPTIONS = ["--set", "min-compress-bytes=1KiB"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """(directory, what each of 4 workers in 2 groups recorded)"""
    directory = tmp_path_factory.mktemp("shared")
    return directory, run_processes(directory, "shares_by_group", 2, workers=4, options=OPTIONS)


CASES = {
    "none": 1e-5,
    "weights": 1e-5,
    "a weight of none": 1e-5,
    "half": 2e-2,
    "several passes": 1e-5,
    "nobody": 1e-5,
}


def check_bits(workers):
    """All workers have the same of each case, and groups have it again."""
    for case in filter(lambda case: "," in case, workers[0]):
        assert len({worker[case]["hash"] for worker in workers}) == 1, case
        if case.endswith("again"):
            assert workers[0][case]["hash"] == workers[0][case.replace("again", "local")]["hash"], case


def check_rounding(directory, case, most):
    """The models of plain workers and of groups are `most` apart, and not those of another case."""
    plain, local, _ = torch.load(directory / f"{case}.pt", weights_only=True)
    start = torch.load(directory / "none.pt", weights_only=True)[0]
    assert any(not torch.equal(local[name], start[name]) for name in local) or case == "none"
    for name, value in plain.items():
        torch.testing.assert_close(local[name], value, rtol=most, atol=most)


def test_all_workers_have_the_same_bits_and_have_them_again(shared):
    check_bits(shared[1])


@pytest.mark.parametrize("case", CASES)
def test_groups_equal_plain_workers_to_rounding(shared, case):
    check_rounding(shared[0], case, CASES[case])


@pytest.mark.parametrize("case", ["none", "onebit"])
def test_each_moves_its_share_of_the_bytes(shared, case):
    """Of what is pulled in the worker with least: a reply that was asked for again comes twice, maybe in the next case."""
    of_kind = [[worker[f"{case}, {kind}"]["moved"] for worker in shared[1]] for kind in ("plain", "local")]
    for plain, local in zip(*of_kind):
        assert 0.45 * plain[0] < local[0] < 0.6 * plain[0]
    plain, local = (min(pulled for _, pulled in moved) for moved in of_kind)
    assert 0.45 * plain < local < 0.6 * plain


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """(directory, what each of 4 workers in 2 groups recorded), of LocalSteps"""
    directory = tmp_path_factory.mktemp("met")
    return directory, run_processes(directory, "meets_by_group", 2, workers=4, options=OPTIONS)


def test_local_steps_of_groups_have_the_same_bits_in_all_and_again(met):
    workers = met[1]
    check_bits(workers)
    for case in filter(lambda case: "," in case, workers[0]):
        assert len({(worker[case]["skipped"], worker[case]["meetings"]) for worker in workers}) == 1, case


@pytest.mark.parametrize("case", [
    "none", "nesterov", "weights", "a weight of none", "no weight in a group", "as many as steps", "streaming", "upset", "upset on the way"])
def test_local_steps_of_groups_equal_those_of_plain_workers_to_rounding(met, case):
    check_rounding(met[0], case, 1e-5)
    kinds = [met[1][0][f"{case}, {kind}"] for kind in ("plain", "local")]
    assert kinds[0]["skipped"] == kinds[1]["skipped"] and kinds[0]["meetings"] == kinds[1]["meetings"]
    assert (kinds[0]["skipped"] > 0) == case.startswith("upset")


@pytest.mark.parametrize("case", ["none", "streaming", "signs", "onebit"])
def test_local_steps_of_groups_move_a_share_of_the_bytes(met, case):
    """Of what is pushed: weights that a process has just been sent may come twice."""
    for worker in met[1]:
        assert worker[f"{case}, local"]["moved"] == pytest.approx(worker[f"{case}, plain"]["moved"] / 2, rel=0.02)


def test_local_steps_of_groups_go_on_from_what_each_saved(met):
    found = [worker["resumes"] for worker in met[1]]
    assert len({tuple(one["hashes"]) for one in found}) == 1 and len(set(found[0]["hashes"])) == 1
    assert all("local_group=2, and here it is local_group=None" in one["refusal"] for one in found)
    assert found[0]["tensors"] == found[2]["tensors"] and not set(found[0]["tensors"]) & set(found[1]["tensors"])
    assert [all(one["has_servers"]) for one in found] == [True, True, False, False]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(directory, what each of 4 workers in 2 groups recorded), of ServerOptimizer"""
    directory = tmp_path_factory.mktemp("served")
    return directory, run_processes(directory, "serves_by_group", 2, workers=4, options=OPTIONS)


def test_servers_step_alike_for_groups_and_again(served):
    workers = served[1]
    check_bits(workers)
    assert len({one for worker in workers for one in worker["resumes"]}) == 1
    for case in ("none", "four bits"):
        shares = [worker[f"{case}, local"]["moved"] / worker[f"{case}, plain"]["moved"] for worker in workers]
        assert shares == pytest.approx([0.5] * 4, abs=0.05)


@pytest.mark.parametrize("case", ["none", "sgd", "weights", "no weight in a group"])
def test_servers_step_for_groups_as_for_plain_workers_to_rounding(served, case):
    # A step of Adam is as large where a gradient is all but nothing, and has a sign by rounding.
    check_rounding(served[0], case, 1e-4)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoints")
    run_processes(directory, "resizes_by_group", 0, directory, workers=4)
    return directory


@pytest.mark.parametrize("workers", [2, 6])
def test_a_checkpoint_of_groups_is_loaded_in_another_number_of_hosts(tmp_path, checkpoints, workers):
    """Where plain workers, which load theirs, come to the same."""
    found = run_processes(tmp_path, "resizes_by_group", 4, checkpoints, workers=workers)
    for case in found[0]:
        assert all(worker[case] == found[0][case] for worker in found), case
    for kind in ("exchanges", "meets", "serves"):
        assert found[0][f"{kind}, local"][1] == pytest.approx(found[0][f"{kind}, plain"][1], rel=1e-6)


def test_a_host_under_ddp_is_one_worker_of_local_steps(met):
    for worker in met[1]:
        assert worker["under DDP"]["apart"] < 1e-5
        assert "DistributedDataParallel exchanges this LocalSteps's gradients as well" in worker["under DDP"]["refusal"]


def test_a_process_may_own_nothing_of_a_small_model(met):
    for kind in ("meets", "exchanges"):
        found = [worker["tiny"][kind] for worker in met[1]]
        assert all(one == found[0] for one in found)
        plain, local, resumed = found[0]
        assert local == pytest.approx(plain, abs=1e-6) and resumed == local


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gone_on")
    return run_processes(directory, "goes_on_by_group", 2, workers=4, options=OPTIONS)


def of_all(workers, case):
    """What is alike in all workers."""
    first = workers[0][case]
    assert all(worker[case] == first for worker in workers)
    return first


def test_what_overflows_in_one_is_nan_in_all_and_nothing_of_it_is_kept(gone_on):
    alike = [{k: v for k, v in w["overflows"].items() if k != "unchanged"} for w in gone_on]
    assert all(one == alike[0] for one in alike)
    assert alike[0]["lost"]["trunk.weight"]
    assert alike[0]["rows"][0] and not all(alike[0]["rows"]), "the other slice is another frame"
    for rank, worker in enumerate(gone_on):
        own = f"trunk.weight/slice {rank % 2}"
        assert (own in worker["overflows"]["unchanged"]) == (rank % 2 == 0)


def test_a_loss_scale_changes_no_bit(gone_on):
    scaled, unscaled = of_all(gone_on, "scales")
    assert scaled == unscaled


def test_a_member_without_batches_takes_part_until_all_are_done(gone_on):
    of_all(gone_on, "joins_unevenly")  # And each has compared it with plain workers.


def test_passes_add_up_before_they_are_shared(gone_on):
    by_no_sync, by_count = of_all(gone_on, "accumulates")
    assert by_no_sync == by_count


def test_parameters_may_be_added(gone_on):
    of_all(gone_on, "grows")


def test_each_saves_its_slices_and_goes_on_from_them(gone_on):
    for rank, worker in enumerate(gone_on):
        went_on, resumed = worker["resumes"]["hashes"]
        assert went_on == resumed == gone_on[0]["resumes"]["hashes"][0]
        assert "local_group=2, and here it is local_group=None" in worker["resumes"]["refusal"]
        assert worker["resumes"]["owned"] == gone_on[rank % 2]["resumes"]["owned"]
    first, second = (set(worker["resumes"]["owned"]) for worker in gone_on[:2])
    assert not first & second and "head.weight/slice 0" in first and "head.weight/slice 1" in second


def test_who_is_late_is_waited_for_again(gone_on):
    assert len({worker["waits_again"]["hash"] for worker in gone_on}) == 1
    assert "workers 0 to 1, one local_group, took longer than 1 seconds" in gone_on[0]["waits_again"]["message"]


def test_groups_that_are_not_of_consecutive_workers_of_one_size_are_refused(tmp_path):
    for rank, found in enumerate(run_processes(tmp_path, "refuses_groups", workers=4)):
        assert f"workers [{rank % 2}, {rank % 2 + 2}], in this order" in found["crossed"]
        assert "all groups must be of one size" in found["uneven"]
        assert "this process is not in the group" in found["not a member"]
        assert "local_group='pairs' is not a group of processes" in found["no group"]
        assert "use overlap='backward'" in found["forward"]
        assert "local groups divide all workers of the job" in found["some ranks"]
        assert "is used by another optimizer" in found["shared"]
        assert f"workers [{rank % 2}, {rank % 2 + 2}], in this order" in found["steps"]
        assert "local_residual=True with local_group" in found["residual"]


@pytest.mark.parametrize("how", [9, 11])
def test_a_member_that_dies_is_named(tmp_path, how):
    options = ["--set", "lease-timeout=2s"]
    found = run_processes(tmp_path, "loses_a_member", how, workers=4, code=1, options=options)
    assert "worker 1" in found[0], found

"""What a program does in its steps, as its worker is told it in marks."""

import collections
import contextlib
import copy
import gc
import inspect
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import weakref
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bandoneon
import bandoneon.torch as bdn
from bandoneon import _native, marks
from bandoneon.torch import forward_overlap, rows, step_recorder
from cluster_helpers import loss_of, make_batch, make_model, model_hash, run_job, sgd

HERE = pathlib.Path(__file__).parent
STEPS = 4
PARAMS = 6  # of make_model()
NAMES = ("STEP", "FORWARD", "READY", "WAITING", "OPTIMIZER", "COLLECTION", "INPUT", "USER", "BACKWARD")
KINDS = {getattr(marks, name): name.lower() for name in NAMES}

Seen = collections.namedtuple("Seen", "kind begin end cpu queued step tensor text")


@contextlib.contextmanager
def seen_marks(worker):
    """[Seen] of what the worker is told meanwhile, which it records as well."""
    seen, record = [], worker.record_marks

    def note(array):
        for one in array:
            assert one.struct_size == 64 and one.kind in KINDS
            kind, end = KINDS[one.kind], one.begin_ns + one.wall_ns
            seen.append(Seen(kind, one.begin_ns, end, one.cpu_ns, one.queued_ns, one.step, one.tensor, one.text))
        record(array)

    worker.record_marks = note
    try:
        yield seen
    finally:
        del worker.record_marks


def run_unrecorded(job):
    with bandoneon.LocalCluster(workers=1) as cluster:
        return cluster.run(job, recorder_bytes=0)


@pytest.fixture(autouse=True)
def none_gives_up(caplog):
    """A recorder that has failed records nothing more, and a test that looks for nothing would pass."""
    yield
    assert "recorded no longer" not in caplog.text


# ---- Every class ----

building = threading.Lock()


class Ways:
    """How each class is made around a model: (the model to call, the optimizer to step)."""

    @staticmethod
    def _inner(model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def DistributedOptimizer(self, worker, model):
        return model, sgd(worker, model)

    def LocalSteps(self, worker, model):
        named, outer = model.named_parameters(), bdn.algorithms.Average()
        return model, bdn.LocalSteps(self._inner(model), named, tau=2, outer=outer, worker=worker)

    def Streaming(self, worker, model):
        tau, outer = bdn.algorithms.Streaming(4, fragments=2, delay=1), bdn.algorithms.Average()
        return model, bdn.LocalSteps(self._inner(model), model, tau=tau, outer=outer, worker=worker)

    def ServerOptimizer(self, worker, model):
        return model, bdn.ServerOptimizer(self._inner(model), model.named_parameters(), worker=worker)

    def DDPState(self, worker, model):
        with building:
            wrapped = DistributedDataParallel(model)
        state = bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
        wrapped.register_comm_hook(state, bdn.ddp_hook)
        return wrapped, self._inner(model)

    def CSER(self, worker, model):
        how = dict(gradient=2, reset=2, period=2)
        return model, bdn.algorithms.CSER(self._inner(model), model.named_parameters(), worker=worker, **how)

    def EF21(self, worker, model):
        return model, bdn.algorithms.EF21(self._inner(model), model.named_parameters(), worker=worker)

    def KFAC(self, worker, model):
        return model, bdn.algorithms.KFAC(model, self._inner(model), every=2, inverses=4, worker=worker)

    def DeMo(self, worker, model):
        return model, bdn.algorithms.DeMo(model.named_parameters(), worker=worker)

    def Lion(self, worker, model):
        return model, bdn.algorithms.Lion(model, worker=worker)

    def OneBitAdam(self, worker, model):
        return model, bdn.algorithms.OneBitAdam(model.named_parameters(), links=bdn.Links(warmup=2), worker=worker)


# Waits of the second step to the fourth. Some meet in every second one. With a vote there are two.
WAITS = {
    "DistributedOptimizer": (1, 1, 1),
    "LocalSteps": (2, 0, 2),
    "Streaming": (0, 1, 0),  # It meets in every second step, too, and waits in the one behind it.
    "ServerOptimizer": (2, 2, 2),
    "DDPState": (1, 1, 1),
    "CSER": (2, 1, 2),
    "EF21": (2, 2, 2),
    "KFAC": (1, 1, 2),
    "DeMo": (1, 1, 1),
    "Lion": (1, 1, 1),
    "OneBitAdam": (1, 1, 1),
}


def train(worker, way, steps=STEPS):
    """[the marks of a step], without collections, which come when they come."""
    model, optimizer = getattr(Ways(), way)(worker, make_model())
    with seen_marks(worker) as seen:
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
    by_step = collections.defaultdict(list)
    for one in seen:
        if one.kind != "collection":
            by_step[one.step].append(one)
    return [by_step[step] for step in range(1, steps + 1)]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """{class: what a worker was told of training with it}"""
    store = tmp_path_factory.mktemp("ddp") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        return {way: run_job(lambda worker, way=way: train(worker, way)) for way in WAITS}
    finally:
        dist.destroy_process_group()
        DistributedDataParallel._active_ddp_module = None


def exchanging_classes():
    """Names of what exchanges by itself, of all that is exported."""
    things = [getattr(module, name) for module in (bdn, bdn.algorithms) for name in module.__all__]
    return {thing.__name__ for thing in things if inspect.isclass(thing) and hasattr(thing, "comm_state_dict")}


def test_every_class_that_exchanges_is_tried():
    assert exchanging_classes() | {"DistributedOptimizer", "Streaming"} == set(WAITS)


@pytest.mark.parametrize("way", WAITS)
def test_a_step_has_one_mark_of_each_part_and_one_of_each_gradient(told, way):
    for first, *others in told[way]:
        alike = dict(step=1, forward=1, backward=1, ready=PARAMS, optimizer=1)
        counts = Counter(one.kind for one in first)
        del counts["waiting"]  # A first step may have others.
        assert counts == alike
        for step, waits in zip(others, WAITS[way]):
            counts = Counter(one.kind for one in step)
            assert counts.pop("waiting", 0) == waits
            assert counts == {**alike, "input": 1}


@pytest.mark.parametrize("way", WAITS)
def test_parts_of_a_step_come_in_order_and_lie_in_it(told, way):
    for steps in told[way]:
        ended = None
        for step in steps:
            part = {one.kind: one for one in step}
            ready = [one for one in step if one.kind == "ready"]
            whole = part["step"]
            assert all(whole.begin <= one.begin <= one.end <= whole.end for one in step)
            assert part["forward"].end <= part["backward"].begin
            assert all(part["backward"].begin <= one.begin == one.end <= part["backward"].end for one in ready)
            assert part["backward"].end <= part["optimizer"].begin
            if ended is not None:
                assert whole.begin == ended == part["input"].begin and part["input"].end == part["forward"].begin
            assert [one.end for one in step] == sorted(one.end for one in step)
            ended = whole.end


@pytest.mark.parametrize("way", WAITS)
def test_each_gradient_is_of_another_tensor_and_nothing_else_has_one(told, way):
    for steps in told[way]:
        for step in steps:
            tensors = [one.tensor for one in step if one.kind == "ready"]
            assert len(set(tensors)) == PARAMS and _native.NO_TENSOR not in tensors
            assert {one.tensor for one in step if one.kind != "ready"} == {_native.NO_TENSOR}


@pytest.mark.parametrize("way", WAITS)
def test_what_computes_has_cpu_time(told, way):
    for steps in told[way]:
        for one in (one for step in steps for one in step if one.kind in ("step", "forward", "backward")):
            assert 0 < one.cpu <= one.end - one.begin + 1_000_000


# ---- Other ways of DistributedOptimizer ----


def steps_of(seen):
    """{step: counts of kinds}, without what came before the first step."""
    counts = collections.defaultdict(Counter)
    for one in seen:
        if one.kind != "collection" and one.step:
            counts[one.step][one.kind] += 1
    return counts


def test_with_overlap_forward_each_module_waits_and_steps_within_the_next_forward_pass():
    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(
            inner, model, overlap="forward", worker=worker, links=bdn.Links(scaler=None)
        )
        with seen_marks(worker) as seen:
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
            optimizer.synchronize()
        return seen

    for seen in run_job(job):
        counts = steps_of(seen)
        assert counts[1] == dict(step=1, forward=1, backward=1, ready=PARAMS, optimizer=1)
        for step in (2, 3, 4):
            # Each Linear awaits and steps its two parameters. The program's step() is one more.
            assert counts[step] == dict(step=1, input=1, forward=1, backward=1, ready=PARAMS, waiting=3, optimizer=4)
        for step in (2, 3, 4):
            forward = next(one for one in seen if one.step == step and one.kind == "forward")
            of_step = [one for one in seen if one.step == step and one.kind != "collection"]
            inside = [one for one in of_step if forward.begin <= one.begin and one.end <= forward.end]
            assert Counter(one.kind for one in inside) == dict(forward=1, waiting=3, optimizer=3)


def test_passes_that_add_up_are_marks_of_one_step():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, backward_passes_per_step=2)
        with seen_marks(worker) as seen:
            for step in range(3):
                optimizer.zero_grad()
                for part in range(2):
                    loss_of(model, make_batch(worker.rank, 2 * step + part)).backward()
                optimizer.step()
        return steps_of(seen)

    for counts in run_job(job):
        for step in (2, 3):
            assert counts[step] == dict(
                step=1, input=1, forward=2, backward=2, ready=2 * PARAMS, waiting=1, optimizer=1
            )


@pytest.mark.parametrize("overlap", [True, False])
def test_the_wait_is_at_the_end_of_the_backward_pass(overlap):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model, overlap=overlap)
        with seen_marks(worker) as seen:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
        return seen

    for seen in run_job(job):
        for step in (1, 2, 3):
            (backward,) = [one for one in seen if one.step == step and one.kind == "backward"]
            (wait,) = [one for one in seen if one.step == step and one.kind == "waiting"]
            ready = [one for one in seen if one.step == step and one.kind == "ready"]
            assert max(one.end for one in ready) <= wait.begin <= wait.end <= backward.end


@pytest.mark.parametrize("way", ["DistributedOptimizer", "ServerOptimizer", "Lion"])
def test_passes_in_a_closure_are_no_part_of_the_optimizer(way):
    def job(worker):
        model, optimizer = getattr(Ways(), way)(worker, make_model())

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, make_batch(worker.rank))
            loss.backward()
            return loss

        with seen_marks(worker) as seen:
            for _ in range(3):
                optimizer.step(closure)
        return seen

    for seen in run_job(job):
        for step in (2, 3):
            part = {one.kind: one for one in seen if one.step == step}
            assert part["backward"].end <= part["optimizer"].begin < part["optimizer"].end <= part["step"].end
        assert steps_of(seen)[2] == steps_of(seen)[3]


def test_without_the_model_steps_have_all_but_passes_before_the_first_gradient():
    def job(worker):
        model = make_model()
        named = list(model.named_parameters())
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(inner, named, worker=worker, links=bdn.Links(scaler=None))
        with seen_marks(worker) as seen:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
        return steps_of(seen)

    for counts in run_job(job):
        assert counts[3] == dict(step=1, backward=1, ready=PARAMS, waiting=1, optimizer=1)


def test_a_forward_or_backward_pass_that_breaks_off_leaves_the_next_ones_right():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        with seen_marks(worker) as seen:
            for step in range(3):
                with pytest.raises(RuntimeError):
                    model(torch.ones(4, 5))  # of another width
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
        return steps_of(seen)

    for counts in run_job(job):
        assert counts[3] == dict(step=1, input=1, forward=1, backward=1, ready=PARAMS, waiting=1, optimizer=1)


def test_steps_go_on_from_those_of_a_checkpoint():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        optimizer.resume_at(41)
        with seen_marks(worker) as seen:
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                optimizer.step()
        return sorted(steps_of(seen))

    assert run_job(job) == [[42, 43]] * 2


# ---- Several optimizers ----


def in_halves(worker, model):
    """Two optimizers, each of a half of the parameters."""
    named = list(model.named_parameters())
    return [
        bdn.DistributedOptimizer(
            torch.optim.SGD([p for _, p in half], lr=0.1), half, worker=worker, links=bdn.Links(scaler=None)
        )
        for half in (named[:2], named[2:])
    ]


def test_two_optimizers_of_one_pass_take_one_step():
    def job(worker):
        model = make_model()
        optimizers = in_halves(worker, model)
        with seen_marks(worker) as seen:
            for step in range(6):
                loss_of(model, make_batch(worker.rank, step)).backward()
                for optimizer in optimizers:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
        return seen

    for seen in run_job(job):
        steps = [one for one in seen if one.kind == "step"]
        assert [one.step for one in steps] == [1, 2, 3, 4, 5, 6]
        alike = dict(step=1, backward=1, ready=PARAMS, waiting=2, optimizer=2)
        assert all(steps_of(seen)[step] == alike for step in (3, 4, 5, 6))
        # They end with the second optimizer, as soon as it is known that there are two.
        for step in (3, 4, 5):
            last = max(one.end for one in seen if one.step == step and one.kind == "optimizer")
            assert last == steps[step - 1].end == steps[step].begin


def test_an_optimizer_that_steps_oftener_than_another_sets_the_pace():
    def job(worker):
        model = make_model()
        rare, often = in_halves(worker, model)
        with seen_marks(worker) as seen:
            for step in range(9):
                loss_of(model, make_batch(worker.rank, step)).backward()
                if step % 3 == 0:
                    rare.step()
                often.step()
                model.zero_grad()
        return [one.step for one in seen if one.kind == "step"]

    for steps in run_job(job):
        assert steps == list(range(1, len(steps) + 1)) and len(steps) in (8, 9)


def test_an_optimizer_that_takes_the_place_of_another_ends_steps():
    def job(worker):
        model = make_model()
        first = sgd(worker, model)
        with seen_marks(worker) as seen:
            for step in range(2):
                loss_of(model, make_batch(worker.rank, step)).backward()
                first.step()
                first.zero_grad()
            first.close()
            del first
            gc.collect()
            second = sgd(worker, model)
            for step in range(2):
                loss_of(model, make_batch(worker.rank, step)).backward()
                second.step()
                second.zero_grad()
        return steps_of(seen)

    for counts in run_job(job):
        assert sorted(counts) == [1, 2, 3, 4]
        assert counts[4] == dict(step=1, input=1, forward=1, backward=1, ready=PARAMS, waiting=1, optimizer=1)


def test_tables_of_rows_step_too():
    def job(worker):
        model = torch.nn.EmbeddingBag(20, 4, mode="sum", sparse=True)
        net = torch.nn.Sequential(model)
        rows.serve_tables(net)
        optimizer = rows.RowOptimizer(net, lr=0.1, worker=worker)
        with seen_marks(worker) as seen:
            for _ in range(3):
                net(torch.tensor([[1, 2], [3, 4]])).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return steps_of(seen)

    for counts in run_job(job):
        assert sorted(counts) == [1, 2, 3]
        assert {kind: counts[3][kind] for kind in ("step", "optimizer", "forward", "input")} == dict(
            step=1, optimizer=1, forward=1, input=1
        )
        assert counts[3]["waiting"] >= 1


def test_push_pull_waits_and_steps_are_those_of_the_threads_optimizer():
    def job(worker):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with seen_marks(worker) as seen:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, make_batch(worker.rank, step)).backward()
                handles = [bdn.push_pull(p.grad, name, worker=worker) for name, p in model.named_parameters()]
                for handle in handles:
                    handle.wait()
                optimizer.step()
            worker.recorder.hand_over()
        return steps_of(seen)

    for counts in run_job(job):
        assert counts[1] == dict(step=1, optimizer=1)  # Nobody knows yet what these waits are for.
        for step in (2, 3):
            assert counts[step] == dict(step=1, waiting=PARAMS, optimizer=1)


def test_push_pull_beside_an_optimizer_adds_waits_alone():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        with seen_marks(worker) as seen:
            for step in range(3):
                optimizer.zero_grad()
                loss = loss_of(model, make_batch(worker.rank, step))
                loss.backward()
                optimizer.step()
                bdn.push_pull(loss.detach(), "loss", worker=worker).wait()
        return steps_of(seen)

    for counts in run_job(job):
        assert counts[3] == dict(step=1, input=1, forward=1, backward=1, ready=PARAMS, waiting=2, optimizer=1)


# ---- Collections ----


def test_a_whole_collection_is_a_mark_and_the_many_short_ones_are_none():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        gc.disable()
        try:
            with seen_marks(worker) as seen:
                for step in range(2):
                    optimizer.zero_grad()
                    loss_of(model, make_batch(worker.rank, step)).backward()
                    if step:
                        gc.collect()
                    for _ in range(50):
                        gc.collect(0)
                    optimizer.step()
        finally:
            gc.enable()
        return seen

    (seen,) = run_job(job, workers=1)
    collections_of = [one for one in seen if one.kind == "collection"]
    whole = max(collections_of, key=lambda one: one.end - one.begin)
    assert whole.step == 2 and whole.cpu > 0
    assert all(one is whole or one.end - one.begin >= 100_000 for one in collections_of)


# ---- What it must not do ----


def test_where_nothing_is_recorded_nothing_is_done():
    def job(worker):
        assert not worker.records and step_recorder.recorder_of(worker) is None
        callbacks = list(gc.callbacks)
        model = make_model()
        optimizer = sgd(worker, model)
        lion = bdn.algorithms.Lion(make_model(), links=bdn.Links(prefix="lion/"), worker=worker)
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        with bandoneon.trace.mark("nothing", worker=worker):
            pass
        assert worker.recorder is None and gc.callbacks == callbacks and not model._forward_hooks
        assert not any(p._post_accumulate_grad_hooks for group in lion.param_groups for p in group["params"])

    run_unrecorded(job)


@pytest.mark.parametrize("way", [way for way in WAITS if way != "DDPState"])
def test_nothing_is_left_when_the_worker_is_closed(way):
    left = []

    def job(worker):
        model, optimizer = getattr(Ways(), way)(worker, make_model())
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        left.append((weakref.ref(worker.recorder), weakref.ref(optimizer), model))

    callbacks = list(gc.callbacks)
    run_job(job, workers=1)
    gc.collect()
    ((recorder, optimizer, model),) = left
    assert recorder() is None and optimizer() is None and gc.callbacks == callbacks
    if way != "KFAC":  # Whose own hooks go with it, too, but for those that it lets the collector find.
        assert not model._forward_hooks
    assert not model._forward_pre_hooks and not any(p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize("way", ["DistributedOptimizer", "Lion", "LocalSteps"])
def test_no_cycle_keeps_an_optimizer(way):
    def job(worker):
        """Whether the optimizer goes as it is let go."""
        model, optimizer = getattr(Ways(), way)(worker, make_model())
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        model.zero_grad()
        gc.collect()
        gc.disable()
        try:
            watched = weakref.ref(optimizer)
            del optimizer
            return watched() is None
        finally:
            gc.enable()

    assert run_job(job, workers=1) == run_unrecorded(job)


def test_a_recorder_goes_with_its_worker_without_the_collector():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        loss_of(model, make_batch(worker.rank)).backward()
        optimizer.step()
        optimizer.close()
        del optimizer
        gc.collect()
        recorder = weakref.ref(worker.recorder)
        gc.disable()
        try:
            worker.close_unneeded()
            return recorder() is None
        finally:
            gc.enable()

    assert run_job(job, workers=1) == [True]


def test_close_of_an_optimizer_takes_the_hooks_away():
    def job(worker):
        model = make_model()
        lion = bdn.algorithms.Lion(model, worker=worker)
        assert model._forward_hooks and model[0].weight._post_accumulate_grad_hooks
        lion.close()
        assert not model._forward_hooks and not model._forward_pre_hooks
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())

    run_job(job, workers=1)


def test_an_error_of_recording_is_logged_once_and_ends_the_recording_alone(caplog):
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)

        def fail(array):
            raise MemoryError("no room")

        worker.record_marks = fail
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank, step)).backward()
            optimizer.step()
        del worker.record_marks
        return model_hash(model)

    (first,) = run_job(job, workers=1)
    assert caplog.text.count("recorded no longer") == 1 and "no room" in caplog.text
    caplog.clear()
    assert run_job(lambda worker: train_plainly(worker), workers=1) == [first]


def train_plainly(worker):
    model = make_model()
    optimizer = sgd(worker, model)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, make_batch(worker.rank, step)).backward()
        optimizer.step()
    return model_hash(model)


FORKS = """
import contextlib, gc, os
from cluster_helpers import loss_of, make_batch, make_model, run_job
import bandoneon.torch.algorithms as algorithms

def job(worker):
    model = make_model()
    lion = algorithms.Lion(model, worker=worker)
    loss_of(model, make_batch(0)).backward()
    lion.step()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            loss_of(model, make_batch(0)).backward()
            gc.collect()
            kept = len(worker.recorder._spans) + len(worker.recorder._instants)
            os._exit(0 if not kept and not model._forward_hooks and not worker.recorder._is_on else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert worker.recorder._is_on

run_job(job, workers=1)
"""


def test_a_forked_child_records_nothing():
    # By a process of its own, for a child collects also the garbage of other libraries, and some crash at that.
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", FORKS], cwd=HERE, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_copies_and_pickles_of_a_model_record_nothing():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        with seen_marks(worker) as seen:
            for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                other(make_batch(0)).sum().backward()
            loss_of(model, make_batch(0)).backward()
            optimizer.step()
        return steps_of(seen)[1]["forward"]

    assert run_job(job, workers=1) == [1]


def test_marks_without_a_step_stay_few_and_are_handed_over_meanwhile():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)  # noqa: F841
        batch = make_batch(0)
        with seen_marks(worker) as seen, torch.no_grad():
            for _ in range(step_recorder._MANY + 10):
                model(batch)
        return len(seen), len(worker.recorder._spans)

    ((told, kept),) = run_job(job, workers=1)
    assert told > 0 and kept < step_recorder._MANY <= told + kept


def test_what_comes_before_a_long_wait_is_told_while_it_lasts():
    begun = threading.Event()

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        if worker.rank == 1:
            assert begun.wait(60)
        else:
            with seen_marks(worker) as seen:
                told = []
                hand_over = worker.recorder.hand_over

                def note():
                    hand_over()
                    told.extend(one.kind for one in seen if one.step)
                    begun.set()

                worker.recorder.hand_over = note
                loss_of(model, make_batch(0)).backward()
                optimizer.step()
                return Counter(told)
        loss_of(model, make_batch(1)).backward()
        optimizer.step()
        return None

    first, _ = run_job(job)
    assert first["forward"] == 1 and first["ready"] == PARAMS and first["waiting"] == 0


def test_torch_jit_script_says_what_to_do():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        with pytest.raises(AttributeError, match="takes no model with hooks.*close.. the optimizer"):
            torch.jit.script(model)
        with pytest.raises(AttributeError, match="takes no model with hooks"):
            torch.jit.script(copy.deepcopy(model))
        torch.jit.trace(model, make_batch(0))
        optimizer.close()
        torch.jit.script(model)

    run_job(job, workers=1)


# ---- torch.compile and torch.profiler ----


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_model_has_no_graph_break_of_ours(when):
    def job(worker):
        model = make_model()
        called = torch.compile(model, backend="eager", fullgraph=True)
        given = called if when == "before" else model
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bdn.DistributedOptimizer(
            inner, given.named_parameters(), worker=worker, links=bdn.Links(scaler=None)
        )
        with seen_marks(worker) as seen:
            for step in range(3):
                optimizer.zero_grad()
                loss_of(called, make_batch(worker.rank, step)).backward()
                optimizer.step()
        return steps_of(seen)[3]

    (counts,) = run_job(job, workers=1)
    passes = dict(forward=1, input=1) if when == "before" else {}
    assert counts == dict(step=1, backward=1, ready=PARAMS, waiting=1, optimizer=1, **passes)


def test_while_a_profiler_runs_waits_and_steps_are_ranges_of_it():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)

        def step():
            optimizer.zero_grad()
            loss_of(model, make_batch(worker.rank)).backward()
            optimizer.step()

        step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            for _ in range(3):
                step()
        step()
        return Counter(event.name for event in profiled.events() if event.name.startswith("bandoneon::"))

    assert run_job(job, workers=1) == [{"bandoneon::step": 3, "bandoneon::wait": 3}]


def test_without_a_profiler_no_range_is_made(monkeypatch):
    def refuse(name):
        raise AssertionError(name)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", refuse)
    monkeypatch.setattr(step_recorder, "_enter_range", refuse)

    def job(worker):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        handle = bdn.push_pull(torch.ones(2), "x", worker=worker)
        handle.wait()
        return type(optimizer).__name__

    assert run_job(job, workers=1) == ["SGD"]


def test_hooks_of_ours_are_none_of_the_programs():
    """With overlap="forward" step() would await everything otherwise."""

    def job(worker):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        bdn.push_pull(torch.ones(2), "x", worker=worker).wait()
        optimizer = bdn.DistributedOptimizer(
            inner, model, overlap="forward", worker=worker, links=bdn.Links(scaler=None)
        )
        return forward_overlap.has_other_hooks(optimizer)

    assert run_job(job, workers=1) == [False]

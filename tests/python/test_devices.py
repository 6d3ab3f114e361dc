"""Tensors of GPUs. There is none where tests run: the driver is the fake of tests/device/fake_cuda.cc, for
which any memory is a GPU's, and whose streams do nothing before somebody waits for them; that a tensor is a
GPU's is what devices.py says. Real tensors, autograd, workers and servers are between the two."""

import copy
import ctypes
import importlib
import os
import pathlib
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch import exchange
from bandoneon import _native
from bandoneon.calls import Declaration
from bandoneon.torch import devices, synchronizer
from forward_overlap_helpers import distributed
from cluster_helpers import ONEBIT, assert_same, fill, make_batch, make_model, model_hash, run_job, sgd, train

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = _native.library_paths()[-1].parent.parent / "tests" / "device" / "libfake_cuda.so"
STREAM = 0  # the default one


class FakeGpu:
    def __init__(self):
        self._driver = ctypes.CDLL(str(LIBRARY))
        self._driver.FakeTakeAllMemory()
        self.told = []  # addresses of memory that the current stream uses

    def reach(self, tensor):
        """In place of telling a stream, which computes later: all comes before what the host does now."""
        self.told.append(tensor.data_ptr())
        self._driver.FakeFinish()

    def hold(self, on):
        self._driver.FakeHold(int(on))

    def capture(self, on):
        self._driver.FakeCapture(int(on))


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeGpu()
    monkeypatch.setenv("BANDONEON_CUDA_DRIVER", str(LIBRARY))
    monkeypatch.setattr(devices, "ARE_HERE", True)
    monkeypatch.setattr(devices, "is_pushable", lambda tensor: True)
    monkeypatch.setattr(devices, "place_of", lambda tensor: (1, STREAM))
    monkeypatch.setattr(devices, "used_in_current_stream", fake.reach)
    monkeypatch.setattr(devices, "follow", lambda tensor, stream: None)
    yield fake
    fake.hold(False)
    fake.capture(False)


def counted(worker):
    stats = worker.stats()
    return stats["device_bytes_out"], stats["device_bytes_back"]


def test_push_pull_averages_where_the_tensor_is(gpu):
    def job(worker):
        tensor = torch.full((1000,), float(worker.rank))
        strided = torch.full((50, 2), 4.0 * worker.rank).t()
        handles = [
            bdn.push_pull(tensor, "w", worker=worker),
            bdn.push_pull(strided, "v", worker=worker),
        ]
        assert exchange.synchronize(handles)[0].data_ptr() == tensor.data_ptr()
        assert (tensor == 0.5).all() and (strided == 2.0).all()
        assert counted(worker) == (4400, 4400)
        return tensor.data_ptr()

    addresses = run_job(job)
    assert set(addresses) <= set(gpu.told), "memory may be used again before its result has come"


def test_push_pull_returns_before_the_stream_is_there(gpu):
    def job(worker):
        tensor = torch.ones(10)
        gpu.hold(True)
        handle = bdn.push_pull(tensor, "w", worker=worker)
        assert not handle.is_done()
        with pytest.raises(bandoneon.DeadlineExceeded) as late:
            handle.wait(0.01)
        assert late.value.tensor == "w" and "stream" in late.value.waiting_for
        gpu.hold(False)
        return handle.wait()

    (mean,) = run_job(job, workers=1)
    assert (mean == 1.0).all()


def test_who_leaves_has_sent_what_its_stream_had_not_come_to(gpu):
    def job(worker):
        tensor = torch.full((10,), float(worker.rank))
        number = worker.declare_once(Declaration("w", 10))
        gpu.hold(True)
        ticket = worker.push(number, tensor.data_ptr(), keep=tensor, device=1)
        with pytest.raises(bandoneon.FailedPrecondition, match="in flight"):
            worker.get_state(number, "residual", tensor.data_ptr(), 10)
        release = threading.Timer(0.1, gpu.hold, [False])
        release.start()
        worker.leave()
        release.join()
        worker.wait(ticket)
        return tensor.tolist()

    assert run_job(job) == [[0.5] * 10] * 2


def test_a_graph_that_is_captured_refuses_an_exchange(gpu):
    def job(worker):
        gpu.capture(True)
        with pytest.raises(bandoneon.FailedPrecondition, match="CUDA graph") as refused:
            bdn.push_pull(torch.ones(10), "w", worker=worker)
        assert refused.value.tensor == "w"
        gpu.capture(False)
        return bdn.push_pull(torch.ones(10), "w", worker=worker).wait()

    run_job(job, workers=1)


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("overlap", [False, "backward", "forward"])
def test_training_gives_the_bits_that_it_gives_on_the_host(gpu, monkeypatch, overlap, place):
    monkeypatch.setenv("BANDONEON_CODEC_DEVICE", place)

    def job(worker):
        model = make_model()
        optimizer = distributed(worker, model, overlap, **ONEBIT)
        train(worker, model, optimizer, steps=5)
        optimizer.synchronize()
        stats = worker.stats()
        return model_hash(model), stats["device_bytes_out"], stats["device_encoded_pushes"]

    # Where tensors share a frame they are encoded on the host.
    unfused = dict(min_compress_bytes=0, fusion_bytes=0)
    there = run_job(job, **unfused)
    monkeypatch.setattr(devices, "is_pushable", lambda tensor: False)
    here = run_job(job, **unfused)
    assert {model for model, *_ in there + here} == {here[0][0]}
    assert here[0][1:] == (0, 0)
    assert (there[0][1] > 0, there[0][2] > 0) == (place == "cpu", place == "gpu")


@pytest.mark.parametrize("overlap", [False, "backward", "forward"])
def test_who_sends_a_gradient_waits_for_the_stream_that_made_it(gpu, monkeypatch, overlap):
    """It leaves in a hook of the next one, whose stream may be another."""
    current, followed = [STREAM], []
    monkeypatch.setattr(synchronizer, "_BATCH_BYTES", 1)
    monkeypatch.setattr(devices, "place_of", lambda tensor: (1, current[0]))
    monkeypatch.setattr(devices, "follow", lambda tensor, stream: followed.append((tensor, stream, current[0])))

    def job(worker):
        model = make_model()
        params = list(model.parameters())
        for number, param in enumerate(params, start=10):
            param.register_hook(lambda _, number=number: current.__setitem__(0, number))
        optimizer = distributed(worker, model, overlap, **ONEBIT)
        train(worker, model, optimizer, steps=2)
        followed.clear()
        train(worker, model, optimizer, steps=1)
        optimizer.synchronize()
        return [(made, sent) for param in params for tensor, made, sent in followed if tensor is param]

    (streams,) = run_job(job, workers=1)
    if overlap:
        assert [made for made, _ in streams] == list(range(10, 16)), "each is of the stream of its own hook"
        assert any(made != sent for made, sent in streams), "and leaves in that of another's"
    else:
        assert len(streams) == 6, "after the pass, when its caller's stream has waited for all others"


@pytest.mark.parametrize("place", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels_last"])
def test_gradients_of_other_layouts_and_types_give_the_bits_of_the_host(gpu, monkeypatch, layout, dtype, place):
    """In channels_last a convolution's gradient has its elements in another order than its shape."""
    monkeypatch.setenv("BANDONEON_CODEC_DEVICE", place)

    def job(worker):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Conv2d(8, 4, 1))
        fill(model)
        model = model.to(dtype=dtype, memory_format=layout)
        optimizer = sgd(worker, model, **ONEBIT)
        generator = torch.Generator().manual_seed(worker.rank)
        for _ in range(3):
            optimizer.zero_grad()
            images = torch.randn(2, 3, 6, 6, generator=generator).to(dtype=dtype, memory_format=layout)
            model(images).square().mean().backward()
            optimizer.step()
        stats = worker.stats()
        return model_hash(model), stats["device_bytes_out"] + stats["device_encoded_pushes"]

    unfused = dict(min_compress_bytes=0, fusion_bytes=0)
    there = run_job(job, **unfused)
    monkeypatch.setattr(devices, "is_pushable", lambda tensor: False)
    here = run_job(job, **unfused)
    assert {model for model, _ in there + here} == {here[0][0]}
    assert there[0][1] > 0 and here[0][1] == 0


class Gauge:
    """The greatest value of a gauge of a worker, which is looked at while the block runs."""

    def __init__(self, worker, name):
        self._worker, self._name = worker, name
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self.most = 0

    def look(self):
        self.most = max(self.most, self._worker.stats()[self._name])

    def _watch(self):
        while not self._is_over.wait(0.001):
            self.look()

    def __enter__(self):
        self._watcher.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._watcher.join()


def test_the_demos_model_trains_within_a_bound_of_the_gpus_memory(gpu, monkeypatch):
    """Its residuals and momenta alone would be ten times as much."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    demo = importlib.import_module("gpt")
    monkeypatch.setenv("BANDONEON_CODEC_DEVICE", "gpu")
    monkeypatch.setenv("BANDONEON_MAX_DEVICE_BYTES", "1MiB")
    torch.manual_seed(1)
    first = demo.GPT()
    text = torch.randint(256, (4096,), generator=torch.Generator().manual_seed(2))

    def job(worker):
        model = copy.deepcopy(first)
        optimizer = sgd(worker, model, lr=demo.RATES["SGD"], **demo.MODES["onebit"])
        generator = torch.Generator().manual_seed(worker.rank)
        with Gauge(worker, "device_memory_bytes") as memory:
            for _ in range(3):
                optimizer.zero_grad()
                model.loss(demo.sample(text, generator, count=1, context=16)).backward()
                memory.look()
                optimizer.step()
        stats = worker.stats()
        return model_hash(model), memory.most, stats["device_encoded_pushes"], stats["device_host_encoded_pushes"]

    unfused = dict(min_compress_bytes=0, fusion_bytes=0)
    there = run_job(job, **unfused)
    monkeypatch.setattr(devices, "is_pushable", lambda tensor: False)
    here = run_job(job, **unfused)
    assert {model for model, *_ in there + here} == {here[0][0]}
    for _, most, encoded_there, encoded_by_host in there:
        assert 512 << 10 < most <= 1 << 20
        assert encoded_there > 0 and encoded_by_host > 0, "some found memory, and some did not"


def test_the_hook_of_ddp_gives_the_bits_that_it_gives_on_the_host(gpu, monkeypatch, tmp_path):
    building = threading.Lock()

    def job(worker):
        model = make_model()
        with building:
            wrapped = DistributedDataParallel(model, bucket_cap_mb=0.0001)
        state = bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
        wrapped.register_comm_hook(state, bdn.ddp_hook)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
        for step in range(4):
            optimizer.zero_grad()
            wrapped(make_batch(worker.rank, step)).square().mean().backward()
            optimizer.step()
        return model_hash(model)

    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        there = run_job(job)
        monkeypatch.setattr(devices, "is_pushable", lambda tensor: False)
        assert set(there) == set(run_job(job))
    finally:
        dist.destroy_process_group()


def test_a_pass_that_broke_off_leaves_nothing_in_flight(gpu):
    """Its exchanges are waited for in full: their memory goes back to who may use it at once."""

    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        train(worker, model, optimizer, steps=2)
        hook = model[0].weight.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(make_batch(worker.rank)).sum().backward()
        hook.remove()
        optimizer.zero_grad()
        train(worker, model, optimizer, steps=2)
        return model_hash(model)

    assert len(set(run_job(job))) == 1


def test_without_a_driver_the_error_names_the_tensor(gpu, monkeypatch):
    monkeypatch.setenv("BANDONEON_CUDA_DRIVER", "libnone.so.1")

    def job(worker):
        with pytest.raises(bandoneon.NotFound, match="no NVIDIA driver on this machine") as missing:
            bdn.push_pull(torch.ones(10), "w", worker=worker)
        assert missing.value.tensor == "w"

    run_job(job, workers=1)


def test_tensors_of_the_host_know_no_driver(monkeypatch):
    monkeypatch.setenv("BANDONEON_CUDA_DRIVER", "libnone.so.1")
    tensor = torch.ones(4)
    run_job(lambda worker: bdn.push_pull(tensor.clone(), "w", worker=worker).wait(), workers=1)
    assert_same({"w": tensor}, {"w": torch.ones(4)})


def test_what_gpus_there_are_is_said_with_the_version():
    command = [str(LIBRARY.parents[2] / "bin" / "bandoneon"), "--version"]

    def said(driver):
        environment = dict(os.environ, BANDONEON_CUDA_DRIVER=driver)
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    version, gpus = said("libnone.so.1").splitlines()
    assert version.startswith("bandoneon ")
    assert gpus.startswith("GPUs: none: no NVIDIA driver on this machine")
    assert said(str(LIBRARY)).splitlines()[1].startswith("GPU: Fake GPU (cuda:0), compute capability 9.0, driver of CUDA 13.0, encodes: ")

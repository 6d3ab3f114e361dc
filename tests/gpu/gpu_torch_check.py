"""What PyTorch and a GPU make of exchanges. Each check is a process of its own with a limit of time, so that one that
hangs, or breaks its driver for good, costs one line. DIR/torch.json is written anew after each check; the exit status
is 1 where one failed.

    python gpu_torch_check.py [--device cuda|cpu] [--out DIR] [--only NAME ...] [--budget SECONDS]

--device cpu runs the checks that need no GPU, and fewer sizes, to see that this program itself works.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

with contextlib.suppress(ImportError):  # Without them each check says what is missing.
    import torch

    import bandoneon
    import bandoneon.torch as bdn

CODECS = [
    ("none", "none"),
    ("fp16", "fp16"),
    ("bf16", "bf16"),
    ("sign", "sign"),
    ("ef(onebit(block=256))", "onebit(block=256)"),
    ("ef(onebit)", "onebit"),
    ("ef(twobit(block=64))", "twobit(block=64)"),
    ("onebit(block=64,scale=bf16)", "none"),
    ("ef(topk(ratio=0.01))", "topk(ratio=0.01)"),
    ("topk(ratio=0.01,select=sampled)", "none"),
    ("topk(ratio=0.03,values=twobit)", "none"),
    ("ef(randomk(ratio=0.1,unbiased=false))", "none"),
    ("ef(blocks(ratio=0.1))", "none"),
    ("dither", "dither"),
    ("dither(norm=l2)", "none"),
    ("dither(kind=natural)", "none"),
    ("int8", "int8"),
    ("int4(hadamard=32)", "int4"),
    ("int4(group=8192)", "none"),
    ("int2", "none"),
]
ONEBIT = dict(push="ef(onebit(block=256))", pull="onebit(block=256)")


def is_gpu(device):
    return device != "cpu"


def bits(tensor):
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu()
    return hashlib.sha256(ctypes.string_at(flat.data_ptr(), flat.numel())).hexdigest()[:16]


def job(function, workers=2, place="auto", **settings):
    """What `function` gives for each worker of a job in this process. Tensors share no frames, as those that do are
    encoded by processors."""
    settings = {"min_compress_bytes": 0, "fusion_bytes": 0, **settings}
    with bandoneon.LocalCluster(workers=workers, servers=1, seed=5, **settings) as cluster:
        return cluster.run(function, codec_device=place)


def values(n, seed, dtype):
    return torch.randn(n, generator=torch.Generator().manual_seed(seed)).to(dtype)


def places(device):
    """(where tensors lie, where they are encoded)"""
    of_gpu = [(device, "cpu"), (device, "gpu")] if is_gpu(device) else []
    return [("cpu", "cpu"), *of_gpu]


def places_of(device):
    """Of tensors of the device itself."""
    return [place for where, place in places(device) if where == device]


def settle(device):
    if is_gpu(device):
        torch.cuda.synchronize()


def model_of(width=512):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    return torch.nn.Sequential(*[module for layer in layers for module in (layer, torch.nn.GELU())])


# ---- Checks: each returns what was seen; what is wrong is an exception ----


def environment(device):
    library = str(bandoneon._native.library_paths()[0])
    facts = {"torch": torch.__version__, "cuda": torch.version.cuda, "library": library}
    if not is_gpu(device):
        return facts
    facts.update(gpu=torch.cuda.get_device_name(), capability=torch.cuda.get_device_capability())
    query = "--query-gpu=name,driver_version,memory.total,mig.mode.current"
    smi = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True)
    facts["nvidia-smi"] = smi.stdout.strip()

    def run(worker):
        bdn.push_pull(torch.ones(1 << 20, device=device), "w", push="fp16", worker=worker).wait()
        return worker.stats()["device_encoded_pushes"]

    encoded = job(run, workers=1, place="gpu")
    assert encoded == [1], f"what was to be encoded on the GPU was not: {encoded}"
    return facts


def same_bits_everywhere(device):
    sizes = [(7, torch.float32), (4097, torch.bfloat16), (300_001, torch.float32), (1 << 21, torch.float16)]
    tried = 0
    for push, pull in CODECS:
        for n, dtype in sizes if is_gpu(device) else sizes[:2]:
            seen = {}
            for where, place in places(device):

                def run(worker):
                    results = []
                    for step in range(3):
                        x = values(n, 10 * step + worker.rank, dtype).to(where)
                        results.append(bits(bdn.push_pull(x, "w", push=push, pull=pull, worker=worker).wait()))
                    return results, worker.stats()["device_encoded_pushes"]

                (first, encoded), (second, _) = job(run, place=place)
                assert first == second, f"workers differ: {push} of {n} {dtype} on {where}, encoded on {place}"
                if where != "cpu":
                    assert encoded == (3 if place == "gpu" else 0), f"{push}: {encoded} pushes encoded, {place}"
                seen[where, place] = tuple(first)
                tried += 1
            assert len(set(seen.values())) == 1, f"bits differ by place: {push} of {n} {dtype}: {seen}"
    return {"jobs": tried}


def train(device, overlaps, amp=False):
    making, seen = threading.Lock(), {}
    for overlap in overlaps:
        for place in places_of(device):

            def run(worker):
                with making:  # One generator of random numbers serves all workers of this process.
                    model = model_of().to(device)
                kind = torch.device(device).type
                scaler = torch.amp.GradScaler(kind) if amp else None
                optimizer = bdn.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.05),
                    model if overlap == "forward" else model.named_parameters(),
                    links=bdn.Links(momentum=0.9, scaler=scaler, **{**ONEBIT, "pull": "ef(onebit(block=256))"}),
                    overlap=overlap,
                    worker=worker,
                )
                for step in range(6):
                    optimizer.zero_grad()
                    x = values(64 * 512, 100 * step + worker.rank, torch.float32).view(64, 512).to(device)
                    with torch.autocast(kind, dtype=torch.float16, enabled=amp):
                        loss = model(x).float().square().mean()
                    (scaler.scale(loss) if amp else loss).backward()
                    if amp:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                optimizer.synchronize()
                return [bits(param) for param in model.parameters()], worker.stats()["device_encoded_pushes"]

            (first, encoded), (second, _) = job(run, place=place)
            assert first == second, f"replicas differ: overlap={overlap}, encoded on {place}"
            assert (encoded > 0) == (place == "gpu" and is_gpu(device)), f"{encoded} pushes encoded, {place}"
            seen.setdefault(overlap, set()).add(tuple(first))
        assert len(seen[overlap]) == 1, f"bits differ by place: overlap={overlap}"
    return {"overlaps": list(seen)}


def training(device):
    return train(device, (False, "backward", "forward"))


def training_amp(device):
    return train(device, (False, "backward"), amp=True)


def ddp_hook(device):
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
        try:

            def run(worker):
                model = model_of().to(device)
                wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
                state = bdn.DDPState(model.named_parameters(), worker=worker, links=bdn.Links(scaler=None))
                wrapped.register_comm_hook(state, bdn.ddp_hook)
                optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
                for step in range(4):
                    optimizer.zero_grad()
                    x = values(64 * 512, step, torch.float32).view(64, 512).to(device)
                    wrapped(x).square().mean().backward()
                    optimizer.step()
                return tuple(bits(param) for param in model.parameters())

            seen = {place: job(run, workers=1, place=place)[0] for place in places_of(device)}
            assert len(set(seen.values())) == 1, "bits differ by place"
            return {"places": len(seen)}
        finally:
            dist.destroy_process_group()


def streams_and_memory(device):
    """Gradients of side streams that are late, and freed at once, while others take their memory: an event or a
    record_stream that is missing shows as wrong values."""
    n, wrong = 1 << 20, []
    for push in ("none", "onebit(block=256)"):
        for place in ("cpu", "gpu"):

            def run(worker):
                side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
                for step in range(40):
                    side.wait_stream(main)
                    with torch.cuda.stream(side):
                        torch.cuda._sleep(3_000_000)  # The gradient is late.
                        x = torch.full((n,), float(step + 1), device=device)
                        handle = bdn.push_pull(x, "w", push=push, worker=worker)
                    junk = [torch.full((n,), -7.0, device=device) for _ in range(4)]
                    mean = handle.wait()  # In the main stream.
                    got = mean.clone()
                    del x, mean, handle, junk
                    with torch.cuda.stream(side):
                        junk = [torch.full((n,), -9.0, device=device) for _ in range(4)]  # Takes what was freed.
                    least, most = got.min().item(), got.max().item()
                    if (least, most) != (step + 1, step + 1):
                        wrong.append((push, place, step, least, most))
                    del junk

            job(run, workers=1, place=place)
    assert not wrong, f"{len(wrong)} steps have wrong values, the first {wrong[0]}"
    return {"steps": 160}


def capture_refuses_pushes(device):
    def run(worker):
        x = torch.ones(1 << 10, device=device)
        message = "nothing"
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                bdn.push_pull(x, "w", worker=worker)
        except Exception as refused:
            message = f"{type(refused).__name__}: {refused}"
        torch.cuda.synchronize()
        after = bdn.push_pull(torch.ones(1 << 10, device=device), "w", worker=worker).wait().sum().item()
        return message[:200], after

    ((message, after),) = job(run, workers=1)
    assert "CUDA graph" in message and after == 1024, (message, after)
    return {"message": message}


def capture_beside_exchanges(device):
    """A graph is captured in the default mode, "global", while an exchange is on its way in threads of ours."""
    seen = {}
    for place in ("cpu", "gpu"):
        both_are_done = threading.Barrier(2)  # What one still asks of CUDA would break the other's capture.

        def run(worker):
            a = torch.randn(256, 256, device=device)
            torch.mm(a, a)
            x = torch.ones(1 << 20, device=device)
            bdn.push_pull(torch.ones(1 << 20, device=device), "warm", push="fp16", worker=worker).wait()
            torch.cuda.synchronize()
            both_are_done.wait(60)
            if worker.rank == 1:  # A thread of this process: it makes no call of CUDA's while the other captures.
                x = torch.ones(1 << 20)
                time.sleep(0.3)
                bdn.push_pull(x, "w", push="fp16", worker=worker).wait()
                return []
            errors = []
            handle = bdn.push_pull(x, "w", push="fp16", worker=worker)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    for _ in range(60):
                        torch.mm(a, a)
                        time.sleep(0.01)
                graph.replay()
            except Exception as broken:
                errors.append(f"capture: {type(broken).__name__}: {broken}"[:300])
            try:
                handle.wait()
            except Exception as broken:
                errors.append(f"exchange: {type(broken).__name__}: {broken}"[:300])
            return errors

        seen[place] = job(run, place=place)[0]
    assert not any(seen.values()), seen
    return seen


def memory_is_out(device):
    """Training goes on, with the right means, where others leave the GPU no room, at each stage of an exchange."""
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    kept = [torch.empty(max(free - (600 << 20), 1), dtype=torch.uint8, device=device)]

    def run(worker):
        means = []
        for step in range(4):
            tensors = [torch.ones(1 << 22, device=device) for _ in range(8)]
            handles = [bdn.push_pull(x, f"w{i}", **ONEBIT, worker=worker) for i, x in enumerate(tensors)]
            means += [handle.wait().mean().item() for handle in handles]
            del tensors, handles
            free, _ = torch.cuda.mem_get_info()  # Others take what is left between two steps.
            if free > 64 << 20:
                kept.append(torch.empty(free - (48 << 20), dtype=torch.uint8, device=device))
        return means, worker.stats()["device_encoded_pushes"]

    # Without a bound, so that the GPU itself refuses.
    ((means, encoded),) = job(run, workers=1, place="gpu", max_device_bytes="1TiB")
    assert all(abs(mean - 1) < 1e-6 for mean in means), means
    return {"encoded_there": encoded, "of": len(means), "free_at_end": torch.cuda.mem_get_info()[0]}


def leaves_room(device):
    """How much of the GPU's memory exchanges take that torch does not know of."""

    def run(worker):
        x = torch.ones(1 << 26, device=device)
        before = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
        bdn.push_pull(x, "w", **ONEBIT, worker=worker).wait()
        torch.cuda.synchronize()
        taken = before - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
        return taken, worker.stats()["device_memory_bytes"]

    ((taken, counted),) = job(run, workers=1, place="gpu")
    return {"elements": 1 << 26, "bytes_beside_torch": taken, "bytes_counted": counted}


def ends_cleanly(device):
    """Programs that end in the middle of exchanges end, without a crash."""
    seen = {}
    for how in ("return", "sys.exit(3)", "raise KeyError", "os._exit(4)"):
        text = f"""
import os, sys, torch, bandoneon, bandoneon.torch as bdn
cluster = bandoneon.LocalCluster(workers=1, servers=1, min_compress_bytes=0)
worker = cluster.worker(0, codec_device="{'gpu' if is_gpu(device) else 'cpu'}")
tensors = [torch.ones(1 << 20, device="{device}") for _ in range(4)]
handles = [bdn.push_pull(x, f"w{{i}}", push="ef(onebit)", worker=worker) for i, x in enumerate(tensors)]
def main():
    {how}
main()
"""
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
        seen[how] = done.returncode
        assert done.returncode >= 0, f"{how}: killed by signal {-done.returncode}: {done.stderr[-400:]}"
    return seen


def speed(device):
    """Milliseconds and a processor's milliseconds from push to result of one tensor, of one worker and one server
    in this process."""
    sizes = (1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24) if is_gpu(device) else (1 << 14,)
    pairs = [("none", "none"), ("fp16", "fp16"), tuple(ONEBIT.values()), ("dither", "dither"), ("int4", "int4")]
    table = []
    for push, pull in [*pairs, ("ef(topk(ratio=0.01))", "topk(ratio=0.01)")]:
        for n in sizes:
            for place in places_of(device):

                def run(worker):
                    x = torch.randn(n, device=device)
                    took, cpu = [], []
                    for _ in range(12):
                        settle(device)
                        begin, cpu_begin = time.perf_counter(), time.process_time()
                        bdn.push_pull(x, "w", push=push, pull=pull, worker=worker).wait()
                        settle(device)
                        took.append(time.perf_counter() - begin)
                        cpu.append(time.process_time() - cpu_begin)
                    return statistics.median(took[2:]) * 1e3, statistics.median(cpu[2:]) * 1e3

                ((ms, cpu_ms),) = job(run, workers=1, place=place)
                row = {"push": push, "elements": n, "place": place, "ms": round(ms, 3), "cpu_ms": round(cpu_ms, 3)}
                table.append({**row, "gb_a_second": round(4 * n / ms / 1e6, 2)})
    return {"table": table}


def beside_backward(device):
    """What exchanges cost a training step: milliseconds, and a processor's, without and with them."""
    width, batch = (4096, 4096) if is_gpu(device) else (64, 16)
    rows = []
    for push in (None, "fp16", "ef(onebit(block=256))", "ef(topk(ratio=0.01))"):
        for place in places_of(device) if push else ["cpu"]:

            def run(worker):
                model = model_of(width).to(device)
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
                if push is not None:
                    links = bdn.Links(push=push, pull=push, scaler=None)
                    optimizer = bdn.DistributedOptimizer(optimizer, model.named_parameters(), links=links, worker=worker)
                x = torch.randn(batch, width, device=device)
                took, cpu = [], []
                for _ in range(14):
                    begin, cpu_begin = time.perf_counter(), time.process_time()
                    optimizer.zero_grad()
                    model(x).square().mean().backward()
                    optimizer.step()
                    settle(device)
                    took.append(time.perf_counter() - begin)
                    cpu.append(time.process_time() - cpu_begin)
                return statistics.median(took[4:]) * 1e3, statistics.median(cpu[4:]) * 1e3

            ((ms, cpu_ms),) = job(run, workers=1, place=place, min_compress_bytes=65536)
            rows.append({"push": push, "place": place, "step_ms": round(ms, 2), "cpu_ms": round(cpu_ms, 2)})
    return {"rows": rows}


# (check, seconds that it may take, whether it needs a GPU), the most telling first.
CHECKS = [
    (environment, 60, False),
    (same_bits_everywhere, 150, False),
    (training, 60, False),
    (training_amp, 60, True),
    (ddp_hook, 40, False),
    (streams_and_memory, 60, True),
    (capture_refuses_pushes, 30, True),
    (capture_beside_exchanges, 30, True),
    (memory_is_out, 40, True),
    (leaves_room, 30, True),
    (ends_cleanly, 80, False),
    (speed, 90, False),
    (beside_backward, 60, False),
]


def run_check(name, device, seconds):
    """What torch.json has of a check."""
    begin = time.monotonic()
    if seconds < 5:
        return {"ok": None, "why": "no time was left", "seconds": 0}
    command = [sys.executable, __file__, "--device", device, "--inside", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        entry = {"ok": done.returncode == 0, "result": json.loads(lines[-1][len("RESULT ") :]) if lines else None}
        if done.returncode:
            entry["why"] = (done.stderr or done.stdout)[-1500:]
    except subprocess.TimeoutExpired as late:
        tail = (late.stderr or b"").decode(errors="replace")[-800:]
        entry = {"ok": False, "why": f"it was not done after {seconds:.0f} s: {tail}"}
    return {**entry, "seconds": round(time.monotonic() - begin, 1)}


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument("--device", default="cuda")
    ask.add_argument("--out", default=os.environ.get("OUT", "."))
    ask.add_argument("--only", nargs="*")
    ask.add_argument("--budget", type=float, default=420.0)
    ask.add_argument("--inside", help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.inside:
        device = "cuda:0" if given.device == "cuda" else given.device
        check = {check.__name__: check for check, *_ in CHECKS}[given.inside]
        print("RESULT " + json.dumps(check(device), default=str))
        return 0
    pathlib.Path(given.out).mkdir(parents=True, exist_ok=True)
    report, end = {}, time.monotonic() + given.budget
    for check, seconds, needs_gpu in CHECKS:
        name = check.__name__
        if (given.only and name not in given.only) or (needs_gpu and not is_gpu(given.device)):
            continue
        entry = report[name] = run_check(name, given.device, min(seconds, end - time.monotonic()))
        why = str(entry.get("why", "")).strip().rsplit("\n", 1)[-1][:200]
        print(f"{name:28s} {entry['ok']!s:5s} {entry['seconds']:6.1f} s  {why}", flush=True)
        pathlib.Path(given.out, "torch.json").write_text(json.dumps(report, indent=1))
    return 1 if any(entry["ok"] is False for entry in report.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

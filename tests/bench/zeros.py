"""What sketches do for gradients of mostly zeros: bytes, a server's CPU, errors of sums, and steps to a loss.

    build/venv/bin/python tests/bench/zeros.py
    build/venv/bin/python tests/bench/zeros.py --share 0.03 --workers 8

Four workers on threads of this process push a gradient of a million elements, of which `share` is not zero in the union: a
half of them in one worker alone, the others in all. Bytes of one worker's pushes and replies are compared with `none`; the CPU of
the server's thread, for a push, with that of a server that decodes sketches, adds and sends float32; sums with float64. Then
a pruned network is trained with sparse="sketch" and without, from three seeds, until its loss is a tenth of what it was.
"""

import argparse
import os
import statistics
import time

import torch

import bandoneon
import bandoneon.torch as bdn
from bandoneon.calls import Declaration
from bandoneon.torch.sparse_sketch import MEASURED_STEPS, cells_for

WAYS = ("none", "decoded", "sketch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.06)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            found[way].append(exchanges(options, way))
    dense = found["none"][0]["bytes"]
    for way, runs in found.items():
        cpu = sorted(run["cpu_ms"] for run in runs)
        print(f"{way:8} {runs[0]['bytes'] / dense:.4f} of the bytes; server's CPU a push {statistics.median(cpu):.2f} ms "
              f"({cpu[0]:.2f} to {cpu[-1]:.2f}); sums off by {max(run['error'] for run in runs):.1e} of the largest; "
              f"{sum(run['guessed'] for run in runs)} guessed")
    for seed in (1, 2, 3):
        plain, sketched = (steps_to_a_tenth(options, seed, sparse) for sparse in ("refuse", "sketch"))
        print(f"seed {seed}: a tenth of the loss after {plain[0]} steps, {sketched[0]} with sketches; bytes pushed and pulled "
              f"behind the {MEASURED_STEPS} of measuring {sketched[1] / plain[1]:.4f}")


def shard_seconds():
    """CPU of the servers' threads so far."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        try:
            text = open(f"/proc/self/task/{task}/stat").read()
        except OSError:
            continue
        name, facts = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if name.startswith("bdn-shard"):
            path = f"/proc/self/task/{task}/schedstat"
            total += int(open(path).read().split()[0]) if os.path.exists(path) else int(facts[11]) * 10**7
    return total / 1e9


def union(options, step):
    """Each worker's gradient, and their mean in float64."""
    generator = torch.Generator().manual_seed(step)
    places = torch.randperm(options.elements, generator=generator)[: round(options.share * options.elements)]
    alone = places[: len(places) // 2].chunk(options.workers)
    gradients = []
    for own in alone:
        gradient = torch.zeros(options.elements)
        both = torch.cat([own, places[len(places) // 2 :]])
        gradient[both] = torch.randn(len(both), generator=generator)
        gradients.append(gradient)
    return gradients, sum(gradient.double() for gradient in gradients) / options.workers


def exchanges(options, way):
    spec = f"exactsketch(cells={cells_for(options.share, options.elements)})"
    codecs = {"none": ("none", "none"), "decoded": (spec, "none"), "sketch": (spec, spec)}[way]
    data = [union(options, step) for step in range(3)]

    def job(worker):
        (tensor,) = worker.declare([Declaration("t", options.elements, push=codecs[0], pull=codecs[1])])
        worst, guessed = 0.0, 0
        before, cpu = worker.stats(), 0.0
        for step in range(options.steps):
            gradients, mean = data[step % 3]
            values = gradients[worker.rank].clone()
            worker.barrier("all have their gradients")
            begin = shard_seconds() if worker.rank == 0 else 0.0
            (result,), error = worker.wait_all([worker.push(tensor, values.data_ptr(), keep=values)])
            worker.barrier("all have their means")
            cpu += shard_seconds() - begin if worker.rank == 0 else 0.0
            assert error is None
            guessed += result.guessed
            if not result.guessed:
                worst = max(worst, ((values - mean).abs().max() / mean.abs().max()).item())
        after = worker.stats()
        sent = sum(after[fact] - before[fact] for fact in ("bytes_pushed", "bytes_pulled"))
        return dict(bytes=sent, error=worst, guessed=guessed, cpu_ms=1e3 * cpu / options.steps / options.workers)

    with bandoneon.LocalCluster(workers=options.workers, servers=1) as cluster:
        return cluster.run(job)[0]


def pruned_network(seed, share):
    """A perceptron whose two inner layers have a mask."""
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
    )
    with torch.no_grad():
        for name, param in model.named_parameters():
            wide = param.dim() == 2 and param.shape[0] > 8
            mask = torch.rand(param.shape, generator=generator) < share if wide else torch.ones(param.shape)
            scale = (2 / (param.shape[1] * (share if wide else 1))) ** 0.5 if param.dim() == 2 else 0.0
            param.copy_(torch.randn(param.shape, generator=generator) * scale * mask)
            param.register_hook(lambda grad, mask=mask: grad * mask)
    return model


def steps_to_a_tenth(options, seed, sparse, most=400):
    """(steps until the mean of ten losses of all workers is a tenth of the first ones', bytes behind the measuring)"""

    def job(worker):
        model = pruned_network(seed, options.share)
        teacher = torch.randn(512, 8, generator=torch.Generator().manual_seed(seed)) / 512**0.5
        inner = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        optimizer = bdn.DistributedOptimizer(inner, model, links=bdn.Links(sparse=sparse), worker=worker)
        draw = torch.Generator().manual_seed(100 * seed + worker.rank)
        x = torch.randn(256, 512, generator=draw)
        losses, begin, reached = [], None, most
        for step in range(most):
            if step == MEASURED_STEPS + 1:
                begin = sent(worker)
            optimizer.zero_grad()
            loss = (model(x) - torch.tanh(x @ teacher)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(bdn.push_pull(loss.detach().clone(), "loss", worker=worker).wait().item())
            if step >= MEASURED_STEPS + 10 and sum(losses[-10:]) <= 0.1 * sum(losses[:10]):
                reached = step + 1
                break
        done = (sent(worker) - begin) / (len(losses) - MEASURED_STEPS - 1)
        optimizer.close()
        return reached, done

    with bandoneon.LocalCluster(workers=options.workers, servers=1) as cluster:
        return cluster.run(job)[0]


def sent(worker):
    stats = worker.stats()
    return stats["bytes_pushed"] + stats["bytes_pulled"]


if __name__ == "__main__":
    begin = time.perf_counter()
    main()
    print(f"{time.perf_counter() - begin:.0f} s")

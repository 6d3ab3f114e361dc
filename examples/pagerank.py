"""PageRank of a graph whose edges are cut among the workers, by tables of rows that servers sum.

    bandoneon run -n 4 -s 2 -- python examples/pagerank.py

Makes a power-law graph, cuts its edges in three ways, and ranks its vertices by each. A worker has the edges of its
part and a number for each vertex that these touch; a step adds up, row by row, what the workers have for the vertices
of their own. Prints the bytes that each cut moves, and compares all ranks with those of one process.
"""

import argparse

import numpy as np

import bandoneon
from bandoneon import graph

DAMPING = 0.85


def main():
    options = read_options()
    worker = bandoneon.init()
    edges = power_law(options)
    expected = by_one_process(edges, options)
    worst = 0.0
    for how in ("random", "hybrid", "dbh"):
        part = graph.cut(edges, worker.size, how)
        before = moved(worker)
        vertices, ranks = by_cut(worker, edges[part == worker.rank], how, options)
        nbytes = (moved(worker) - before) / (options.steps + 1)
        error = np.abs(ranks / expected[vertices] - 1).max(initial=0.0)
        mine = np.array([[nbytes, error]])
        totals = graph.VertexSums(2, f"totals of {how}").add([0], mine)  # Of all workers.
        worst = max(worst, float(totals[0, 1]))
        if worker.rank == 0:
            print(
                f"{how}: {graph.replicas(edges, part):.2f} workers a vertex, "
                f"{totals[0, 0] / worker.size / 1000:.1f} kB a worker and step"
            )
    if worker.rank == 0:
        print("equal to one process to 1e-6" if worst < 1e-6 else f"NOT equal to one process: {worst:g}")
    bandoneon.shutdown()
    if worst >= 1e-6:
        raise SystemExit(1)


def by_cut(worker, mine, how, options):
    """(the vertices of this worker's edges, their ranks)"""
    sums = graph.VertexSums(1, f"ranks of {how}", push=options.push, pull=options.pull, worker=worker)
    vertices, ends = np.unique(mine, return_inverse=True)
    ends = ends.reshape(-1, 2)
    here = np.bincount(ends.reshape(-1), minlength=len(vertices))
    degree = sums.add(vertices, here)[:, 0].astype(np.float64)
    ranks = np.full(len(vertices), 1 / options.vertices)
    for _ in range(options.steps):
        gathered = sums.add(vertices, gather(ranks / np.maximum(degree, 1), ends, len(vertices)))
        ranks = (1 - DAMPING) / options.vertices + DAMPING * gathered[:, 0].astype(np.float64)
    return vertices, ranks


def gather(values, ends, count):
    """What comes to each vertex over its edges, either way."""
    first = np.bincount(ends[:, 0], values[ends[:, 1]], minlength=count)
    return first + np.bincount(ends[:, 1], values[ends[:, 0]], minlength=count)


def by_one_process(edges, options):
    count = options.vertices
    degree = np.maximum(np.bincount(edges.reshape(-1), minlength=count), 1)
    ranks = np.full(count, 1 / count)
    for _ in range(options.steps):
        ranks = (1 - DAMPING) / count + DAMPING * gather(ranks / degree, edges, count)
    return ranks


def power_law(options):
    random = np.random.default_rng(options.seed)
    weights = 1.0 / np.arange(1, options.vertices + 1) ** options.exponent
    edges = random.choice(options.vertices, size=(options.edges, 2), p=weights / weights.sum())
    return np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)


def moved(worker):
    stats = worker.stats()
    return stats["bytes_pushed"] + stats["bytes_pulled"]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vertices", type=int, default=50_000)
    parser.add_argument("--edges", type=int, default=400_000)
    parser.add_argument("--exponent", type=float, default=0.7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--push", default="none")
    parser.add_argument("--pull", default="none")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""bandoneon.graph: cuts of a power-law graph, beside their formula and a plain loop."""

import numpy as np
import pytest

import bandoneon
from bandoneon import graph

MASK = (1 << 64) - 1


def power_law(vertices, edges, exponent, seed=0):
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, vertices + 1) ** exponent
    chosen = random.choice(vertices, size=(edges, 2), p=weights / weights.sum())
    chosen = chosen[chosen[:, 0] != chosen[:, 1]]
    return np.unique(chosen, axis=0)


@pytest.fixture(scope="module")
def edges():
    return power_law(50_000, 400_000, 0.7)


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_each_edge_goes_by_its_end_of_fewer_edges():
    few = power_law(40, 200, 1.0)
    degree = np.bincount(few.reshape(-1), minlength=40)
    part = graph.cut(few, 5, "dbh")
    for (u, v), p in zip(few.tolist(), part.tolist()):
        assert p == mix(v if degree[v] < degree[u] else u) % 5
    into = np.bincount(few[:, 1], minlength=40)
    part = graph.cut(few, 5, "hybrid", high_degree=6)
    for (u, v), p in zip(few.tolist(), part.tolist()):
        assert p == mix(u if into[v] > 6 else v) % 5
    part = graph.cut(few, 5, "random")
    for (u, v), p in zip(few.tolist(), part.tolist()):
        assert p == mix(mix(u) ^ v) % 5


@pytest.mark.parametrize("parts", [4, 8, 32])
def test_dbh_is_what_its_formula_says_and_better_than_random(edges, parts):
    dbh = graph.cut(edges, parts, "dbh")
    there = graph.replicas(edges, dbh)
    assert there == pytest.approx(graph.expected_replicas(edges, parts), rel=0.01)
    assert there <= 0.66 * graph.replicas(edges, graph.cut(edges, parts, "random"))
    load = np.bincount(dbh, minlength=parts)
    assert load.max() / load.mean() < 1.1


def test_pieces_and_ids_change_nothing(edges, monkeypatch):
    few = edges[:5000]
    whole = {how: graph.cut(few, 7, how) for how in ("dbh", "random", "hybrid")}
    monkeypatch.setattr(graph, "_PIECE", 97)
    for how, part in whole.items():
        assert np.array_equal(graph.cut(few.astype(np.int32), 7, how), part)
    far = few.astype(np.int64) - 2**62  # Ids may be any, negative ones, too.
    assert graph.cut(far, 7).min() >= 0 and graph.cut(far, 7).max() == 6


def test_an_empty_graph_and_loops_are_graphs():
    none = np.empty((0, 2), np.int64)
    assert graph.cut(none, 3).shape == (0,) and graph.replicas(none, graph.cut(none, 3)) == 0
    loops = np.array([[4, 4], [4, 4]])
    assert graph.replicas(loops, graph.cut(loops, 3)) == 1
    assert graph.expected_replicas(loops, 3) == pytest.approx(1)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: graph.cut([[0.5, 1.0]], 2), "edges of float64"),
        (lambda: graph.cut([1, 2, 3], 2), r"shape \(3,\)"),
        (lambda: graph.cut([[1, 2]], 0), "parts=0"),
        (lambda: graph.cut([[1, 2]], 2.0), "parts=2.0"),
        (lambda: graph.cut([[1, 2]], 2, "metis"), "none of dbh, random, hybrid"),
        (lambda: graph.replicas([[1, 2]], [0, 1]), r"parts of shape \(2,\) for 1 edges"),
    ],
)
def test_what_is_no_graph_is_refused(call, text):
    with pytest.raises(bandoneon.InvalidArgument, match=text):
        call()

"""Cuts of a graph's edges among workers, for programs whose vertices are rows of a summed table.

    part = graph.cut(edges, parts=4, how="dbh")
    mine = edges[part == worker.rank]
    sums = graph.VertexSums(width=1)
    total = sums.add(vertices, values)      # what all workers have for these vertices

A vertex is at each worker that has one of its edges: a step moves a row for each of these, so that a cut is as good
as it has few of them. NumPy, and no PyTorch; examples/pagerank.py is a whole program.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterator

from .calls import Rows, Table
from .errors import InvalidArgument
from .session import default_worker
from .worker import Worker

__all__ = ["VertexSums", "cut", "expected_replicas", "replicas"]

# Edges are looked at in pieces of so many, so that no array beside the result is as long as the graph.
_PIECE = 1 << 20
# Of hybrid: a vertex with more edges that end in it than that is cut by their other ends.
_HIGH_DEGREE = 100
_HOWS = ("dbh", "random", "hybrid")


def cut(edges: Any, parts: int, how: str = "dbh", *, high_degree: int = _HIGH_DEGREE) -> Any:
    """The part of each edge, an int64 array of numbers from 0 to parts - 1.

    edges: an integer array of shape [m, 2], of vertices by any ids; of hybrid the second is where an edge ends.
    how: "dbh": by a hash of the end that has fewer edges (Xie et al., Distributed power-law graph computing, 2014):
        the many edges of a hub go to many parts, and those of a vertex with few go to one. "random": by a hash of
        both ends. "hybrid": by a hash of the vertex where the edge ends, unless more than `high_degree` edges end
        there; then by that of the other (Chen et al., PowerLyra, 2015).
    """
    import numpy as np

    edges = _checked(edges)
    if type(parts) is not int or not 1 <= parts <= 1 << 20:
        raise InvalidArgument(f"parts={parts!r} is not a number of parts from 1 to {1 << 20}")
    if how not in _HOWS:
        raise InvalidArgument(f"how={how!r} is none of {', '.join(_HOWS)}")
    part = np.empty(len(edges), np.int64)
    if how == "random":
        for piece, here in _pieces(edges):
            first, second = (piece[:, i].astype(np.uint64) for i in (0, 1))
            part[here] = (_mix(_mix(first) ^ second) % parts).astype(np.int64)
        return part
    vertices, counts = _degrees(edges if how == "dbh" else edges[:, 1])
    for piece, here in _pieces(edges):
        first, second = piece[:, 0], piece[:, 1]
        if how == "dbh":
            by_second = _counts_of(second, vertices, counts) < _counts_of(first, vertices, counts)
        else:
            by_second = _counts_of(second, vertices, counts) <= high_degree
        decides = np.where(by_second, second, first)
        part[here] = (_mix(decides.astype(np.uint64)) % parts).astype(np.int64)
    return part


def replicas(edges: Any, part: Any) -> float:
    """At how many parts a vertex is, in the mean over all vertices."""
    import numpy as np

    edges = _checked(edges)
    part = np.asarray(part)
    if part.shape != (len(edges),):
        raise InvalidArgument(f"parts of shape {part.shape} for {len(edges)} edges: one each")
    vertices, inverse = np.unique(edges, return_inverse=True)
    if not len(vertices):
        return 0.0
    parts = int(part.max()) + 1
    pairs = np.unique(inverse.reshape(-1, 2).astype(np.int64) * parts + part[:, None])
    return len(pairs) / len(vertices)


def expected_replicas(edges: Any, parts: int) -> float:
    """What replicas() of cut(how="dbh") is to be expected, over all hashes: of a vertex with h edges that their other
    ends decide, and g that it decides itself, parts (1 - (1 - 1 / parts)^(h + [g > 0]))."""
    import numpy as np

    edges = _checked(edges)
    vertices, counts = _degrees(edges)
    if not len(vertices):
        return 0.0
    own, others = np.zeros(len(vertices), np.int64), np.zeros(len(vertices), np.int64)
    for piece, _ in _pieces(edges):
        first, second = (np.searchsorted(vertices, piece[:, i]) for i in (0, 1))
        by_second = counts[second] < counts[first]
        decides, follows = np.where(by_second, second, first), np.where(by_second, first, second)
        own += np.bincount(decides, minlength=len(vertices))
        is_other = decides != follows  # An edge from a vertex to itself is its own alone.
        # Several edges to one vertex go to one part, but few graphs have them.
        others += np.bincount(follows[is_other], minlength=len(vertices))
    draws = others + (own > 0)
    return float(np.mean(parts * (1 - (1 - 1 / parts) ** draws)))


class VertexSums:
    """Sums, over all workers, of what each has for the vertices of its edges. Collective to make.

    width: numbers a vertex, 1 to 1024. push, pull: codecs of rows (docs/rows.md).
    """

    def __init__(
        self,
        width: int = 1,
        name: str = "vertices",
        *,
        push: str = "none",
        pull: str = "none",
        worker: Worker | None = None,
    ) -> None:
        self._worker = worker or default_worker()
        self._width = width
        table = Table(name, width, rule="mean", push=push, pull=pull)
        self._owner = weakref.ref(self)
        (self._table,) = self._worker.declare_tables([table], owner=self._owner)

    def add(self, vertices: Any, values: Any) -> Any:
        """float32[n, width]: of each of these vertices, which are different ones, the sum of all workers' values.
        Every worker calls it equally often."""
        import numpy as np

        ids = np.ascontiguousarray(vertices).astype(np.int64, copy=False)
        rows = np.ascontiguousarray(values, np.float32).reshape(-1, self._width)
        if ids.shape != (len(rows),):
            raise InvalidArgument(f"{ids.shape} vertices and {len(rows)} rows of values: one row each")
        out = np.zeros_like(rows)
        count = len(ids)  # One that has none takes part all the same.
        address = ids.ctypes.data if count else None
        call = Rows(
            self._table, address, count, rows.ctypes.data, address, count, out.ctypes.data, keep=(ids, rows, out)
        )
        self._worker.wait(self._worker.push_rows([call]))
        return out * np.float32(self._worker.sharers)

    def close(self) -> None:
        """Frees the name."""
        self._worker.disown(self._owner)


def _checked(edges: Any) -> Any:
    import numpy as np

    edges = np.asarray(edges)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        raise InvalidArgument(
            f"edges of {edges.dtype}, shape {edges.shape}: they are an integer array of shape [m, 2]"
        )
    return edges


def _pieces(edges: Any) -> Iterator[tuple[Any, slice]]:
    for first in range(0, len(edges), _PIECE):
        here = slice(first, first + _PIECE)
        yield edges[here], here


def _degrees(ends: Any) -> tuple[Any, Any]:
    """(vertices, rising, how often each is there)"""
    import numpy as np

    return np.unique(ends, return_counts=True)


def _counts_of(ends: Any, vertices: Any, counts: Any) -> Any:
    """How often each of these is among the counted; 0 where it is not."""
    import numpy as np

    place = np.minimum(np.searchsorted(vertices, ends), len(vertices) - 1)
    return np.where(vertices[place] == ends, counts[place], 0)


def _mix(x: Any) -> Any:
    """splitmix64's finaliser of uint64, as servers mix ids of rows."""
    import numpy as np

    x = x ^ (x >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

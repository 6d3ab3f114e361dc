"""Matrices of which processes hold parts, brought together for what needs them whole, and divided again."""

from __future__ import annotations

from typing import Callable, Iterable, Sequence

import torch
import torch.distributed as dist

from .shards import LocalPart, is_shard, joined_to, layout_of

Compute = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def of_whole_matrices(
    params: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], compute: Compute, are_stacks: bool = False
) -> list[torch.Tensor]:
    """compute() of whole matrices, one for each of `params` and of its shape. Where a parameter is a DTensor, its entry of
    `parts` is what this process holds, and so is that of the result. compute() returns tensors of the shapes that it gets.

    A matrix that is divided along one dimension of its mesh is sent to one of the processes that share it, computed there
    alone and sent back, in two calls for all such matrices: (P - 1) / P of its bytes each way. One that is divided
    along more of them is gathered, and computed, in all.

    are_stacks: the matrices are the last two dimensions of each parameter. Where only others are divided, every process has whole
    matrices, and nothing is sent: compute() gets what the process holds.

    Collective among the processes of each mesh, which all give the same parameters in the same order. Not thread-safe.
    """
    exchanges: dict[tuple[object, torch.dtype], _Exchange] = {}
    wholes: dict[int, torch.Tensor] = {}
    for index, (param, part) in enumerate(zip(params, parts)):
        divided = _divided(param, are_stacks)
        if not divided:
            wholes[index] = part
        elif divided == [None]:
            wholes[index] = joined_to(LocalPart(part, layout_of(param)), param).full_tensor()
        else:
            (mesh_dimension,) = divided
            group = param.device_mesh.get_group(mesh_dimension)
            device = torch.device(param.device_mesh.device_type)
            exchange = exchanges.setdefault((group, part.dtype), _Exchange(group, part.dtype, device))
            exchange.add(index, param.shape, param.placements[mesh_dimension].dim)
    for exchange in exchanges.values():
        wholes.update(exchange.bring_together(parts))
    order = sorted(wholes)
    computed = dict(zip(order, compute([wholes[index] for index in order])))
    results: dict[int, torch.Tensor] = {}
    for exchange in exchanges.values():
        results.update(exchange.give_back(computed, parts))
    for index, param in enumerate(params):
        if index not in results:
            is_gathered = bool(_divided(param, are_stacks))
            results[index] = _own_part(computed[index], param) if is_gathered else computed[index]
    return [results[index] for index in range(len(params))]


def _divided(param, is_stack):
    """The dimension of its mesh along which a tensor's matrices are divided, in a list; [] where they are not, and [None]
    where they are divided otherwise than torch.chunk() does along one."""
    if not is_shard(param):
        return []
    dimensions = [
        dimension
        for dimension, (placement, size) in enumerate(zip(param.placements, param.device_mesh.shape))
        if size > 1 and not placement.is_replicate()
    ]
    if is_stack and all(param.placements[dimension].dim < param.ndim - 2 for dimension in dimensions):
        return []
    is_plain = all(type(param.placements[dimension]).__name__ == "Shard" for dimension in dimensions)
    return dimensions if is_plain and len(dimensions) <= 1 else [None]


def _own_part(whole, param):
    """What this process holds of a tensor that all have whole and that is divided as `param`."""
    from torch.distributed.tensor import Replicate

    mesh = param.device_mesh
    everywhere = type(param).from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=param.placements).to_local()


class _Exchange:
    """The matrices of one type that are divided among one group. Each is owned by one of its processes."""

    def __init__(self, group, dtype, device):
        self._group = group
        self._size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._dtype, self._device = dtype, device
        self._matrices = []  # (index, shape, the dimension that is divided)

    def add(self, index, shape, dimension):
        self._matrices.append((index, tuple(shape), dimension))

    def bring_together(self, parts):
        """{index: whole matrix} of those that this process owns."""
        self._owned_by = self._divide_work()
        own = self._owned_by[self._rank]
        came = self._exchange(
            [[parts[index] for index, _, _ in matrices] for matrices in self._owned_by],
            [[self._shape_of(matrix, rank) for matrix in own] for rank in range(self._size)],
        )
        return {
            index: torch.cat([from_rank[place] for from_rank in came], dim=dimension)
            for place, (index, _, dimension) in enumerate(own)
        }

    def give_back(self, computed, parts):
        """{index: part} of all matrices, once those that this process owns are computed."""
        own = self._owned_by[self._rank]
        cut = [self._cut(computed[index], dimension) for index, _, dimension in own]
        came = self._exchange(
            [[of_matrix[rank] for of_matrix in cut] for rank in range(self._size)],
            [[self._shape_of(matrix, self._rank) for matrix in matrices] for matrices in self._owned_by],
        )
        return {
            index: part.to(parts[index].device)
            for matrices, from_owner in zip(self._owned_by, came)
            for (index, _, _), part in zip(matrices, from_owner)
        }

    def _divide_work(self):
        """The matrices of each process, the most work first to who has least; alike in all of them."""

        def work(matrix):
            rows, columns = matrix[1][0], torch.Size(matrix[1][1:]).numel()
            return min(rows, columns) * rows * columns

        owned_by, loads = [[] for _ in range(self._size)], [0] * self._size
        for matrix in sorted(self._matrices, key=work, reverse=True):
            owner = loads.index(min(loads))
            owned_by[owner].append(matrix)
            loads[owner] += work(matrix)
        return owned_by

    def _bounds(self, elements, rank):
        """Where torch.chunk() begins and ends a process's part of so many."""
        most = -(-elements // self._size)
        return min(rank * most, elements), min((rank + 1) * most, elements)

    def _shape_of(self, matrix, rank):
        _, shape, dimension = matrix
        begin, end = self._bounds(shape[dimension], rank)
        return (*shape[:dimension], end - begin, *shape[dimension + 1 :])

    def _cut(self, whole, dimension):
        return [
            whole.narrow(dimension, begin, end - begin)
            for begin, end in (self._bounds(whole.shape[dimension], rank) for rank in range(self._size))
        ]

    def _exchange(self, to_each: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Iterable[tuple[int, ...]]]):
        """Sends a list of tensors to each process; returns those of these shapes that each has sent."""
        counts = [sum(tensor.numel() for tensor in tensors) for tensors in to_each]
        flat = [tensor.reshape(-1) for tensors in to_each for tensor in tensors]
        sent = torch.cat(flat) if flat else torch.empty(0, dtype=self._dtype, device=self._device)
        sent = sent.to(self._device)
        expected = [[torch.Size(shape) for shape in of_rank] for of_rank in shapes]
        sizes = [sum(shape.numel() for shape in of_rank) for of_rank in expected]
        received = torch.empty(sum(sizes), dtype=self._dtype, device=self._device)
        dist.all_to_all_single(received, sent, sizes, counts, group=self._group)
        pieces = received.split([shape.numel() for of_rank in expected for shape in of_rank])
        remaining = iter(pieces)
        return [[next(remaining).view(shape) for shape in of_rank] for of_rank in expected]

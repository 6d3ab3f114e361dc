"""Parameters of which each process of a LocalGroup exchanges slices."""

from dataclasses import dataclass

import torch

from .. import _native
from ..calls import Declaration
from .parameters import Member, ParameterSet

# A tensor of fewer bytes is owned whole: its slices would be too small to be worth a frame, or a codec.
_WHOLE_BYTES = 64 << 10


@dataclass(frozen=True, eq=False)
class Slice(Member):
    """Elements `begin` to `begin + elements` of a parameter, which one member of each group owns."""

    owner: int = 0  # rank within the group
    begin: int = 0
    is_own: bool = False

    @property
    def shape(self):
        return (self.elements,)

    @property
    def memories(self):
        return super().memories if self.is_own else []


class SlicedParameterSet(ParameterSet):
    """Parameters of which each member of a LocalGroup exchanges slices."""

    def __init__(self, *arguments, group, **options):
        super().__init__(*arguments, **options)
        self.group = group
        self.group_size = group.size
        self._slices = {}  # by the parameter's name
        self._whole_bytes = [0] * group.size  # of tensors that a member owns whole

    @property
    def declared(self):
        return [one for slices in self._slices.values() for one in slices]

    def slices_of(self, member):
        """In the order of their elements, without gaps."""
        return self._slices[member.name]

    def _declare(self, named, terms):
        members = super()._members(named, terms, [None] * len(named))
        # What is added up is kept as exact as what servers add up.
        wide = {m.name: m.dtype if m.dtype == torch.float64 else torch.float32 for m in members}
        cuts = {m.name: self._cut(m.elements, wide[m.name].itemsize) for m in members}
        declarations = [
            Declaration(
                name=_name_of(self.prefix + m.name, owner),
                elements=elements,
                dtype=_native.FLOAT64 if wide[m.name] == torch.float64 else _native.FLOAT32,
                push=m.options.push,
                pull=m.options.pull,
                warmup=m.options.warmup,
                momentum=m.options.momentum,
                fuse=True,
                # What shares a frame has one weight in each worker, and so one owner.
                group=m.terms.group * self.group.size + owner,
                rule=m.terms.rule,
            )
            for m in members
            for owner, _, elements in cuts[m.name]
        ]
        numbers = iter(self.worker.declare(declarations, owner=self.reference))
        for m in members:
            self._slices[m.name] = [
                Slice(
                    name=_name_of(m.name, owner),
                    param=m.param,
                    tensor=next(numbers),
                    priority=m.priority,
                    options=m.options,
                    terms=m.terms,
                    dtype=wide[m.name],
                    elements=elements,
                    owner=owner,
                    begin=begin,
                    is_own=owner == self.group.rank,
                )
                for owner, begin, elements in cuts[m.name]
            ]
        return members

    def _cut(self, elements, element_bytes):
        """[(owner, first element, elements)] of one tensor."""
        size = self.group.size
        if elements * element_bytes < max(_WHOLE_BYTES, size * element_bytes):
            owner = self._whole_bytes.index(min(self._whole_bytes))
            self._whole_bytes[owner] += elements * element_bytes
            return [(owner, 0, elements)]
        ends = [elements * (r + 1) // size for r in range(size)]
        return [(r, begin, end - begin) for r, (begin, end) in enumerate(zip([0, *ends], ends))]

    def release(self):
        super().release()
        self.group.release()


def _name_of(name, owner):
    return f"{name}/slice {owner}"

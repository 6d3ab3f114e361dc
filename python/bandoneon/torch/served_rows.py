"""Modules whose rows servers hold: what a module keeps between a forward pass and the step after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import FailedPrecondition, InvalidArgument
from .torch_internals import call_between_graphs

__all__ = ["Embedding", "EmbeddingBag"]

_INITS = ("zeros", "constant", "uniform", "normal")


class ServedModule(nn.Module):
    """The base of both modules. Its rows are at the servers alone, so that it has neither parameters nor a state_dict().
    A copy of it looks up the same rows. requires_grad_(False) freezes it, called on the module itself: a model's own
    reaches parameters alone."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None,
        init: str,
        init_value: float,
        expect_rows: int,
        device: Any,
        dtype: torch.dtype | None,
        weight: torch.Tensor | None,
    ) -> None:
        super().__init__()
        if not isinstance(embedding_dim, int) or not 1 <= embedding_dim <= 1024:
            raise InvalidArgument(f"embedding_dim={embedding_dim!r}: a row has 1 to 1024 elements")
        if num_embeddings is not None and num_embeddings < 1:
            raise InvalidArgument(f"num_embeddings={num_embeddings!r} is neither None, for any id, nor 1 or more")
        if init not in _INITS:
            raise InvalidArgument(f"init={init!r} is none of {', '.join(_INITS)}")
        if padding_idx is not None and num_embeddings is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise InvalidArgument(f"padding_idx={padding_idx} is not within num_embeddings={num_embeddings}")
            padding_idx %= num_embeddings
        if weight is not None:
            if num_embeddings is None:
                raise InvalidArgument(
                    "first values that are given belong to ids from 0 on, and num_embeddings=None takes any id: give "
                    "num_embeddings, or an init= without values"
                )
            if tuple(weight.shape) != (num_embeddings, embedding_dim):
                raise InvalidArgument(
                    f"first values of shape {tuple(weight.shape)} for a table of {(num_embeddings, embedding_dim)}"
                )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.init = init
        self.init_value = float(init_value)
        self.expect_rows = expect_rows
        self.row_dtype = dtype or torch.get_default_dtype()
        self._device = torch.device(device) if device is not None else None
        self._weight = weight  # until the servers have it
        self._has_first_values = weight is not None
        self._is_trained = True
        self._table: Any = None  # of the RowOptimizer that steps it

    def _apply(self, function: Any, recurse: bool = True) -> ServedModule:
        """As .to(): there is no parameter to be moved, so that a probe tells where the rows are to be."""
        probe = function(torch.empty(0, dtype=self.row_dtype, device=self._device))
        self._device = probe.device
        self.row_dtype = probe.dtype
        return super()._apply(function)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Says whether passes from now on have gradients of rows."""
        self._is_trained = requires_grad
        return super().requires_grad_(requires_grad)

    def _rows_of(self, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """(indices into the rows, the rows, the index of the padding among them)"""
        if self._table is None:
            raise FailedPrecondition(
                "the rows of this module are at no server yet: make the RowOptimizer that steps it first"
            )
        table = self._table
        if torch.jit.is_tracing() or getattr(torch.compiler, "is_exporting", bool)():
            raise FailedPrecondition(
                f"table {table.name!r}: a trace would keep the rows of this batch alone: put an nn.Embedding in its "
                "place, with the rows that `bandoneon rows export` writes"
            )
        if self.row_dtype == torch.float64:
            raise InvalidArgument(
                f"table {table.name!r}: rows and their gradients are float32, so that those of a module of "
                "torch.float64 would be rounded: call .float() on the module, and .double() on its result"
            )
        if given.dtype not in (torch.int64, torch.int32):
            raise InvalidArgument(f"table {table.name!r}: ids of {given.dtype}: they are int64 or int32")
        unique, inverse = torch.unique(given.detach().reshape(-1).to(torch.int64), return_inverse=True)
        device = self._device or given.device
        unique = unique.cpu()
        rows = table.rows_for(unique).to(device)
        padding = None
        if self.padding_idx is not None:
            found = (unique == self.padding_idx).nonzero()
            if len(found):
                padding = int(found[0, 0])
                if not self._has_first_values:  # As torch's begins, and as it stays.
                    rows[padding] = 0
        if not len(unique):  # Neither of torch's functions takes an empty table.
            rows = rows.new_zeros((1, self.embedding_dim))
        elif torch.is_grad_enabled() and self._is_trained:
            table.follow(unique, rows, padding)
        used = rows if rows.dtype == self.row_dtype else rows.to(self.row_dtype)
        return inverse.to(device).reshape(given.shape), used, padding

    def extra_repr(self) -> str:
        rows = "any id" if self.num_embeddings is None else self.num_embeddings
        return f"{rows}, {self.embedding_dim}, served{'' if self._is_trained else ', frozen'}"


class Embedding(ServedModule):
    """torch.nn.Embedding, with its rows at the servers. RowOptimizer steps it; until one is made, it cannot run.

    num_embeddings=None: ids are any int64, and rows exist once they were updated. init: the value of a row before
    its first update, "zeros", or "constant", "uniform" (from -init_value to init_value) or "normal" with the deviation
    init_value; the same in every run of one seed. expect_rows: about so many rows come to be, for placing tables.
    max_norm and scale_grad_by_freq are not there: both would change rows that a worker only reads.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        init: str = "normal",
        init_value: float | None = None,
        expect_rows: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        _weight: torch.Tensor | None = None,
    ) -> None:
        value = (1.0 if init == "normal" else 0.0) if init_value is None else init_value
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, init, value, expect_rows, device, dtype, _weight
        )

    @classmethod
    def from_pretrained(
        cls,
        embeddings: torch.Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        rows: int | str | None = "all",
        **how: Any,
    ) -> Embedding:
        """Begins with rank 0's `embeddings`, and is frozen unless freeze=False, as torch's. `rows` is for an error that
        names the cause: None, any id, has no such."""
        number = None if rows is None else len(embeddings)
        module = cls(number, embeddings.shape[1], padding_idx, _weight=embeddings.detach(), **how)
        return module.requires_grad_(not freeze)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return call_between_graphs(self._look_up, input)

    def _look_up(self, input: torch.Tensor) -> torch.Tensor:
        inverse, rows, padding = self._rows_of(input)
        return nn.functional.embedding(inverse, rows, padding)


class EmbeddingBag(ServedModule):
    """torch.nn.EmbeddingBag, with its rows at the servers: Embedding has what that means."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        init: str = "normal",
        init_value: float | None = None,
        expect_rows: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        _weight: torch.Tensor | None = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise InvalidArgument(f"mode={mode!r} is none of sum, mean and max")
        value = (1.0 if init == "normal" else 0.0) if init_value is None else init_value
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, init, value, expect_rows, device, dtype, _weight
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return call_between_graphs(self._look_up, input, offsets, per_sample_weights)

    def _look_up(
        self, input: torch.Tensor, offsets: torch.Tensor | None, per_sample_weights: torch.Tensor | None
    ) -> torch.Tensor:
        inverse, rows, padding = self._rows_of(input)
        return nn.functional.embedding_bag(
            inverse,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

"""The discrete cosine transform of a matrix's tiles."""

import math

import torch


class ChunkedDCT:
    """The orthonormal DCT-II of tiles of at most chunk x chunk elements, whose sides divide those of the matrix. A
    tensor of more dimensions is a matrix of [first, all others], a vector or a number is one row. For float32
    in the memory of the host; what goes in stays as it is, and shapes stay."""

    def __init__(self, shape, chunk):
        rows = shape[0] if len(shape) > 1 else 1
        self._columns = math.prod(shape) // max(rows, 1)
        self._by_row = _matrix(_side(rows, chunk))
        self._by_column = _matrix(_side(self._columns, chunk))

    def forward(self, x):
        return self._transform(x, self._by_row, self._by_column.mT)

    def inverse(self, coefficients):
        return self._transform(coefficients, self._by_row.mT, self._by_column)

    def _transform(self, x, left, right):
        if not x.numel():
            return x.clone()
        with torch.autocast("cpu", enabled=False):  # Which would round the products.
            tall = torch.matmul(left, x.reshape(-1, len(left), self._columns))
            return torch.matmul(tall.reshape(-1, len(right)), right).reshape(x.shape)


def _side(length, chunk):
    """The largest divisor of the length up to `chunk`; 1 of 0."""
    return next(n for n in range(min(chunk, max(length, 1)), 0, -1) if length % n == 0)


def _matrix(n):
    """float32[n, n], a row a frequency: sqrt(2 / n) cos(pi (2 i + 1) k / (2 n)), of k = 0 a root of 2 less."""
    i = torch.arange(n, dtype=torch.float64, device="cpu")
    k = i[:, None]
    matrix = torch.cos(math.pi * (2 * i + 1) * k / (2 * n)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    # Zeros of the cosine are none in binary, and their products would have signs.
    return torch.where(matrix.abs() < 1e-12, 0.0, matrix).to(torch.float32)

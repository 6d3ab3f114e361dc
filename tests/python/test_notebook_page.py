"""docs/notebooks.md: its cells, run in one process as a notebook's kernel runs them."""

import pathlib
import re

import torch

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "notebooks.md"


def value_of(cell, kernel):
    """What the last line of a cell comes to."""
    *lines, last = cell.rstrip().splitlines()
    exec("\n".join(lines), kernel)
    try:
        expression = compile(last, "cell", "eval")
    except SyntaxError:
        return exec(last, kernel)
    return eval(expression, kernel)


def test_the_cells_of_the_page_run_in_their_order():
    text = PAGE.read_text(encoding="utf-8")
    cells = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    train, compare, make, step, end = cells
    kernel = {"__name__": "__main__"}
    for _ in range(2):  # Who changes something runs a cell again.
        exec(train, kernel)
        assert value_of(compare, kernel) is True
        assert all(loss < 8 for loss, _ in kernel["results"])  # of 10 to begin with
    for _ in range(2):
        torch.manual_seed(1)
        exec(make, kernel)
        losses = [value_of(step, kernel) for _ in range(60)]
        assert losses[-1] < losses[0] / 10
        exec(end, kernel)

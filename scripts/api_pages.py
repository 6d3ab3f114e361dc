"""What scripts/docs runs: the pages of the API, into the directory that is its argument."""

import html
import importlib.metadata
import pathlib
import sys

import pdoc
import pdoc.render
import pygments
import pygments.formatters
import pygments.lexers

HEADER = pathlib.Path(__file__).resolve().parents[1] / "worker" / "c_api" / "bandoneon.h"
MODULES = {
    "bandoneon": "a worker of a job, whatever computes; errors; a whole job inside one process",
    "bandoneon.torch": "what a training program imports: optimizers, strategies, checkpoints",
    "bandoneon.torch.algorithms": "optimizers for compressed links, and the outer steps of LocalSteps",
    "bandoneon.torch.app_state": "a whole training for torch.distributed.checkpoint",
    "bandoneon.torch.comm_state": "what links remember, for torch.distributed.checkpoint",
    "bandoneon.torch.exchange": "single tensors",
    "bandoneon.torch.expand": "transformers that grow",
    "bandoneon.torch.sharded": "groups of ranks, and models that are sharded inside an island",
    "bandoneon.torch.named_recipes": "compositions that have a name",
    "bandoneon.torch.rows": "embedding tables that servers hold",
    "bandoneon.graph": "cuts of graphs, and sums over their vertices",
    "bandoneon.metrics": "a worker's counters for Prometheus",
    "bandoneon.trace": "names for what a program does, in a job's recording",
    "bandoneon.micro_batches": "batches of sequences of unequal length",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Bandoneon {version}</title>
<style>body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 45rem; margin: 3rem auto; padding: 0 1rem }}</style></head>
<body><h1>Bandoneon {version}</h1>
<ul>
{rows}
</ul></body></html>
"""


def row(link: str, name: str, text: str) -> str:
    return f'<li><a href="{link}"><code>{html.escape(name)}</code></a>: {html.escape(text)}</li>'


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    version = importlib.metadata.version("bandoneon")
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text=f"Bandoneon {version}")
    of_first = {"bandoneon.metrics", "bandoneon.micro_batches", "bandoneon.trace"}  # The page of bandoneon brings these.
    pdoc.pdoc(*(name for name in MODULES if name not in of_first), output_directory=out)
    formatter = pygments.formatters.HtmlFormatter(full=True, title=HEADER.name, linenos="inline", lineanchors="line")
    text = HEADER.read_text(encoding="utf-8")
    (out / "c_api.html").write_text(pygments.highlight(text, pygments.lexers.CLexer(), formatter), encoding="utf-8")
    rows = [row(name.replace(".", "/") + ".html", name, text) for name, text in MODULES.items()]
    rows.append(row("c_api.html", HEADER.name, "the C99 interface, for other languages"))
    # In place of pdoc's, which knows of the first package alone.
    (out / "index.html").write_text(PAGE.format(version=version, rows="\n".join(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The pictures, from summaries of records."""

import math
from dataclasses import dataclass

from .report import frontier

# Told apart by the colour-blind as well (Paul Tol's bright and muted schemes); black is for baselines.
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#aa3377",
    "#ccbb44",
    "#66ccee",
    "#882255",
    "#999933",
    "#dd7711",
    "#777777",
)
DASHES = ("-", "--", ":", "-.")
WORST_LOSS_DRAWN = 3.6


def draw_by_steps(summaries, path):
    """Loss against steps: a panel a group, its baselines in black."""
    pyplot = _pyplot()
    drawn = {name: s for name, s in summaries.items() if s.by_seed}
    groups = list(dict.fromkeys(s.method.group for s in drawn.values()))
    columns = min(2, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(7.5 * columns, 4.2 * rows), dpi=110, sharey=True, squeeze=False
    )
    for axes in panels.flat[len(groups) :]:
        axes.set_visible(False)
    for group, axes in zip(groups, panels.flat):
        members = [s for s in drawn.values() if s.method.group == group]
        wanted = dict.fromkeys(s.method.baseline for s in members)
        baselines = [drawn[b] for b in wanted if b in drawn]
        members = [s for s in members if s not in baselines]
        for i, summary in enumerate(baselines):
            _line(axes, summary, 0, color="black", ls=DASHES[i % len(DASHES)], label=summary.method.name)
        for i, summary in enumerate(members):
            style = dict(color=COLOURS[i % len(COLOURS)], ls=DASHES[i // len(COLOURS) % len(DASHES)])
            _line(axes, summary, 0, **style, label=summary.method.name)
        axes.set_title(group, fontsize=11)
        axes.set_xlabel("steps")
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
        _plain(axes, drawn.values())
    for axes in panels[:, 0]:
        axes.set_ylabel("held-out loss, nats a byte")
    figure.tight_layout()
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def draw_by_bytes(summaries, path):
    """Loss against bytes, all methods in one picture, a panel a scale: a colour a group, a number a
    method."""
    pyplot = _pyplot()
    panels = {}
    for number, summary in enumerate((s for s in summaries.values() if s.by_seed), 1):
        panels.setdefault(summary.scale, {})[number] = summary
    heights = [max(6.0, 0.17 * (len(drawn) + 14)) for drawn in panels.values()]
    figure, rows = pyplot.subplots(
        len(panels), figsize=(14, sum(heights)), dpi=110, height_ratios=heights, squeeze=False
    )
    for axes, (scale, drawn) in zip(rows.flat, panels.items()):
        axes.set_title(f"GPT of {scale}", fontsize=11)
        _plain(axes, drawn.values())
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("MB pushed and pulled by one worker")
        axes.set_ylabel("held-out loss, nats a byte")
    figure.tight_layout(rect=(0, 0, 0.74, 1))
    for axes, drawn in zip(rows.flat, panels.values()):
        _draw_panel(figure, axes, drawn)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def draw_frontier(summaries, path):
    """Loss against bytes where most methods were tried: those at the frontier by name, all others grey."""
    by_scale = {}
    for summary in summaries.values():
        if summary.by_seed:
            by_scale.setdefault(summary.scale, []).append(summary)
    scale, drawn = max(by_scale.items(), key=lambda item: len(item[1]))
    title = f"GPT of {scale}; grey: what others beat in both, squares: dense"
    _draw_named(drawn, frontier(drawn), title, path)


@dataclass(frozen=True)
class Question:
    """What a picture of few named curves answers, among all of their length and model."""

    file: str
    asks: str
    names: tuple


def _muon(*what, after=""):
    return tuple(f"Muon, {each}{after}" for each in what)


QUESTIONS = (
    Question(
        "gradients_or_updates",
        "Gradients, or what was moved? One bit of each",
        ("AdamW, fp32", "Muon, fp32", "onebit(64)", "1-bit Adam", "Muon, onebit(64)", "EF21, Muon, onebit(64)")
        + ("AdamW, tau = 4, onebit(64)", *_muon("tau = 4, onebit(64)")),
    ),
    Question(
        "how_rarely",
        "How rarely may workers meet? Muon, two bits both ways",
        ("AdamW, fp32", *_muon("fp32", *(f"tau = {tau}, twobit(64)" for tau in (1, 2, 4, 8, 12, 16, 24)))),
    ),
    Question(
        "how_few_bits",
        "How few bits? Muon, every 8 steps",
        ("AdamW, fp32", *_muon("fp32", *(f"tau = 8, {codec}" for codec in ("fp32", "int4", "twobit(64)", "onebit(64)")))),
    ),
    Question(
        "other_ways",
        "Other ways to a hundred times fewer bytes",
        ("AdamW, fp32", "DeMo, 1/32", "Lion, sign", "EF21, Muon, onebit(64)", "SparseLoCo, AdamW, tau = 4, 3 %")
        + _muon("fp32", "tau = 8, twobit(64)", "growing tau, twobit(64)")
        + ("SparseLoCo, Muon, tau = 4, 3 %",),
    ),
    Question(
        "long_run",
        "And in 12,000 steps?",
        ("AdamW, fp32, 12,000 steps", "averaging, int4")
        + _muon("fp32", "tau = 4, int4", "tau = 8, twobit(64)", "tau = 16, onebit(64)", after=", 12,000 steps"),
    ),
    Question(
        "larger",
        "And a model ten times as large?",
        ("AdamW, fp32, larger", *_muon("fp32", "tau = 8, twobit(64)", "tau = 16, onebit(64)", after=", larger")),
    ),
)


def draw_questions(summaries, directory):
    """A picture a question, of those of its methods that were run; none where that is no two."""
    for question in QUESTIONS:
        named = [summaries[name] for name in question.names if name in summaries and summaries[name].by_seed]
        if len(named) < 2:
            continue
        named.sort(key=lambda summary: -summary.megabytes)
        first = named[0]
        alike = [s for s in summaries.values() if s.by_seed and (s.scale, s.steps) == (first.scale, first.steps)]
        title = f"{question.asks}\nGPT of {first.scale}, {first.steps} steps; grey: all others"
        _draw_named(alike, named, title, directory / f"{question.file}.png")


def _draw_named(drawn, named, title, path):
    """Those that are named in colours, with the frontier of all."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(9, 4.8), dpi=100)
    for summary in drawn:
        if summary not in named:
            _line(axes, summary, 1, color="#d0d0d0", lw=0.8)
            mark = dict(marker="s", ms=5, color="black") if summary.method.baseline is None else dict(marker="o", ms=3)
            axes.plot(*summary.curve[-1][1:], **{"color": "#b0b0b0", **mark})
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(named))]
    for summary, colour in zip(named, colours):
        _line(axes, summary, 1, color=colour, lw=1.4, alpha=0.85)
        mark = dict(marker="s", mec="black") if summary.method.baseline is None else dict(marker="o")
        axes.plot(*summary.curve[-1][1:], ms=6, color=colour, **mark)
    best = frontier(drawn)
    axes.plot([s.megabytes for s in best], [s.loss for s in best], color="black", lw=1.6, ls=":", label="the frontier")
    _plain(axes, drawn)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("MB pushed and pulled by one worker, whole run")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.set_title(title, fontsize=10)
    for i, (summary, colour) in enumerate(zip(named, colours)):
        text = f"{summary.loss:.3f}, {_short(summary.megabytes)} MB: {summary.method.name}"
        style = dict(fontsize=8.5, color=colour, va="top", transform=axes.transAxes)
        axes.text(1.02, 1 - 0.06 * i, text, weight="bold", **style)
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def _draw_panel(figure, axes, drawn):
    """{number: summary}"""
    groups = list(dict.fromkeys(s.method.group for s in drawn.values()))
    ends = []
    for number, summary in drawn.items():
        order = groups.index(summary.method.group)
        colour = "black" if summary.method.baseline is None else COLOURS[order % len(COLOURS)]
        _line(axes, summary, 1, color=colour, ls=DASHES[number % len(DASHES)], lw=1.3)
        _, moved, loss = summary.curve[-1]
        axes.plot(moved, loss, marker="o", ms=4, color=colour)
        ends.append((moved, loss, str(number), colour))
    _number_ends(figure, axes, ends)
    _list_methods(axes, drawn.values(), ends)


def _line(axes, summary, x, **style):
    curve = summary.curve[1:]
    axes.plot([p[x] for p in curve], [p[2] for p in curve], **{"lw": 1.5, **style})


def _plain(axes, drawn):
    axes.set_ylim(min(s.loss for s in drawn) - 0.08, WORST_LOSS_DRAWN)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _number_ends(figure, axes, ends):
    """Each end's number beside it, moved up where another end or number is already."""
    figure.canvas.draw()
    ends = sorted(ends, key=lambda end: end[1])
    marks = [tuple(axes.transData.transform((moved, loss))) for moved, loss, _, _ in ends]
    numbers = []
    for (x, y), (_, _, number, colour) in zip(marks, ends):
        x += 14
        while any(abs(x - a) < 10 and abs(y - b) < 8 for a, b in marks) or any(
            abs(x - a) < 17 and abs(y - b) < 12 for a, b in numbers
        ):
            y += 2
        numbers.append((x, y))
        style = dict(color=colour, fontsize=8, weight="bold", ha="center", va="center")
        axes.annotate(number, (x, y), xycoords="figure pixels", **style)


def _list_methods(axes, drawn, ends):
    """The numbers' meaning, group by group, right of the axes."""
    lines, group = [], None
    for summary, (_, _, number, colour) in zip(drawn, ends):
        if summary.method.group != group:
            group = summary.method.group
            lines += [("", colour, {})] if lines else []
            lines.append((group, colour, {"weight": "bold"}))
        text = f"{number:>2}  {summary.method.name}: {summary.loss:.3f}, {_short(summary.megabytes)} MB"
        lines.append((text, colour, {}))
    pitch = min(0.03, 1 / len(lines))
    style_of_all = dict(fontsize=8.5, va="top", transform=axes.transAxes)
    for i, (text, colour, style) in enumerate(lines):
        axes.text(1.02, 1 - i * pitch, text, color=colour, **style_of_all, **style)


def _short(value):
    """Three digits, and no exponent."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot

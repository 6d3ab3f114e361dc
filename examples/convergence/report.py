"""The tables in Markdown and the two pictures, from records alone."""

import math
import statistics
from dataclasses import dataclass

from .sweep import best_rate, loss_of
from .training import SMALL, Scale

# Two-sided 95 % points of Student's t, for 1, 2, ... degrees of freedom.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
# "Bytes to reach a fixed loss": the baseline's last loss and this much of it more.
TARGET_ABOVE_BASELINE = 0.10


@dataclass
class Summary:
    """One method at its best rate."""

    method: object
    steps: int
    lr: float
    tried: dict  # rate -> loss, of the first seed; infinite where it diverged
    by_seed: dict  # seed -> record, of those that did not diverge
    scale: Scale
    diverged: int  # runs at the best rate that did

    @property
    def loss(self):
        return statistics.fmean(r["loss"] for r in self.by_seed.values())

    @property
    def megabytes(self):
        return self.curve[-1][1]

    @property
    def curve(self):
        """[(step, MB pushed and pulled, loss)], means over the seeds."""
        curves = [r["curve"] for r in self.by_seed.values()]
        return [
            (
                points[0][0],
                statistics.fmean(p[1] + p[2] for p in points) / 1e6,
                statistics.fmean(p[3] for p in points),
            )
            for points in zip(*curves)
        ]


def summarize(method, records, first_seed):
    """None without a run of the first seed."""
    tried = {r["lr"]: loss_of(r) for r in records if r["seed"] == first_seed}
    if not tried:
        return None
    lr = best_rate(tried)
    at_best = [r for r in records if r["lr"] == lr]
    by_seed = {r["seed"]: r for r in at_best if not r["diverged"]}
    scale = Scale(**at_best[0]["scale"])
    steps = at_best[0]["steps"]
    return Summary(method, steps, lr, tried, by_seed, scale, len(at_best) - len(by_seed))


def paired_gap(summary, baseline):
    """(mean, half width of the 95 % interval) of the differences seed by seed, in % of the baseline's
    loss; (mean, None) for a single seed, None without a seed in common."""
    seeds = summary.by_seed.keys() & baseline.by_seed.keys()
    if not seeds:
        return None
    differences = [summary.by_seed[s]["loss"] - baseline.by_seed[s]["loss"] for s in seeds]
    percent = 100 / statistics.fmean(baseline.by_seed[s]["loss"] for s in seeds)
    mean = statistics.fmean(differences) * percent
    if len(differences) == 1:
        return mean, None
    t = STUDENT_T[min(len(differences) - 1, len(STUDENT_T)) - 1]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, t * error * percent


def megabytes_to(curve, target):
    """MB until the loss first is at the target, on the line between two points; None if it never is."""
    for before, after in zip(curve, curve[1:]):
        if after[2] <= target < before[2]:
            share = (before[2] - target) / (before[2] - after[2])
            return before[1] + share * (after[1] - before[1])
    return None


# ---- Tables ----

# Of the runs that Method.dense names, in this order.
DENSE_RULES = "AdamW", "Muon"

HEAD = (
    "method",
    "steps",
    "rate",
    "seeds",
    "loss",
    "gap, %",
    "MB",
    "fewer",
    "MB to target",
    "fewer",
)


def results_table(summaries):
    """The table of results, a block a group; `summaries` by name."""
    rows = ["| " + " | ".join(HEAD) + " |", "|---" + "|---:" * (len(HEAD) - 1) + "|"]
    group = None
    for summary in summaries.values():
        if summary.method.group != group:
            group = summary.method.group
            size = ", small" if summary.scale == SMALL else ""
            rows.append(f"| **{group}{size}** " + "|" * len(HEAD))
        rows.append("| " + " | ".join(_cells(summary, summaries)) + " |")
    return "\n".join(rows)


def _cells(summary, summaries):
    name = summary.method.name
    facts = [str(summary.steps), f"{summary.lr:g}", str(len(summary.by_seed))]
    if not summary.by_seed:
        return [name, *facts, "diverged", *["-"] * 5]
    if summary.diverged:
        facts[-1] += f" ({summary.diverged} diverged)"
    own = [f"{summary.loss:.4f}", "-", f"{summary.megabytes:.1f}", "-", "-", "-"]
    baseline = summaries.get(summary.method.baseline or summary.method.name)
    if baseline is None or not baseline.by_seed:
        return [name, *facts, *own]
    target = (1 + TARGET_ABOVE_BASELINE) * baseline.loss
    moved, of_baseline = megabytes_to(summary.curve, target), megabytes_to(baseline.curve, target)
    if moved is not None:
        own[4] = f"{moved:.1f}"
    if baseline is not summary:
        own[1] = _gap_text(paired_gap(summary, baseline))
        own[3] = f"{baseline.megabytes / summary.megabytes:.1f}x"
        if moved and of_baseline:
            own[5] = f"{of_baseline / moved:.1f}x"
    return [name, *facts, *own]


def dense_table(summaries):
    """What is compared with uncompressed runs of as many samples; "" without such a method."""
    head = ["method", "steps", "seeds", "MB", "fewer"]
    for rule in DENSE_RULES:
        head += [f"gap to dense {rule}, %", "MB to its last loss", "fewer"]
    rows = []
    for summary in summaries.values():
        dense = [summaries.get(name) for name in summary.method.dense]
        if summary.by_seed and dense and all(d is not None and d.by_seed for d in dense):
            rows.append(_dense_row(summary, dense))
    if not rows:
        return ""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _dense_row(summary, dense):
    row = [summary.method.name, str(summary.steps), str(len(summary.by_seed)), f"{summary.megabytes:.1f}"]
    row.append(f"{dense[0].megabytes / summary.megabytes:.0f}x")
    for baseline in dense:
        moved = megabytes_to(summary.curve, baseline.loss)
        row.append(_gap_text(paired_gap(summary, baseline)))
        row += [f"{moved:.1f}", f"{baseline.megabytes / moved:.0f}x"] if moved else ["-", "-"]
    return row


def _gap_text(gap):
    if gap is None:
        return "-"
    mean, half_width = gap
    return f"{mean:+.1f}" if half_width is None else f"{mean:+.1f} ± {half_width:.1f}"


def rates_table(summaries):
    """Loss of the first seed at every rate that was tried; the best in bold."""
    rows = ["| method | rate: loss |", "|---|---|"]
    for summary in summaries.values():
        cells = []
        for lr, loss in sorted(summary.tried.items()):
            text = "diverged" if math.isinf(loss) else f"{loss:.3f}"
            best = lr == summary.lr and math.isfinite(loss)
            cells.append(f"{lr:g}: **{text}**" if best else f"{lr:g}: {text}")
        rows.append(f"| {summary.method.name} | {', '.join(cells)} |")
    return "\n".join(rows)


LEGEND = f"""\
Loss: nats a byte on fixed held-out samples, the mean over the seeds at the rate that was best for the first seed. Gap:
the difference to the group's baseline, paired by seed, in % of the baseline's loss, ± half the 95 % interval. MB: pushed
and pulled by one worker over the whole run, warm-up, headers and dense parts included. Target: the baseline's loss
and {100 * TARGET_ABOVE_BASELINE:.0f} % more. Fewer: the baseline's bytes over the method's."""


# ---- Pictures ----

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
            style = dict(color=COLOURS[i % len(COLOURS)], ls=DASHES[i // len(COLOURS)])
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


def frontier(summaries):
    """Those that no other one beats in both bytes and loss, from the fewest bytes on."""
    best, found = math.inf, []
    for summary in sorted(summaries, key=lambda s: (s.megabytes, s.loss)):
        if summary.loss < best:
            best = summary.loss
            found.append(summary)
    return found


def draw_frontier(summaries, path):
    """Loss against bytes where most methods were tried: those at the frontier by name, all others grey."""
    pyplot = _pyplot()
    by_scale = {}
    for summary in summaries.values():
        if summary.by_seed:
            by_scale.setdefault(summary.scale, []).append(summary)
    scale, drawn = max(by_scale.items(), key=lambda item: len(item[1]))
    named = frontier(drawn)
    dense = [s for s in drawn if s.method.baseline is None and s not in named]
    figure, axes = pyplot.subplots(figsize=(9, 4.8), dpi=100)
    for summary in drawn:
        if summary not in named:
            _line(axes, summary, 1, color="#d0d0d0", lw=0.8)
            axes.plot(*summary.curve[-1][1:], marker="o", ms=3, color="#b0b0b0")
    for i, summary in enumerate(named):
        _line(axes, summary, 1, color=COLOURS[i % len(COLOURS)], lw=1.2, alpha=0.8)
        axes.plot(*summary.curve[-1][1:], marker="o", ms=6, color=COLOURS[i % len(COLOURS)])
    axes.plot([s.megabytes for s in named], [s.loss for s in named], color="black", lw=1.2, ls=":", label="the frontier")
    for summary in dense:
        axes.plot(*summary.curve[-1][1:], marker="s", ms=5, color="black")
    _plain(axes, drawn)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("MB pushed and pulled by one worker, whole run")
    axes.set_ylabel("held-out loss, nats a byte")
    axes.set_title(f"GPT of {scale}; grey: what others beat in both, squares: dense", fontsize=10)
    key = [f"{summary.loss:.3f}, {_short(summary.megabytes)} MB: {summary.method.name}" for summary in named]
    for i, (text, summary) in enumerate(zip(key, named)):
        style = dict(fontsize=8.5, color=COLOURS[i % len(COLOURS)], va="top", transform=axes.transAxes)
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

"""The tables in Markdown, from records alone."""

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


ALIKE = 1.01  # Bytes, so near to each other.


def frontier(summaries):
    """Those that no other one beats in both bytes and loss, from the fewest bytes on. What a method says beside
    its codes is no merit: within ALIKE bytes are the same."""
    found = []
    for summary in sorted(summaries, key=lambda s: (s.megabytes, s.loss)):
        if found and summary.loss >= found[-1].loss:
            continue
        while found and summary.megabytes <= ALIKE * found[-1].megabytes:
            found.pop()
        found.append(summary)
    return found


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

"""What this process's worker counts, for Prometheus.

    bandoneon.metrics.text()                                        # what a page of your own answers with
    prometheus_client.REGISTRY.register(bandoneon.metrics.collector())   # or beside your own metrics

Names are those that `bandoneon-worker` serves at metrics-listen. A worker without that daemon has no address of its own: a
training program has a page already, or none.
"""

import math
from typing import NamedTuple

from . import session


class _Family(NamedTuple):
    name: str
    kind: str  # "counter" or "gauge"; of stage_seconds "summary"
    help: str
    label: str = ""


_STAGE_SECONDS = _Family("stage_seconds", "summary", "that items took in a stage, one after the other", "stage")
_STAGE_BYTES = _Family("stage_bytes", "counter", "of the items that passed through a stage", "stage")
_STAGE_CPU = _Family("stage_cpu_seconds", "counter", "of the threads that worked on a stage's items", "stage")
_TRAFFIC = _Family("traffic_bytes", "counter", "to and from the servers, with headers", "direction")
_FRAMES = _Family("frames", "counter", "to and from the servers", "direction")
_REFUSALS = _Family("refusals", "counter", "frames that came to nothing", "reason")
_HOST = _Family(
    "host_copied_bytes", "counter", "copied for the daemon to read, and of results out of its memory", "direction"
)
_DEVICE = _Family(
    "device_copied_bytes", "counter", "copied from devices, to be pushed, and of results to them", "direction"
)
# By the names in the groups of "quality".
_QUALITY = {
    "residual_ratio": "norm of what a link owes over that of what its codec was given: the largest of these tensors'",
    "decoded_cosine": "of what a link's codec was given and what arrives: the smallest of these tensors'",
    "owed_steps": "as many steps' input as a link owes: the largest of these tensors'",
    "nonfinite_share": "of these tensors' encodings, those whose input was not finite",
}
_GUARDED = _Family(
    "guarded_tensors", "gauge", "tensors whose residual grew: warned of, or uncompressed since", "guard"
)
# By the names of Worker.stats(): the family, and the value of its label.
_FAMILIES = {
    "bytes_pushed": (_TRAFFIC, "push"),
    "bytes_pulled": (_TRAFFIC, "pull"),
    "frames_sent": (_FRAMES, "push"),
    "frames_received": (_FRAMES, "pull"),
    "frames_malformed": (_REFUSALS, "malformed"),
    "frames_dropped": (_REFUSALS, "unasked"),
    "bytes_staged": (_HOST, "push"),
    "bytes_results": (_HOST, "pull"),
    "device_bytes_out": (_DEVICE, "push"),
    "device_bytes_back": (_DEVICE, "pull"),
}
_GAUGES = {
    "rank": "of this worker",
    "size": "workers of the job",
    "step": "the highest step that ended here",
    "tensors": "declared, broadcasts included",
    "device_pinned_bytes": "of memory that devices copy from and to",
    "device_memory_bytes": "of devices' own memory, which exchanges have taken",
}


class Sample(NamedTuple):
    """One number: `name` is a family's, with _total, _count or _sum where its kind has that."""

    name: str
    labels: dict
    value: float


def families(stats):
    """[(name, kind, help, [Sample, ...])] of Worker.stats()."""
    found = {}

    def add(family, label_value, value, ending=""):
        samples = found.setdefault(family, [])
        labels = {family.label: label_value} if family.label else {}
        samples.append(Sample(f"bandoneon_worker_{family.name}{ending}", labels, value))

    for name, value in stats.items():
        if name == "stages":
            for stage, counted in value.items():
                add(_STAGE_SECONDS, stage, counted["items"], "_count")
                add(_STAGE_SECONDS, stage, counted["wall_ns"] * 1e-9, "_sum")
                add(_STAGE_BYTES, stage, counted["bytes"], "_total")
                add(_STAGE_CPU, stage, counted["cpu_ns"] * 1e-9, "_total")
        elif name == "quality":
            for group, figures in value["groups"].items():
                for figure in _QUALITY.keys() & figures.keys():
                    number = math.nan if figures[figure] is None else figures[figure]
                    add(_Family(figure, "gauge", _QUALITY[figure], "tensors"), group, number)
            guards = [figures["guard"] for figures in value["tensors"].values() if "guard" in figures]
            for guard in sorted(set(guards)):
                add(_GUARDED, guard, guards.count(guard))
        elif name in _FAMILIES:
            add(*_FAMILIES[name], value, "_total")
        elif name in _GAUGES:
            add(_Family(name, "gauge", _GAUGES[name]), "", value)
        else:
            add(_Family(name, "counter", name.replace("_", " ")), "", value, "_total")
    return [(f"bandoneon_worker_{family.name}", family.kind, family.help, samples) for family, samples in found.items()]


def text(worker=None):
    """The numbers of a worker in Prometheus' text format, version 0.0.4; of this process's, before init() an empty text."""
    lines = []
    for name, kind, help_text, samples in _read(worker):
        shown = name + "_total" if kind == "counter" else name
        lines += [f"# HELP {shown} {help_text}", f"# TYPE {shown} {kind}"]
        for sample in samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            lines.append(f"{sample.name}{{{labels}}} {sample.value!r}" if labels else f"{sample.name} {sample.value!r}")
    return "".join(line + "\n" for line in lines)


def collector(worker=None):
    """The same as a collector of the package prometheus_client, which has to be installed; register it once."""
    try:
        from prometheus_client.core import Metric
    except ImportError as missing:
        raise ImportError(
            "bandoneon.metrics.collector() is for the package prometheus_client, which is not installed: "
            "pip install prometheus_client, or serve bandoneon.metrics.text()"
        ) from missing

    class Collector:
        """Asks the worker whenever it is asked; empty before init() and after shutdown()."""

        def collect(self):
            for name, kind, help_text, samples in _read(worker):
                metric = Metric(name, help_text, kind)
                for sample in samples:
                    metric.add_sample(sample.name, sample.labels, sample.value)
                yield metric

    return Collector()


def _read(worker):
    if worker is None:
        if not session.is_initialized():
            return []
        worker = session.default_worker()
    return families(worker.stats())

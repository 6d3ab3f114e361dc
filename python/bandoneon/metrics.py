"""What this process's worker counts, for Prometheus.

    bandoneon.metrics.text()                                        # what a page of your own answers with
    prometheus_client.REGISTRY.register(bandoneon.metrics.collector())   # or beside your own metrics

Names are those that `bandoneon-worker` serves at metrics-listen. A worker without that daemon has no address of its own: a
training program has a page already, or none.
"""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping, NamedTuple

from . import session
from .worker import Worker


class _Family(NamedTuple):
    name: str
    kind: str  # "counter" or "gauge"; of stage_seconds "summary"
    help: str
    label: str = ""


_STAGE_SECONDS = _Family(
    "stage_seconds", "summary", "Items have been in the stage for so long, one after the other.", "stage"
)
_STAGE_BYTES = _Family("stage_bytes", "counter", "The items of the stage have so many bytes in all.", "stage")
_STAGE_CPU = _Family(
    "stage_cpu_seconds", "counter", "Threads have used so much CPU time on the items of the stage.", "stage"
)
_TRAFFIC = _Family(
    "traffic_bytes",
    "counter",
    "So many bytes were exchanged with servers, headers included: push is to them, pull is from them.",
    "direction",
)
_FRAMES = _Family(
    "frames", "counter", "So many frames were exchanged with servers: push is to them, pull is from them.", "direction"
)
_REFUSALS = _Family("refusals", "counter", "So many frames were dropped, by reason.", "reason")
_HOST = _Family(
    "host_copied_bytes",
    "counter",
    "So many bytes were copied for the daemon to read (push), and of results out of its memory (pull).",
    "direction",
)
_DEVICE = _Family(
    "device_copied_bytes",
    "counter",
    "So many bytes were copied from devices to be pushed (push), and of results to devices (pull).",
    "direction",
)
# By the names in the groups of "quality".
_QUALITY = {
    "residual_ratio": "The norm of what a link owes is this many times the norm of what its codec was given: the largest "
    "of these tensors' last samples.",
    "decoded_cosine": "What a link's codec was given and what arrives have this cosine: the smallest of these tensors' "
    "last samples.",
    "owed_steps": "A link owes as much as so many steps bring in: the largest of these tensors' last samples.",
    "nonfinite_share": "This share of these tensors' encodings had input that was not finite.",
}
_GUARDED = _Family(
    "guarded_tensors",
    "gauge",
    "So many tensors have a residual that grew: the guard warned of them, or sends them uncompressed since.",
    "guard",
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
_COUNTERS = {
    "tickets_done": "So many exchanges of whole tensors have ended.",
    "probes_sent": "So many probes were sent because an answer was late.",
    "resends": "So many requests were sent again because a server had lost them.",
    "reconnects": "So many connections were made anew because a server was silent.",
    "keys_recovered": "So many keys of lost servers are whole again on others.",
    "pushes_repeated": "So many answered pushes were sent again, because their server was lost.",
    "device_encoded_pushes": "So many pushes were encoded on their device.",
    "device_host_encoded_pushes": "So many pushes of devices' tensors were encoded by the host's processors.",
    "device_unpinned_pushes": "So many pushes were copied through slower memory because pinned memory was lacking.",
}
_GAUGES = {
    "rank": "This worker has this rank.",
    "size": "The job has so many workers.",
    "step": "This step is the highest that has ended here.",
    "tensors": "So many tensors are declared and not retired, broadcasts included.",
    "server_connections": "So many connections to servers are open or being made.",
    "log_bytes": "So many bytes of answered pushes and of last replies are kept for a server that may be lost.",
    "snapshot_bytes": "So many bytes of snapshots of servers' keys are kept for a server that may be lost.",
    "scheduler_silence_seconds": "The scheduler has answered last so many seconds ago; it is asked at every heartbeat.",
    "device_pinned_bytes": "So many bytes of pinned memory are held for copies from and to devices.",
    "device_memory_bytes": "Exchanges have taken so many bytes of devices' own memory.",
}


class Sample(NamedTuple):
    """One number: `name` is a family's, with _total, _count or _sum where its kind has that."""

    name: str
    labels: dict[str, str]
    value: float


# (name, kind, help, samples)
Families = list[tuple[str, str, str, list[Sample]]]


def families(stats: Mapping[str, Any]) -> Families:
    """[(name, kind, help, [Sample, ...])] of Worker.stats()."""
    found: dict[_Family, list[Sample]] = {}

    def add(family: _Family, label_value: str, value: float, ending: str = "") -> None:
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
            counted = _COUNTERS.get(name, f"The worker has counted so many {name}.")
            add(_Family(name, "counter", counted), "", value, "_total")
    return [(f"bandoneon_worker_{family.name}", family.kind, family.help, samples) for family, samples in found.items()]


def text(worker: Worker | None = None) -> str:
    """The numbers of a worker in Prometheus' text format, version 0.0.4; of this process's, before init() an empty text."""
    lines = []
    for name, kind, help_text, samples in _read(worker):
        shown = name + "_total" if kind == "counter" else name
        lines += [f"# HELP {shown} {help_text}", f"# TYPE {shown} {kind}"]
        for sample in samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            lines.append(f"{sample.name}{{{labels}}} {sample.value!r}" if labels else f"{sample.name} {sample.value!r}")
    return "".join(line + "\n" for line in lines)


def collector(worker: Worker | None = None) -> Any:
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

        def collect(self) -> Iterator[Any]:
            for name, kind, help_text, samples in _read(worker):
                metric = Metric(name, help_text, kind)
                for sample in samples:
                    metric.add_sample(sample.name, sample.labels, sample.value)
                yield metric

    return Collector()


def _read(worker: Worker | None) -> Families:
    if worker is None:
        if not session.is_initialized():
            return []
        worker = session.default_worker()
    return families(worker.stats())

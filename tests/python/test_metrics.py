"""bandoneon.metrics: a worker's numbers as text, and as a collector of prometheus_client."""

import builtins
import ctypes
import pathlib
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import bandoneon
from bandoneon.calls import Declaration
from cluster_helpers import run_job


def exchange_and_tell(worker):
    data = (ctypes.c_float * 1000)()
    (tensor,) = worker.declare([Declaration("secret_name", 1000)])
    for _ in range(4):
        worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    registry = CollectorRegistry()
    registry.register(bandoneon.metrics.collector(worker))
    return bandoneon.metrics.text(worker), generate_latest(registry).decode(), worker.stats()


def by_sample(text):
    return {(sample.name, tuple(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.fixture(scope="module")
def told():
    return run_job(exchange_and_tell, workers=1)[0]


def test_the_text_is_prometheus_and_has_all_that_is_counted(told):
    text, _, stats = told
    found = by_sample(text)
    assert found["bandoneon_worker_tickets_done_total", ()] == 4
    assert found["bandoneon_worker_stage_seconds_count", (("stage", "encode"),)] == 4
    assert found["bandoneon_worker_stage_bytes_total", (("stage", "encode"),)] == 4 * 4000
    assert found["bandoneon_worker_traffic_bytes_total", (("direction", "push"),)] == stats["bytes_pushed"]
    assert len(found) == len(stats) - 1 + 4 * len(stats["stages"])
    assert "secret_name" not in text


def test_the_collector_gives_prometheus_client_the_same(told):
    text, by_client, _ = told
    ours, theirs = by_sample(text), by_sample(by_client)
    assert ours.keys() == theirs.keys()
    assert theirs["bandoneon_worker_tickets_done_total", ()] == 4


def test_kinds_and_labels_are_those_of_the_daemons_page():
    root = pathlib.Path(__file__).resolve().parents[2]
    rows = {}
    for path in ("worker/worker.cc", "worker/device/device_exchanges.cc", "worker/host/host_client.cc"):
        table = (root / path).read_text(encoding="utf-8").split("kMetrics[] = {", 1)[1].split("};", 1)[0]
        for name, kind, family, label in re.findall(
                r'\{"(\w+)",\s*(?:Metric::Kind::)?k(Counter|Gauge),\s*(?:"[^"]*"\s*)+(?:,\s*&k(\w+),\s*"(\w+)")?\}', table):
            rows[name] = (kind, family, label)
    assert len(rows) > 15
    gauges = {name for name, (kind, _, _) in rows.items() if kind == "Gauge"}
    assert gauges == set(bandoneon.metrics._GAUGES)
    labelled = {name: label for name, (_, family, label) in rows.items() if family}
    assert labelled == {name: label for name, (_, label) in bandoneon.metrics._FAMILIES.items()}


def test_there_is_nothing_before_a_process_has_joined():
    assert bandoneon.metrics.text() == ""
    assert list(bandoneon.metrics.collector().collect()) == []


def test_without_prometheus_client_the_collector_says_what_to_do(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **named):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install prometheus_client"):
        bandoneon.metrics.collector()

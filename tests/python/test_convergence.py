"""examples/convergence.py: what it runs, what it remembers, and how it judges."""

import contextlib
import dataclasses
import json
import math
import pathlib
import runpy
import sys

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from convergence import pictures, processes, report, training  # noqa: E402
from convergence.methods import METHODS, Method, Rule, distributed, named  # noqa: E402
from convergence.sweep import EXTRA_RATES, Plan, Results  # noqa: E402
from convergence.training import NORMAL, SMALL  # noqa: E402

from bandoneon._native import check_codec  # noqa: E402

SGD = Rule(torch.optim.SGD, (0.1, 0.2, 0.4, 0.8))
DENSE = Method("dense", "plain", None, SGD, distributed)
CODED = Method("coded", "coded", "dense", SGD, distributed, dict(push="int8"))


def record(lr, seed, loss, method=CODED, steps=600, bytes_each_way=1e6):
    """A run whose loss falls in two straight lines, from 5 by 3 to the end."""
    curve = [[0, 0, 0, 5.0], [steps // 2, bytes_each_way / 2, bytes_each_way / 2, 3.0]]
    curve.append([steps, bytes_each_way, bytes_each_way, loss])
    return dict(
        method=method.name,
        settings=method.describe(),
        scale=dataclasses.asdict(method.scale),
        lr=lr,
        seed=seed,
        steps=steps,
        diverged=loss is None,
        loss=loss,
        curve=curve,
        hashes=["a"],
        seconds=1.0,
    )


def follow(plan, method, loss_at):
    """The runs that the plan asks for, if the loss at a rate is loss_at(rate)."""
    records, asked = [], []
    while (wanted := plan.next_run(method, records)) is not None:
        asked.append(wanted)
        records.append(record(*wanted, loss_at(wanted[0]), method))
    return asked


# ---- The table of methods ----


def test_names_are_unique_and_baselines_are_methods():
    names = [m.name for m in METHODS]
    assert len(names) == len(set(names))
    assert {m.baseline for m in METHODS} - {None} <= set(names)
    assert {name for m in METHODS for name in m.dense} <= set(names)


def test_codecs_of_methods_are_codecs():
    specs = {method.settings[way] for method in METHODS for way in ("push", "pull") if way in method.settings}
    assert len(specs) > 20
    for spec in specs:
        check_codec(spec)


def test_a_method_has_its_baselines_steps_and_scale():
    size = {m.name: (m.steps, m.scale) for m in METHODS}
    compared = [(m.name, other) for m in METHODS for other in (m.baseline, *m.dense) if other]
    assert [pair for pair in compared if size[pair[0]] != size[pair[1]]] == []


def test_dense_runs_are_named_in_the_order_of_the_tables_columns():
    rules = {tuple(named(name).rule.optimizer.__name__ for name in m.dense) for m in METHODS}
    assert rules == {(), report.DENSE_RULES}


def test_a_question_is_asked_of_methods_of_one_length_and_model():
    for question in pictures.QUESTIONS:
        assert len({(named(name).steps, named(name).scale) for name in question.names}) == 1, question.file


def test_grids_are_four_rates_a_factor_of_two_apart():
    for method in METHODS:
        rates = method.rule.rates
        assert len(rates) >= 4, method.name
        assert all(b == 2 * a for a, b in zip(rates, rates[1:])), method.name


# ---- What is run ----


def test_the_grid_with_one_seed_then_the_other_seeds_at_the_best_rate():
    asked = follow(Plan(seeds=(1, 2, 3)), CODED, lambda lr: 2 + abs(lr - 0.2))
    assert asked == [(0.1, 1), (0.2, 1), (0.4, 1), (0.8, 1), (0.2, 2), (0.2, 3)]


def test_the_grid_grows_while_the_best_is_at_its_edge():
    upward = follow(Plan(seeds=(1, 2)), CODED, lambda lr: 2 + abs(lr - 1.6))
    assert upward[4:] == [(1.6, 1), (3.2, 1), (1.6, 2)]
    downward = follow(Plan(seeds=(1, 2)), CODED, lambda lr: 2 + lr)
    assert len(downward) == 4 + EXTRA_RATES + 1 and downward[-1] == (0.1 / 2**EXTRA_RATES, 2)


def test_a_method_that_diverges_at_every_rate_is_tried_at_smaller_ones_only():
    asked = follow(Plan(seeds=(1, 2)), CODED, lambda lr: None)
    assert asked[4:] == [(0.1 / 2**i, 1) for i in range(1, EXTRA_RATES + 1)]


def test_rates_that_are_asked_for_are_all_that_is_tried():
    asked = follow(Plan(seeds=(1, 2), rates=(0.4, 0.8)), CODED, lambda lr: 2 - lr)
    assert asked == [(0.4, 1), (0.8, 1), (0.8, 2)]


def test_quick_is_one_run():
    assert follow(Plan(seeds=(1,), quick=True), CODED, lambda lr: 2.0) == [(0.2, 1)]


# ---- What is remembered ----


def test_results_are_taken_up_from_the_file(tmp_path):
    results = Results(tmp_path / "results.json")
    results.add(CODED, record(0.1, 1, 2.0))
    results.add(CODED, record(0.2, 1, 1.9))
    again = Results(tmp_path / "results.json")
    assert [r["lr"] for r in again.of(CODED, Plan())] == [0.1, 0.2]
    assert again.grids == {"coded": list(SGD.rates)}
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_several_processes_fill_one_file(tmp_path):
    first, second = (Results(tmp_path / "results.json") for _ in range(2))
    first.add(CODED, record(0.1, 1, 2.0))
    second.add(DENSE, record(0.2, 1, 1.9, DENSE))
    assert [r["lr"] for r in second.records] == [0.1, 0.2]
    assert Results(tmp_path / "results.json").records == second.records
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]


def test_results_of_other_settings_steps_or_scale_do_not_count(tmp_path):
    results = Results(tmp_path / "results.json")
    results.add(CODED, record(0.1, 1, 2.0))
    other_codec = Method("coded", "coded", "dense", SGD, distributed, dict(push="int4"))
    other_rule = Rule(torch.optim.SGD, SGD.rates, dict(momentum=0.5))
    other_rule = Method("coded", "coded", "dense", other_rule, distributed, CODED.settings)
    small = dataclasses.replace(CODED, scale=training.SMALL)
    assert results.of(CODED, Plan(steps=300)) == results.of(CODED, Plan(quick=True)) == []
    for other in (other_codec, other_rule, small):
        assert results.of(other, Plan()) == []


# ---- How it is judged ----


def summaries_of(dense, coded):
    """From {seed: loss} at one rate."""
    by_method = {
        DENSE: [record(0.2, s, loss, DENSE, bytes_each_way=8e6) for s, loss in dense.items()],
        CODED: [record(0.2, s, loss, CODED) for s, loss in coded.items()],
    }
    return {m.name: report.summarize(m, records, 1) for m, records in by_method.items()}


def test_gaps_are_paired_by_seed():
    summaries = summaries_of({1: 2.0, 2: 2.2, 3: 1.8}, {1: 2.1, 2: 2.3, 3: 1.9, 4: 9.0})
    mean, half_width = report.paired_gap(summaries["coded"], summaries["dense"])
    assert mean == pytest.approx(5.0) and half_width == pytest.approx(0.0, abs=1e-9)


def test_the_interval_is_students():
    summaries = summaries_of({1: 2.0, 2: 2.0, 3: 2.0}, {1: 2.0, 2: 2.2, 3: 2.4})
    mean, half_width = report.paired_gap(summaries["coded"], summaries["dense"])
    assert mean == pytest.approx(10.0)
    assert half_width == pytest.approx(4.303 * 10.0 / math.sqrt(3))


def test_bytes_to_a_loss_are_read_off_the_line_between_points():
    curve = [(0, 0.0, 5.0), (300, 1.0, 3.0), (600, 2.0, 2.0)]
    assert report.megabytes_to(curve, 2.5) == pytest.approx(1.5)
    assert report.megabytes_to(curve, 1.9) is None


def test_the_table_shows_gaps_ratios_and_what_diverged():
    summaries = summaries_of({1: 2.0, 2: 2.0}, {1: 2.1, 2: None})
    dense, coded = report.results_table(summaries).splitlines()[3::2]
    assert dense == "| dense | 600 | 0.2 | 2 | 2.0000 | - | 16.0 | - | 14.4 | - |"
    assert coded == "| coded | 600 | 0.2 | 1 (1 diverged) | 2.1000 | +5.0 | 2.0 | 8.0x | 1.9 | 7.6x |"
    assert "| coded | 0.2: **2.100** |" in report.rates_table(summaries)


def test_the_table_beside_dense_runs_has_bytes_to_their_last_loss():
    method = dataclasses.replace(CODED, dense=("dense", "dense"))
    summaries = summaries_of({1: 2.6, 2: 2.6}, {1: 2.0, 2: 2.2})
    assert report.dense_table(summaries) == ""
    summaries["coded"].method = method
    row = report.dense_table(summaries).splitlines()[2]
    each = "-19.2 ± 48.9 | 1.4 | 11x"  # From 3 at 1 MB to 2.1 at 2 MB, and 16 MB over that.
    assert row == f"| coded | 600 | 2 | 2.0 | 8x | {each} | {each} |"


def test_the_frontier_is_what_nothing_beats_in_both():
    dense, coded = summaries_of({1: 2.0}, {1: 2.1}).values()  # 16 MB and 2 MB
    assert report.frontier([dense, coded]) == [coded, dense]
    dense, coded = summaries_of({1: 2.1}, {1: 2.0}).values()
    assert report.frontier([dense, coded]) == [coded]


def test_the_frontier_takes_bytes_within_a_hundredth_for_the_same():
    few, alike, more = (
        report.summarize(CODED, [record(0.2, 1, loss, CODED, bytes_each_way=each)], 1)
        for loss, each in ((2.2, 1e6), (2.1, 1.005e6), (2.0, 1.02e6))
    )
    assert report.frontier([few, more]) == [few, more]
    assert report.frontier([few, alike, more]) == [alike, more]


# ---- Runs ----


@pytest.fixture(scope="module")
def task():
    return training.Task()


def elements_of(scale):
    return sum(p.numel() for p in scale.model(1).parameters())


def test_the_models_are_small():
    assert elements_of(SMALL) < elements_of(NORMAL) <= 150_000


def test_a_run_is_repeatable_and_its_workers_agree(task):
    method = next(m for m in METHODS if m.name == "momentum, onebit(64), warm-up")
    first, second = (training.train_locally(task, method, SMALL, 0.1, 1, 3) for _ in range(2))
    assert len(first["hashes"]) == 1 and first["hashes"] == second["hashes"]
    losses, again = ([point[3] for point in run["curve"]] for run in (first, second))
    assert losses == again
    assert first["loss"] < first["curve"][0][3]


ONE_OF_EACH_BUILDER = {m.build.__name__: m for m in reversed(METHODS)}


@pytest.mark.parametrize("builder", sorted(ONE_OF_EACH_BUILDER))
def test_every_builder_makes_what_can_be_trained(task, builder):
    method = ONE_OF_EACH_BUILDER[builder]
    steps = method.settings.get("tau", 4)
    trained = training.train_locally(task, method, SMALL, method.quick_rate / 10, 1, steps)
    assert not trained["diverged"] and len(trained["hashes"]) == 1
    assert trained["loss"] < trained["curve"][0][3]


@pytest.mark.parametrize("name", [m.name for m in METHODS if "trial" in m.settings])
def test_what_is_tried_trains_and_its_workers_agree(task, name):
    trained = training.train_locally(task, named(name), SMALL, 0.002, 1, 16)
    assert not trained["diverged"] and len(trained["hashes"]) == 1
    assert trained["loss"] < trained["curve"][0][3]


def test_bytes_are_those_of_the_whole_run(task):
    dense, bf16 = (
        training.train_locally(task, m, NORMAL, 0.004, 1, 3)
        for name in ("AdamW, fp32", "bf16")
        for m in METHODS
        if m.name == name
    )
    elements = elements_of(NORMAL)
    for way in (1, 2):
        assert 4 * 3 * elements < dense["curve"][-1][way] < 1.01 * 4 * 3 * elements
        assert dense["curve"][-1][way] / bf16["curve"][-1][way] == pytest.approx(2, rel=0.01)


def test_methods_start_alike_and_see_the_same_data(task):
    a, b = (
        training.train_locally(task, m, SMALL, 0.0, 2, 1)
        for m in METHODS
        if m.name in ("AdamW, fp32", "int8")
    )
    assert a["curve"][0][3] == b["curve"][0][3]


def test_divergence_is_a_result(task):
    method = next(m for m in METHODS if m.name == "SGD, fp32")
    diverged = training.train_locally(task, method, SMALL, 1e6, 1, 20)
    assert diverged["diverged"] and diverged["loss"] is None
    assert 0 < diverged["curve"][-1][0] < 20
    json.dumps(diverged, allow_nan=False)


def test_a_method_may_say_which_weights_are_judged(task):
    class Judged(torch.optim.SGD):
        @contextlib.contextmanager
        def common_weights(self):
            params = self.param_groups[0]["params"]
            own = [p.clone() for p in params]
            for p in params:
                p.zero_()
            yield
            for p, value in zip(params, own):
                p.copy_(value)

    method = Method("judged", "", None, Rule(Judged, SGD.rates), lambda run, rule: rule.make(run))
    losses = [point[3] for point in training.train_locally(task, method, SMALL, 0.1, 1, 2)["curve"]]
    assert losses == pytest.approx([math.log(256)] * 3)


def test_a_stop_ends_a_run(task):
    def build(run, rule):
        task.stop.set()
        return distributed(run, rule)

    try:
        with pytest.raises(training.Stopped):
            method = Method("stopped", "", None, SGD, build)
            training.train_locally(task, method, SMALL, 0.1, 1, 1000)
    finally:
        task.stop.clear()


# ---- The program ----


def test_quick_leaves_out_what_differs_in_length_or_meetings_alone(capsys):
    main = runpy.run_path(str(EXAMPLES / "convergence.py"))["main"]
    main(["--quick", "--list", "--only", "CLAN|LANS"])
    quick = capsys.readouterr().out
    assert "LANS, fp32:" in quick and "long" not in quick
    main(["--quick", "--list", "--only", "^Muon, tau = .*, int4"])
    meets = capsys.readouterr().out
    assert (meets.count("Muon, tau = "), meets.count("4 fragments")) == (2, 1)
    main(["--list", "--only", "CLAN|LANS"])
    assert "LANS, fp32, long:" in capsys.readouterr().out


def test_the_program_resumes_and_draws(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLES / "convergence.py"))["main"]
    arguments = ["--quick", "--steps", "2", "--only", "^(AdamW, fp32|int8)$", "--out", str(tmp_path)]
    main(arguments)
    first = capsys.readouterr().out
    assert "int8, rate 0.004, seed 1: loss" in first and "| int8 | 2 | 0.004 | 1 |" in first
    main(arguments)
    assert "seed 1: loss" not in capsys.readouterr().out
    for picture in ("loss_by_steps.png", "loss_by_bytes.png", "frontier.png"):
        assert (tmp_path / picture).stat().st_size > 10_000


@pytest.mark.long
def test_a_run_over_processes_is_compared_with_the_record_and_with_one_here(tmp_path, capfd):
    main = runpy.run_path(str(EXAMPLES / "convergence.py"))["main"]
    arguments = ["--quick", "--steps", "2", "--only", r"^Muon, tau = 2, twobit\(64\)$", "--out", str(tmp_path)]
    main(arguments)
    main([*arguments, "--confirm"])
    assert "twobit(64): equal bit for bit over processes\n" in capfd.readouterr().out
    written = tmp_path / "results.json"
    content = json.loads(written.read_text())
    content["records"][0]["hashes"] = ["of another machine"]
    written.write_text(json.dumps(content))
    main([*arguments, "--confirm"])
    assert "over processes and in one process here; loss" in capfd.readouterr().out


def test_what_differs_over_processes_is_said():
    one = record(0.1, 1, 2.0)
    ranks = [dict(hash="a", curve=one["curve"]), dict(hash="a", curve=one["curve"])]
    assert processes.difference(ranks, one) is None
    ranks[1]["hash"] = "b"
    assert "weights are ['a', 'b']" in processes.difference(ranks, one)
    ranks[1] = dict(hash="a", curve=[[*point[:3], point[3] + 1] for point in one["curve"]])
    assert "losses on the way" in processes.difference(ranks, one)


def test_a_budget_ends_it_between_runs(tmp_path, capsys):
    main = runpy.run_path(str(EXAMPLES / "convergence.py"))["main"]
    with pytest.raises(SystemExit, match="no finished run"):
        main(["--quick", "--only", "^int8", "--out", str(tmp_path), "--budget", "1e-9"])
    assert "--budget 1e-09 is spent" in capsys.readouterr().out

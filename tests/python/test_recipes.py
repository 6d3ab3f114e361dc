"""Recipes: what they print, what they make, and the bytes that they move between real processes."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

import bandoneon.torch as bdn
from bandoneon.torch.named_recipes import recipes
from bandoneon.errors import InvalidArgument
from cluster_helpers import fill, run_job

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("BANDONEON_BIN", ROOT / "build" / "release" / "bin"))
NAMES = list(recipes())


def make_model(width=16, vocabulary=24):
    model = torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, width),
        torch.nn.Linear(width, width, bias=False),
        torch.nn.Tanh(),
        torch.nn.Linear(width, width),
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, vocabulary, bias=False),
    )
    fill(model)
    return model


def make(recipe, model, **more):
    if recipe.inner == "yours":
        return recipe(model, torch.optim.AdamW(model.parameters(), lr=1e-3), **more)
    return recipe(model, lr=1e-3, **more)


def of_plain_types(value):
    return {key: of_plain_types(v) for key, v in value.items()} if isinstance(value, dict) else str(value)


def facts(optimizer):
    """What a composition is: classes, schedule and links."""
    wrapped = isinstance(optimizer, bdn.LocalSteps)
    links = optimizer._links if wrapped else optimizer._bandoneon.parameters
    inner = optimizer.inner if wrapped else optimizer
    found = {
        "inner": [base.__name__ for base in type(inner).__mro__],
        "groups": [
            {key: value for key, value in group.items() if key != "params"} | {"count": len(group["params"])}
            for group in inner.param_groups
        ],
        "links": {member.name: of_plain_types(member.facts) for member in links.members},
    }
    return found | ({"tau": optimizer.tau, "outer": optimizer.outer} if wrapped else {})


@pytest.mark.parametrize("name", NAMES)
def test_what_it_prints_is_what_it_makes(name):
    recipe = bdn.recipe(name)

    def job(worker):
        model = make_model()
        mine = facts(make(recipe, model, worker=worker))
        mine["links"] = {key: value for key, value in mine["links"].items()}
        return mine

    def printed(worker):
        model = make_model()
        text = repr(recipe)
        assert text.endswith(")")
        names = {
            "bdn": bdn,
            "torch": torch,
            "model": model,
            "lr": 1e-3,
            "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
            "worker": worker,
        }
        return facts(eval(text[:-1] + ", worker=worker)", names))

    assert run_job(job) == run_job(printed)


@pytest.mark.parametrize("name", NAMES)
def test_printed_it_says_what_muon_costs(name):
    recipe = bdn.recipe(name)
    code, *comments = str(recipe).split("\n#")
    assert code == repr(recipe)
    assert ("3 to 5 x width / (tokens" in str(comments)) == (recipe.inner == "Muon")


@pytest.mark.parametrize("name", NAMES)
def test_two_workers_train_and_stay_equal(name):
    def job(worker):
        model = make_model()
        optimizer = make(bdn.recipe(name), model, worker=worker)
        batch = torch.arange(12) * (worker.rank + 2) % 24
        for _ in range(24):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), (batch + 1) % 24).backward()
            optimizer.step()
        return [param.detach().clone() for param in model.parameters()]

    first, second = run_job(job, min_compress_bytes=1)
    start = list(make_model().parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not any(torch.equal(a, b) for a, b in zip(first, start))


def test_muon_takes_all_but_embeddings_and_the_last_layer_for_matrices():
    model = make_model()
    matrices, others = bdn.algorithms.muon_groups(model)
    names = {id(param): name for name, param in model.named_parameters()}
    assert [names[id(p)] for p in matrices["params"]] == ["1.weight", "3.weight", "3.bias", "4.weight", "4.bias"]
    assert [names[id(p)] for p in others["params"]] == ["0.weight", "5.weight"]
    assert others["matrices"] is False
    chosen = bdn.algorithms.muon_groups(model, others=[model[1].weight])
    assert [names[id(p)] for p in chosen[1]["params"]] == ["1.weight"]
    model[5].weight = model[0].weight  # Tied: it is one parameter.
    assert [names[id(p)] for p in bdn.algorithms.muon_groups(model)[1]["params"]] == ["0.weight"]
    model[0].weight.requires_grad = False
    assert len(bdn.algorithms.muon_groups(model)) == 1


@pytest.mark.parametrize(
    "name, how, said",
    [
        ("gradients-8x", dict(lr=1e-3), "goes around an optimizer of yours"),
        ("updates-100x", dict(), "needs lr="),
        ("updates-90x-adamw", dict(lr=1e-3, others=[]), "others= is for Muon"),
        ("updates-100x", dict(optimizer=True, lr=1e-3), "was given an optimizer, and lr"),
        ("gradients-20x", dict(optimizer=True, momentum=0.9), "was given an optimizer, and momentum"),
    ],
)
def test_what_does_not_fit_is_named(name, how, said):
    model = make_model()
    if how.pop("optimizer", False):
        how["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        bdn.recipe(name)(model, **how)


def test_momentum_is_not_applied_twice():
    model = make_model()
    with pytest.raises(InvalidArgument, match="without momentum of its own"):
        bdn.recipe("gradients-20x")(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


@pytest.mark.parametrize("name", ["updates-30x", "updates-100x", "updates-300x"])
def test_a_recipe_of_muon_around_adamw_is_warned_of_with_the_one_for_adamw(name):
    def job(worker):
        model = make_model()
        adamw = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with pytest.warns(RuntimeWarning, match=f"'{name}' is for Muon.*'updates-90x-adamw' for AdamW") as said:
            optimizer = bdn.recipe(name)(model, adamw, worker=worker)
        assert said[0].filename == __file__
        return type(optimizer.inner).__name__

    assert run_job(job, workers=1) == ["AdamW"]


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop])
def test_what_the_limits_rule_out_is_refused(make):
    model = make_model()
    with pytest.raises(InvalidArgument, match="'gradients-20x' is not under AdamW.*FrozenAdamW"):
        bdn.recipe("gradients-20x")(model, make(model.parameters(), lr=1e-3))


@pytest.mark.parametrize(
    "name, make",
    [
        ("updates-100x", lambda model: bdn.algorithms.Muon(bdn.algorithms.muon_groups(model), lr=1e-3)),
        ("updates-90x-adamw", lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)),
        ("gradients-8x", lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)),
        ("gradients-20x", lambda model: torch.optim.SGD(model.parameters(), lr=1e-3)),
    ],
)
def test_an_optimizer_of_the_recipes_own_class_is_taken_without_a_word(name, make, recwarn):
    def job(worker):
        model = make_model()
        bdn.recipe(name)(model, make(model), worker=worker)

    run_job(job, workers=1)
    assert not [w for w in recwarn if "recipe" in str(w.message)]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="updates-100x"):
        bdn.recipe("updates-1000x")


def test_the_page_has_each_with_its_evidence():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = {m[1]: m[0] for m in re.finditer(r"^\| `([\w-]+)` \|.*$", page, re.MULTILINE)}
    assert list(rows) == NAMES
    results = json.loads((ROOT / "docs" / "convergence" / "results.json").read_text(encoding="utf-8"))
    known = {record["method"] for record in results["records"]}
    for recipe in recipes().values():
        assert recipe.evidence and set(recipe.evidence) <= known, recipe.name
        assert all(row in rows[recipe.name] for row in recipe.evidence), recipe.name
        assert f"{recipe.ratio:g}x" in rows[recipe.name]
        assert repr(recipe) in page, recipe.name


PROGRAM = """
import json, sys
import torch
import bandoneon.torch as bdn
from bandoneon.torch.named_recipes import recipes

STEPS, WIDTH = 24, 320
worker = bdn.init()
ratios = {}
for name, recipe in recipes().items():
    layers = [torch.nn.Embedding(WIDTH, WIDTH)] + [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)]
    model = torch.nn.Sequential(*layers)
    bdn.broadcast_parameters(model)
    inner = [torch.optim.AdamW(model.parameters(), lr=1e-3)] if recipe.inner == "yours" else []
    optimizer = recipe(model, *inner, prefix=name + "/", **({} if inner else dict(lr=1e-3)))
    moved = lambda: sum(worker.stats()[way] for way in ("bytes_pushed", "bytes_pulled"))
    worker.barrier()
    before = moved()
    batch = torch.arange(16) * (worker.rank + 1) % WIDTH
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), batch).backward()
        optimizer.step()
    dense = 2 * 4 * sum(param.numel() for param in model.parameters()) * STEPS
    ratios[name] = dense / (moved() - before)
if worker.rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(ratios, file)
bdn.shutdown()
"""


def test_processes_move_as_few_bytes_as_the_name_says(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_") or k == "BANDONEON_LIBRARY"}
    command = [BIN / "bandoneon", "run", "-n", "2", "-s", "1", "--", sys.executable, "-c", PROGRAM, tmp_path / "ratios"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ratios = json.loads((tmp_path / "ratios").read_text())
    assert list(ratios) == NAMES
    for name, recipe in recipes().items():
        # Of gradients-2x and 8x headers take a little of what codecs save.
        assert 0.97 * recipe.ratio <= ratios[name] <= 1.2 * recipe.ratio, (name, ratios)

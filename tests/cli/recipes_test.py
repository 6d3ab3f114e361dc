"""`bandoneon recipes`: the table that Python has, for machines without it."""

import json
import re

from command_helpers import ROOT

TABLE = json.loads((ROOT / "python" / "bandoneon" / "recipes.json").read_text(encoding="utf-8"))


def test_each_is_listed_with_ratio_composition_and_evidence(real):
    done = real.run("recipes")
    assert done.returncode == 0, done.stderr
    listed = dict(re.findall(r"^(\S+): about (\S+) times fewer bytes$", done.stdout, re.MULTILINE))
    assert listed == {row["name"]: str(row["ratio"]) for row in TABLE}
    for row in TABLE:
        assert f"push {row['push']}, pull {row['pull']}" in done.stdout and row["limits"] in done.stdout
        assert row["evidence"] and f"evidence  {'; '.join(row['evidence'])}" in done.stdout


def test_the_table_is_there_for_programs(real):
    assert json.loads(real.run("recipes", "--json").stdout) == TABLE


def test_an_unknown_option_is_named(real):
    done = real.run("recipes", "--jsno")
    assert done.returncode == 2 and "--jsno" in done.stderr

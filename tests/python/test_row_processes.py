"""Tables on real daemons: the example."""

import re
import subprocess
import sys

from test_processes import BIN, ROOT

EXAMPLE = ROOT / "examples" / "click_model.py"


def run(*options, workers=2, servers=1):
    command = [BIN / "bandoneon", "run", "-n", workers, "-s", servers, "--", sys.executable, EXAMPLE]
    done = subprocess.run(
        list(map(str, [*command, *options])), capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_click_model_is_the_same_on_any_number_of_servers():
    options = ("--steps=5", "--batch=64", "--push=int8", "--pull=int8", "--no-compare")
    first, second = run(*options), run(*options, servers=3)
    rows = [re.findall(r"\brows ([0-9a-f]{16})\b", output) for output in (first, second)]
    assert rows[0] == rows[1] and len(rows[0]) == 1
    areas = [float(area) for area in re.findall(r"AUC (\S+)", first)]
    assert len(areas) == 1 and 0.3 < areas[0] < 0.9
    assert len(re.findall(r"worker \d sent \d+ bytes and got \d+", first)) == 2

"""Adds up the JUnit files of a folder and prints "N passed, N failed" as its last line.

usage: count_tests.py FOLDER STATUS

STATUS is the exit status of what ran the tests: when it is not 0 and no test says that it failed, the
run itself did, and counts as one failure. Exits 1 unless some passed and none failed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

# A suite that ctest runs in parts has a file of its own tests for each.
_PART = re.compile(r"\.part \d+$")


def count(folder: pathlib.Path) -> tuple[int, list[str]]:
    """How many test cases passed, and the names of those that failed; skipped ones are neither."""
    passed, failed = 0, []
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            # ctest says it in an attribute, pytest by a child.
            bad = case.find("failure") is not None or case.find("error") is not None
            if bad or case.get("status") == "fail":
                failed.append(f"{case.get('classname')}: {case.get('name')}")
            elif case.find("skipped") is None and case.get("status") in (None, "run") and not _PART.search(case.get("name", "")):
                passed += 1
    return passed, failed


def main() -> int:
    folder, status = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    try:
        passed, failed = count(folder)
    except ElementTree.ParseError as error:
        passed, failed = 0, [f"results cannot be read: {error}"]
    if status != 0 and not failed:
        failed = ["the run itself: see above"]
    for name in failed:
        print(f"FAILED {name}")
    print(f"{passed} passed, {len(failed)} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())

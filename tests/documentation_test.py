"""Holds CONTRIBUTING.md, the glossary and the code to each other.

Run by pytest, or alone: python3 -m pytest tests/documentation_test.py
"""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONTRIBUTING = "CONTRIBUTING.md"
SOURCES = (".h", ".cc", ".c", ".py", ".md", ".proto", ".txt", ".csv")

# Words that were this project's own where the field, or plain English, has one.
PRIVATE_WORDS = {
    r"full house": "all nodes have joined",
    r"come to leave|came to leave": "is leaving",
    r"\bLineBroke\b|SchedulerLine|line to the scheduler": "connection",
    r"\bDoor\b": "service",
    r"\bTakeIn\b": "Add, Install",
    r"\bHeldFinite\b|\bUnbroken\b": "ClampToFinite, ExchangeGuard",
    r"\bclass Compressor\b": "Codec",
}


@functools.lru_cache(maxsize=None)
def text_of(path: str) -> str:
    """The text of a file, or of all sources in a directory."""
    place = ROOT / path
    if place.is_file():
        return place.read_text(encoding="utf-8")
    return "\n".join(f.read_text(encoding="utf-8") for f in sorted(place.rglob("*"))
                     if f.is_file() and f.suffix in SOURCES and "__pycache__" not in f.parts)


def checklists() -> dict[str, list[str]]:
    """{title: paths that its lines begin with or name} of the sections under "Adding things"."""
    part = text_of(CONTRIBUTING).split("## Adding things")[1].split("\n## ")[0]
    lists = {}
    for section in part.split("\n### ")[1:]:
        title, body = section.split("\n", 1)
        lists[title.strip()] = re.findall(r"^- `([^`]+)`", body, re.MULTILINE)
    return lists


def rows(path: str, pattern: str, mark: str) -> list[str]:
    """The names in the rows of a table; every `mark` must begin or end one that was found."""
    found = re.findall(pattern, text_of(path))
    assert found and len(found) == text_of(path).count(mark), f"{path}: not every {mark} is a row like {pattern}"
    return found


def enclosed(path: str, begin: str, end: str) -> str:
    return text_of(path).split(begin, 1)[1].split(end, 1)[0]


CODECS = rows("compressors/codec_table.cc", r'CodecRow\{\s*"(\w+)"', "CodecRow{")
RULES = rows("link/rule_spec.cc", r'RuleRow\{\s*Kind::k\w+,\s*"(\w+)"', "RuleRow{")
SCHEMES = rows("common/transport/transport_factory.cc", r'Row\{"(\w+)", Make\w+', 'Row{"')
COMMANDS = [name for name in rows("cli/main.cc", r'\{\s*"([\w -]+)",\s*\w+Command\}', "Command}")
            if not name.endswith("worker")]  # those are for the benchmarks, not for people
SETTINGS = re.findall(r'\{\s*"([\w-]+)",\s*"', text_of("common/cluster/settings.cc"))
# QSR, Pace, Streaming and the outer steps, which are update rules, are of LocalSteps.
OF_LOCAL_STEPS = [
    *("QSR", "Pace", "Streaming"),
    *re.findall(r"^class (\w+)", text_of("python/bandoneon/torch/algorithms/outer_steps.py"), re.MULTILINE),
]
LOSSES = re.findall(r"^class ([A-Z]\w+)", text_of("python/bandoneon/torch/algorithms/auc_loss.py"), re.MULTILINE)
PLANS = ["ExpertPlan"]
ALGORITHMS = [name for name in re.findall(r'"(\w+)",', enclosed("python/bandoneon/torch/algorithms/__init__.py", "__all__ = [", "]"))
              if name[0].isupper() and name not in OF_LOCAL_STEPS + LOSSES + PLANS]
FIELDS = re.findall(r"^  [\w:]+ (\w+)(?: = [^;]+)?;", enclosed(
    "common/wire/frame.h", "struct FrameHeader {", "bool operator=="), re.MULTILINE)


def names_it(text: str, name: str) -> bool:
    """Whether the name stands in the text, as a word or, where it is several, as arguments of a call."""
    words = r'[\s",]+'.join(re.escape(word) for word in name.split())
    return re.search(rf"(?<![\w-]){words}(?![\w-])", text) is not None


# What of each kind there is, and the places of its checklist that cannot name it: new files, and
# those that know it by another name.
KINDS = {
    "A codec": (CODECS, {"compressors/", "compressors/codec.h", "tests/compressors/"}),
    "An update rule": (RULES, {"server/rules/", "server/rules/make_update_rule.cc", "docs/algorithms.md",
                               "python/bandoneon/torch/", "tests/bench/rules_bench.cc"}),
    "An algorithm in a worker": (ALGORITHMS, {"python/bandoneon/torch/algorithms/", "tests/reference/algorithms.py"}),
    "A transport": (SCHEMES, {"common/transport/", "docs/layers.txt", "worker/host/worker_join.cc",
                              "docs/thread_model.md"}),
    "A command": (COMMANDS, {"cli/", "cli/commands.h"}),
    "A field of the frame's header": (FIELDS, {"common/wire/headers.h", "tests/golden/frames.txt"}),
}


def test_the_kinds_are_what_is_there():
    assert "onebit" in CODECS and "adamw" in RULES and "tcp" in SCHEMES
    assert "bench pushpull" in COMMANDS and "lease-timeout" in SETTINGS and "base_step" in FIELDS
    assert "Lion" in ALGORITHMS


@pytest.mark.parametrize("title", checklists())
def test_every_place_of_a_checklist_is_there(title):
    assert checklists()[title]
    body = text_of(CONTRIBUTING).split(f"### {title}")[1].split("\n##")[0]
    paths = [path for path in re.findall(r"`([\w/.]+/[\w/.]*)`", body) if "mycodec" not in path]
    assert not [path for path in paths if not (ROOT / path).exists()]


@pytest.mark.parametrize("title", KINDS)
def test_what_there_is_is_found_in_every_place_of_its_checklist(title):
    names, unnamed = KINDS[title]
    lacking = [f"{path} lacks {name}" for path in checklists()[title] if path not in unnamed
               for name in names if not names_it(text_of(path), name)]
    assert not lacking, "\n".join(lacking)


def test_every_algorithm_has_its_file_and_its_reference():
    """The reference has other cases of letters, and underscores."""
    classes = re.findall(r"^class (\w+)\((?:StepExchange|PerParameter|Wrapped)Optimizer\):",
                         text_of("python/bandoneon/torch/algorithms/"), re.MULTILINE)
    assert sorted(classes) == sorted(ALGORITHMS)
    reference = text_of("tests/reference/algorithms.py").replace("_", "").lower()
    assert not [name for name in ALGORITHMS if name.lower() not in reference]


def test_every_rule_has_its_class():
    kinds = re.findall(r"RuleRow\{Kind::k(\w+), ", text_of("link/rule_spec.cc"))
    switch = text_of("server/rules/make_update_rule.cc")
    assert not [kind for kind in kinds if f"Kind::k{kind}:" not in switch]


def test_what_declares_a_rule_names_it_as_a_text():
    """`scaled` or `mean` may stand anywhere as a word."""
    package = text_of("python/bandoneon/torch/")
    assert not [rule for rule in RULES if rule != "mean" and not re.search(rf"[\"']{rule}\b", package)]


def test_codecs_have_their_numbers_in_the_wire_format():
    numbers = re.findall(r"= (\d+),", enclosed("compressors/codec.h", "enum class CodecId", "}"))
    document = text_of("proto/wire_format.md")
    headings = re.findall(r"^### 6\.\d+ .*\(codecs? ([^)]+)\)", document, re.MULTILINE)
    assert sorted(numbers, key=int) == sorted(re.findall(r"\d+", " ".join(headings)), key=int)


def test_every_transport_has_a_row_in_the_layering():
    rooms = [path.name for path in (ROOT / "common/transport").iterdir() if path.is_dir()]
    assert rooms and not [room for room in rooms
                          if f"module common/transport/{room}:" not in text_of("docs/layers.txt")]


def test_every_setting_is_read():
    table, *readers = re.findall(r"`([\w/.]+)`", enclosed(CONTRIBUTING, "### A setting", "###"))
    assert table == "common/cluster/settings.cc"
    everything = "".join(text_of(path) for path in readers)
    unread = [name for name in SETTINGS if f'"{name}"' not in everything
              and "BANDONEON_" + name.upper().replace("-", "_") not in everything]
    assert not unread


def test_metrics_are_named_once_and_explained():
    for path in ("worker/worker.cc", "server/server.cc"):
        table = enclosed(path, "kMetrics[] = {", "};")
        metrics = re.findall(r'\{\{"([^"]*)",\s*k(?:Counter|Gauge),\s*((?:"[^"]*"\s*)+)(?:,\s*&k\w+(?:,\s*"\w+")?)?\},'
                             r'\s*\[\]\(const \w+& now\) \{ return [^;]*; \}\},', table)
        assert len(metrics) == table.count("{{")
        names = [name for name, _ in metrics]
        assert len(names) == len(set(names)) > 5
        assert all(re.fullmatch(r"[a-z][a-z_]*", name) and text for name, text in metrics)


# Finite verbs that a HELP may have: the forms of three that every sentence can do with, and a few more.
VERB = re.compile(r"\b(is|are|was|were|has|have|had|do|does|did|holds?|held|owes?|stands?|waits?)\b")
# A verb behind one of these belongs to a clause of its own: "Pushes that were added" says nothing of them.
CLAUSE = re.compile(r"\b(that|which|who|whose|where|when|while|because|if|until|once|before|after)\b")
KIND = r"(?:Metric::Kind::)?k(?:Counter|Gauge|Histogram)"


def is_sentence(text: str) -> bool:
    """Whether a text begins and ends as a sentence does, and its main clause has a subject before a verb."""
    main = CLAUSE.split(text)[0]
    verb = VERB.search(main)
    return text[:1].isupper() and text.endswith(".") and verb is not None and verb.start() > 0


def helps() -> dict[str, str]:
    """{"file: name": HELP} of all families and metrics, in C++ and in Python."""
    found = {}
    for path in ("common", "scheduler", "server", "worker"):
        for file in sorted((ROOT / path).rglob("*.cc")):
            text = file.read_text(encoding="utf-8")
            rows_of_file = re.findall(rf'"([a-z_]+)",\s*{KIND},\s*((?:"[^"]*"\s*)+)', text)
            rows_of_file += re.findall(r'\{"([a-z_]+)",\s*((?:"[^"]*"\s*)+),\s*&StageCount::', text)
            for name, literal in rows_of_file:
                found[f"{file.relative_to(ROOT)}: {name}"] = "".join(re.findall(r'"([^"]*)"', literal))
    path = "python/bandoneon/metrics.py"
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_Family":
            name, text = node.args[0], node.args[2]
            if isinstance(text, ast.Constant):
                found[f"{path}: {name.value}"] = text.value
        elif isinstance(node, ast.Dict):
            found |= {f"{path}: {key.value}": value.value for key, value in zip(node.keys, node.values)
                      if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)}
    return found


def test_each_help_of_a_metric_is_a_sentence():
    all_helps = helps()
    assert len(all_helps) > 120
    assert {place: text for place, text in all_helps.items() if not is_sentence(text)} == {}


def test_a_help_that_is_no_sentence_is_found():
    for text in ("of this worker", "of this worker.", "Of this worker.", "Pushes that were added to a round.",
                 "so many pushes were added.", "So many pushes were added", "Bytes, with headers.", "Was added."):
        assert not is_sentence(text), text
    assert is_sentence("So many pushes were added to a round.")


def messages() -> list[str]:
    """The texts that docs/troubleshooting.md quotes as said."""
    first_cells = re.findall(r"^\| (`.*?) \|", text_of("docs/troubleshooting.md"), re.MULTILINE)
    return [text for cell in first_cells for text in re.findall(r"`([^`]+)`", cell)]


@functools.lru_cache(maxsize=None)
def literals() -> str:
    """All sources, each text that goes on in another line made one."""
    rooms = ("cli", "common", "compressors", "device", "link", "scheduler", "server", "worker", "trace", "replay", "python/bandoneon")
    return re.sub(r'"\s*\n?\s*f?"', "", "\n".join(map(text_of, rooms)))


@pytest.mark.parametrize("message", messages())
def test_what_troubleshooting_quotes_is_said(message):
    parts = [re.escape(part) for part in message.split("...")]
    assert max(map(len, parts)) >= 8, "too little to look for"
    assert re.search(r"[^\n]{0,80}?".join(parts), literals()), message


def test_the_glossary_is_sorted_and_says_each_word_once():
    glossary = text_of("docs/glossary.md")
    words = [word for word in re.findall(r"^\| ([\w ]+) \|", glossary, re.MULTILINE) if word != "word"]
    assert words == sorted(set(words)) and len(words) > 30


def long_lines(text: str) -> list[int]:
    return [number for number, line in enumerate(text.split("\n"), 1) if len(line) > 100]


def test_no_line_of_cpp_is_longer_than_100_characters():
    tops = ("common", "kernels", "compressors", "device", "link", "scheduler", "server", "worker", "trace", "replay", "cli", "examples", "tests")
    files = [file for top in tops for file in sorted((ROOT / top).rglob("*")) if file.suffix in (".h", ".cc", ".cu", ".c")]
    found = [f"{file.relative_to(ROOT)}:{line}" for file in files for line in long_lines(file.read_text(encoding="utf-8"))]
    assert len(files) > 500 and not found, f"break these lines: scripts/fmt breaks comments, not strings: {found}"


def test_a_line_that_is_too_long_is_found():
    assert long_lines("x" * 100 + "\n" + "y" * 101) == [2]


def test_nobody_speaks_a_private_language():
    found = []
    for top in ("common", "kernels", "compressors", "device", "link", "proto", "scheduler", "server", "worker", "trace", "replay", "cli",
                "python", "examples", "docs"):
        for file in sorted((ROOT / top).rglob("*")):
            if file.suffix not in SOURCES or "__pycache__" in file.parts:
                continue
            text = file.read_text(encoding="utf-8")
            found += [f"{file.relative_to(ROOT)}: {match.group()!r}, say {better}"
                      for word, better in PRIVATE_WORDS.items() for match in re.finditer(word, text)]
    assert not found, "\n".join(found)


def heading_anchors(page: pathlib.Path) -> set[str]:
    """The fragments by which links name the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


PAGES = [ROOT / "README.md", ROOT / CONTRIBUTING, ROOT / "CHANGELOG.md", ROOT / "proto/wire_format.md",
         *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in heading_anchors(target)):
            lost.append(link)
    assert not lost

"""The pages of the API: whatever is public says what it is, and the site builds without a warning."""

import inspect
import pathlib
import re
import subprocess
import sys

import bandoneon
import bandoneon.torch as bdn
import pytest
from bandoneon import graph
from bandoneon.torch import app_state, comm_state, exchange, expand, named_recipes, rows

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = (
    bandoneon, bandoneon.trace, bdn, bdn.algorithms, app_state, comm_state, exchange, expand, graph, named_recipes, rows,
)
PUBLIC = sorted({(module.__name__, name) for module in PAGES for name in module.__all__})


def own_members(owner):
    """[(name, function)] of a class: its public methods and properties, not those that it inherits from elsewhere."""
    for name, member in vars(owner).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, getattr(owner, name)


@pytest.mark.parametrize("module, name", PUBLIC)
def test_everything_public_says_what_it_is(module, name):
    thing = getattr(sys.modules[module], name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing) and thing.__module__.startswith("bandoneon"):
        assert thing.__doc__, "its base class's text is not its own"
        assert not [member for member, function in own_members(thing) if not inspect.getdoc(function)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", ROOT / "scripts" / "api_pages.py", folder],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return folder


@pytest.mark.parametrize("module", PAGES, ids=lambda module: module.__name__)
def test_a_page_has_every_public_name(site, module):
    text = (site / f"{module.__name__.replace('.', '/')}.html").read_text(encoding="utf-8")
    assert not [name for name in module.__all__ if f'id="{name}"' not in text and f'"{name}.html"' not in text
                and f'/{name}.html"' not in text]


def test_the_c_interface_has_its_page(site):
    text = re.sub(r"<[^>]+>", "", (site / "c_api.html").read_text(encoding="utf-8"))
    header = (ROOT / "worker" / "c_api" / "bandoneon.h").read_text(encoding="utf-8")
    functions = set(re.findall(r"\b(bdn_\w+)\(", header))
    assert len(functions) > 30 and not [name for name in functions if name not in text]


def test_the_first_page_leads_to_all_others_and_nothing_is_loaded_from_elsewhere(site):
    pages = sorted(str(page.relative_to(site)) for page in site.rglob("*.html") if page.name != "index.html")
    assert sorted(re.findall(r'href="([^"]+)"', (site / "index.html").read_text(encoding="utf-8"))) == pages
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text), page
        assert not re.findall(r'<link[^>]+href="(?:https?:)?//', text), page

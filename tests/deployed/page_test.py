"""The scheduler's status page as a browser shows it: a real job, a hostile name, a phone, the dark."""

import asyncio
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.request

import pytest
from browser import browse
from debian_roots import ROOT

BIN = pathlib.Path(os.environ.get("BDN_BIN_DIR", ROOT / "build" / "release" / "bin"))
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
PROGRAM = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration

worker = bandoneon.init()
tensor, = worker.declare([Declaration("w", 1 << 18, push="ef(onebit(block=256))", pull="ef(onebit(block=1024))")])
data = (ctypes.c_float * (1 << 18))(*range(1 << 18))
for step in range(150):
    worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    worker.report("loss<b>", float("nan") if step == 70 else 1 / (step + 1), step)
    if step % 10 == 0:
        worker.barrier("here")  # so that the steps are spread over many heartbeats
worker.barrier("over")
print("ready", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")


def start(arguments, mark, **options):
    """The process, and the word of its standard error behind `mark`."""
    process = subprocess.Popen(list(map(str, arguments)), stderr=subprocess.PIPE, text=True, **options)
    for line in process.stderr:
        if mark in line:
            return process, line.split(mark)[1].split()[0]
    raise AssertionError(f"{arguments[0]} ended with {process.wait()}")


@pytest.fixture
def hostile():
    process, url = start([BIN / "bandoneon-scheduler", "--workers=2", "--http-listen=127.0.0.1:0",
                          f"--job-id={HOSTILE}"], "status page at ", stdout=subprocess.DEVNULL)
    yield process, url
    process.terminate()
    process.communicate(timeout=60)


@pytest.fixture
def running(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [BIN / "bandoneon", "run", "-n", 3, "-s", 2, "--linger", "0s", "--set", "heartbeat-interval=10ms",
               "--set", "min-compress-bytes=1KiB", "--http-listen", "127.0.0.1:0", "--", "sh", "-c",
               f"mkfifo in.$RANK; exec {sys.executable} program.py 0<>in.$RANK"]
    process, url = start(command, "[run] status page ", cwd=tmp_path, stdout=subprocess.PIPE)
    for _ in range(3):
        assert "ready" in process.stdout.readline()
    yield url
    process.terminate()
    process.communicate(timeout=60)


def status(url):
    with urllib.request.urlopen(url + "api/status", timeout=60) as reply:
        return json.load(reply)


def test_it_shows_what_the_api_says(running):
    async def look():
        async with browse() as page:
            await page.show(running)
            await page.until("document.getElementById('step')?.textContent === '150'")
            # Two heartbeats with steps between them make a window.
            await page.until("document.querySelectorAll('#heat-worker tbody tr').length === 3")
            await page.until("document.querySelectorAll('#quality tbody tr').length === 2")
            job = status(running)
            shown = await page.value("""(() => {
                const table = (id) => [...document.querySelectorAll(`#${id} tbody tr`)]
                    .map((row) => [...row.cells].map((cell) => cell.textContent));
                return {
                job: document.getElementById('job').textContent,
                state: document.getElementById('state').textContent,
                nodes: table('nodes'),
                heat: table('heat-worker'),
                pushes: table('quality-pushes'),
                replies: table('quality-replies'),
                bars: document.querySelectorAll('.bar').length,
                curve: document.querySelector('figcaption').innerText,
                path: document.querySelector('#curves path').getAttribute('d'),
                events: [...document.querySelectorAll('#events li b')].map((kind) => kind.textContent),
                sent: document.getElementById('sent').textContent,
                unnamed: [...document.querySelectorAll('[role=region],[role=img],section')].filter(
                    (e) => !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby')).length,
            };})()""")
            assert (shown["job"], shown["state"]) == (job["job_id"], "running")
            order = sorted(job["nodes"], key=lambda node: (node["role"] != "worker", node["rank"]))
            assert [row[0] for row in shown["nodes"]] == [f"{node['role']} {node['rank']}" for node in order]
            assert [row[1] for row in shown["nodes"]] == [node["host"] for node in order]
            assert [row[3] for row in shown["nodes"]] == [str(node["step"]) for node in order]
            windows = {window["node"]: window for window in job["history"]["windows"]}
            workers = [node for node in order if node["role"] == "worker"]
            assert len(shown["heat"]) == 3
            for row, node in zip(shown["heat"], workers):
                window = windows[node["node"]]
                waited = window["wall_ns"]["wait"] / window["steps"] / 1e6
                assert float(row[4]) == pytest.approx(waited, abs=0.051 if waited < 99 else 0.51)
            assert shown["bars"] == 7 + 6
            for way in ("pushes", "replies"):
                (measured,), (row,) = job["history"]["quality"][way], shown[way]
                assert row[0] == measured["tensors"] == "0"
                named = zip(row[1:4], ("residual_ratio", "decoded_cosine", "owed_steps"))
                assert all(float(text) == pytest.approx(measured[name], rel=1e-3) for text, name in named)
                assert 0 < measured["residual_ratio"] < 1 and row[4:] == ["0", "-"]
            sent = sum(node["bytes_sent"] for node in workers)
            assert float(shown["sent"].split()[0]) == pytest.approx(sent / 1e6, rel=0.01)
            assert "loss<b>" in shown["curve"] and "at step 149" in shown["curve"]
            assert shown["path"].count("M") == 2, "the value that is not finite is a gap"
            assert shown["events"] == ["all joined"] + ["joined"] * 5
            assert shown["unnamed"] == 0
            assert page.complaints == []

    asyncio.run(look())


def test_names_are_text_and_nothing_of_them_runs(hostile):
    _, url = hostile

    async def look():
        async with browse() as page:
            await page.show(url)
            await page.until("document.getElementById('state')?.textContent === 'waiting'")
            assert await page.value("document.getElementById('job').textContent") == HOSTILE
            assert await page.value("document.title") == f"{HOSTILE}: waiting"
            assert await page.value("document.scripts.length + document.images.length") == 1
            assert "worker rank 0" in await page.value("document.getElementById('waits').textContent")
            assert page.complaints == []
            # What somebody slipped in all the same does not run.
            await page.value("document.body.append(Object.assign(document.createElement('script'), "
                             "{text: 'window.ran = 1'}))")
            assert await page.value("window.ran === undefined")

    asyncio.run(look())


def test_it_says_when_the_scheduler_is_gone(hostile):
    process, url = hostile

    async def look():
        async with browse() as page:
            await page.show(url)
            await page.until("document.getElementById('state')?.textContent === 'waiting'")
            assert await page.value("document.getElementById('silence').hidden")
            process.terminate()
            await page.until("document.getElementById('silence').textContent.includes('does not answer since')")

    asyncio.run(look())


LUMINANCE = """(() => {
  const part = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const of = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number).map(part)
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const ground = of(getComputedStyle(document.querySelector('.cards > div')).backgroundColor);
  return {ground, least: Math.min(...[...document.querySelectorAll('h1, dt, dd, .soft, .state, td, th, b')]
      .map((e) => contrast(of(getComputedStyle(e).color), ground)))};
})()"""


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_it_fits_a_phone_and_can_be_read(running, is_dark):
    async def look():
        async with browse() as page:
            await page.show(running, width=360, is_dark=is_dark)
            await page.until("document.getElementById('step')?.textContent === '150'")
            assert await page.value("innerWidth") == 360
            assert await page.value("document.documentElement.scrollWidth") <= 360, "it scrolls sideways"
            colours = await page.value(LUMINANCE)
            assert (colours["ground"] < 0.2) == is_dark
            assert colours["least"] >= 4.5, colours  # as WCAG's AA asks of text
            assert page.complaints == []

    asyncio.run(look())

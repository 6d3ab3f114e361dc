"""A page in headless Chromium, asked over its debugging protocol."""

import asyncio
import base64
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import aiohttp

LIMIT = 60
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--remote-debugging-port=0", "about:blank")


class Page:
    """What one page says. `complaints` are its console's errors and what its policy refused."""

    def __init__(self, socket):
        self._socket = socket
        self._number = 0
        self.complaints = []

    async def call(self, method, **params):
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), LIMIT)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message):
        params = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.complaints.append(params["entry"])
        elif message["method"] == "Runtime.consoleAPICalled" and params["type"] in ("warning", "error"):
            self.complaints.append(params)

    async def show(self, url, width=1100, is_dark=False):
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                        mobile=width < 600)
        scheme = "dark" if is_dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        await self.call("Page.navigate", url=url)

    async def value(self, expression):
        done = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, expression):
        """Waits until it is true on the page, which asks each second."""
        deadline = time.monotonic() + LIMIT
        while not await self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}: {await self.text()}"

    async def text(self):
        return await self.value("document.body ? document.body.innerText : ''")

    async def screenshot(self, path, height):
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={
            "x": 0, "y": 0, "width": await self.value("innerWidth"), "height": height, "scale": 1})
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))


@contextlib.asynccontextmanager
async def browse(program="chromium"):
    """A Page of a browser of its own, that leaves nothing behind."""
    # Its sockets lie in there: pytest's folders have names too long for them.
    folder = tempfile.mkdtemp(prefix="page-")
    process = subprocess.Popen([program, *FLAGS[:-1], f"--user-data-dir={folder}/profile", FLAGS[-1]], text=True,
                               env=dict(os.environ, TMPDIR=folder),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for line in process.stderr:
            if "DevTools listening on ws://" in line:
                port = line.split("127.0.0.1:")[1].split("/")[0]
                break
        else:
            raise AssertionError("the browser ended")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as reply:
                page, = [target for target in await reply.json() if target["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                shown = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await shown.call(f"{domain}.enable")
                yield shown
    finally:
        process.terminate()
        try:
            process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        shutil.rmtree(folder, ignore_errors=True)

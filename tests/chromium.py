# SPDX-License-Identifier: MIT
"""A headless Chromium, driven through its DevTools pipe: no network, no package but Chromium itself.

    with Chromium() as c:
        c.open("/tmp/page.html")
        c.value("document.title")
"""
import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def program():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    return None


class Chromium:
    """What the page did is in .errors (console errors, exceptions, log entries) and .requests (URLs)."""

    def __init__(self, width=1280, height=900):
        self.errors, self.requests, self.events = [], [], []
        self.next_id, self.rest, self.session = 0, b"", None
        self.home = tempfile.mkdtemp()
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        self.reader, self.writer = ours_in, ours_out
        # The pipe is on 3 and 4.
        fds = f"exec 3<&{theirs_in} 4>&{theirs_out}"
        options = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
                   "--allow-file-access-from-files", f"--user-data-dir={self.home}", f"--window-size={width},{height}"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        self.log = open(os.path.join(self.home, "log"), "wb")
        self.process = subprocess.Popen(["bash", "-c", fds + '; exec "$@"', "chromium", program(), *options],
                                        pass_fds=(theirs_in, theirs_out), stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL, env={**os.environ, "HOME": self.home})
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        with contextlib.suppress(Exception):
            self.session = None
            self.call("Browser.close")
        with contextlib.suppress(Exception):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)

    # ---- the protocol ----

    def receive(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.reader], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.reader, 1 << 16) if ready else b""
            if not piece:
                with open(os.path.join(self.home, "log"), errors="replace") as log:
                    raise RuntimeError(f"chromium {'ended' if ready else 'does not answer'}: {log.read()[-2000:]}")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        kind, p = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.errors.append(d.get("exception", {}).get("description", d["text"]))
        elif kind == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(a.get("value", a)) for a in p["args"]))
        elif kind == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.errors.append(p["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        self.events.append(kind)

    def call(self, method, timeout=120, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writer, data):]
        deadline = time.monotonic() + timeout
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    # ---- the page ----

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def prefer(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path, timeout=120):
        self.errors, self.requests = [], []
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        deadline = time.monotonic() + timeout
        while not self.value("document.readyState === 'complete' && location.protocol === 'file:'"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{path} was not loaded in {timeout} s")
            time.sleep(0.05)

    def value(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise RuntimeError(f"{expression}: {r['exceptionDetails'].get('exception', r['exceptionDetails'])}")
        return r["result"].get("value")

    def settle(self):
        """Until the next frame is drawn."""
        self.value("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def key(self, key, text=None):
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **extra)

    def mouse(self, x, y, click=False):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))

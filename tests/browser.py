"""A headless Chromium for the tests of pages: opened, moved, looked at, and asked what it fetched and complained of."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers lack its namespaces
    "--disable-background-networking",
    "--disable-dev-shm-usage",  # which are small there
    "--disable-gpu",
    "--hide-scrollbars",
)


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed: pip install selenium"
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(lacking)} here: apt-get install chromium chromium-driver" if lacking else None


needs_browser = pytest.mark.skipif(missing() is not None, reason=missing() or "")


class Tab:
    """One tab of a running browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, width: int = 1440, height: int = 900, dark: bool = False, scale: float = 1) -> None:
        """Take a screen of `width` x `height` pixels and the system's colours; below 500 pixels a phone's."""
        shape = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})

    def open(self, page: Path, address: str = "") -> None:
        """Open `page` afresh and wait until all its charts are drawn."""
        self.driver.get("about:blank")
        self.messages()
        self.driver.get(page.as_uri() + address)
        self.wait()

    def wait(self) -> None:
        """Wait until what was asked of the charts is drawn."""
        frame = "new Promise((go) => requestAnimationFrame(() => setTimeout(go, 30)))"
        self.settle(f"lab.ready.then(() => {frame}).then(() => lab.Charts.settled())")

    def settle(self, promise: str) -> Any:
        """What the promise comes to; its error, if that is how it ends."""
        ended = self.driver.execute_async_script(
            "const end = arguments[0];"
            f"({promise}).then((value) => end([true, value ?? null]), (error) => end([false, String(error)]));"
        )
        assert ended[0], ended[1]
        return ended[1]

    def js(self, expression: str, *given: Any) -> Any:
        """The value of an expression, in which `arguments` are `given`."""
        return self.driver.execute_script(f"return {expression}", *given)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def set(self, control: str, value: Any) -> None:
        """Give the control with this id a value, as a hand would, and wait for the charts."""
        event = "change" if self.js("document.getElementById(arguments[0]).type", control) != "range" else "input"
        self.driver.execute_script(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "e.dispatchEvent(new Event(arguments[2], { bubbles: true }));",
            control,
            str(value),
            event,
        )
        self.wait()

    def messages(self) -> list[str]:
        """What the console said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path, top: float = 0, height: float | None = None) -> Path:
        """Save the page, or a band of it (in pixels), as a PNG file."""
        width, whole = self.js("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": top, "width": width, "height": height or whole - top, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))
        return path


@contextmanager
def browser() -> Iterator[Tab]:
    """A new browser, ended with the block."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
    driver.set_script_timeout(120)
    try:
        yield Tab(driver)
    finally:
        driver.quit()

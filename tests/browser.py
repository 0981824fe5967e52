"""A real browser for the tests of the report: the system's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "LARGEPROMPT_BROWSER_REQUIRED"  # if set, a missing browser fails the tests


def executable() -> str:
    """Path of the browser. Without one the test is skipped, or fails if one is required."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        text = f"no browser: install one of {', '.join(_NAMES)} (Debian: apt-get install chromium)"
        if os.environ.get(REQUIRED):
            pytest.fail(text)
        pytest.skip(text)
    return found


@contextmanager
def opened(page: Path, width: int, height: int) -> Iterator[tuple[Page, list[str]]]:
    """Open the page in a window of that size, without network; yields it and a list of errors."""
    with sync_playwright() as driver:
        # containers lack the rights that the sandbox needs; the only page opened is ours
        browser = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
            tab = context.new_page()
            troubles: list[str] = []
            tab.on("console", lambda said: troubles.append(f"{said.type}: {said.text}"))
            tab.on("pageerror", lambda error: troubles.append(str(error)))
            tab.on("requestfailed", lambda request: troubles.append(request.url))
            tab.goto(page.as_uri())
            yield tab, troubles
        finally:
            browser.close()

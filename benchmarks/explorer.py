"""Frames a second of the explorer while sliders are dragged: `python -m benchmarks.explorer`."""

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Page

_BUILDER = Path(__file__).parents[1] / "docs" / "builder" / "explorer.py"
SLIDERS = ("sigma", "L", "d", "noise")
# one change a frame: callbacks of a frame run in order, so that of the page is between ours
_DRAG = """async ([name, frames]) => {
  const slider = document.getElementById(name), starts = [], redraws = [];
  const next = (note) => new Promise((done) => requestAnimationFrame(() => { note(); done(); }));
  const low = Math.round(0.2 * slider.max), wide = Math.round(0.6 * slider.max);
  const step = Math.max(1, wide / frames);
  await next(() => {});  // what was waiting to be drawn
  for (let i = 1; i <= frames; i++) {
    let before, after;
    const first = next(() => { before = performance.now(); });
    const way = i * step % (2 * wide);  // to and fro: a new position in every frame
    slider.value = Math.round(low + Math.min(way, 2 * wide - way));
    slider.dispatchEvent(new Event("input"));
    await Promise.all([first, next(() => { after = performance.now(); })]);
    starts.push(before); redraws.push(after - before);
  }
  return [starts, redraws];
}"""


class Drag(NamedTuple):
    """Start of each frame and time of its redraw, in seconds."""

    starts: np.ndarray
    redraws: np.ndarray

    @property
    def frames_per_second(self) -> float:
        """Mean rate of the drag."""
        return (len(self.starts) - 1) / float(self.starts[-1] - self.starts[0])


def drag(tab: "Page", slider: str, frames: int) -> Drag:
    """Move a slider by one step in each of so many frames."""
    starts, redraws = tab.evaluate(_DRAG, [slider, frames])
    return Drag(np.array(starts) / 1e3, np.array(redraws) / 1e3)


def main() -> None:
    """Print a table for the page docs/explorer.md."""
    from playwright.sync_api import sync_playwright

    from .timing import machine

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 860})
        page = Path(folder) / "explorer.html"
        page.write_text(runpy.run_path(str(_BUILDER))["page"](), encoding="utf-8")
        tab.goto(page.as_uri())
        print(
            "| slider | frames a second | redraw, ms: median | slowest of 120 |\n|---|---|---|---|"
        )
        for name in SLIDERS:
            found = drag(tab, name, 120)
            times = 1e3 * found.redraws
            rate = found.frames_per_second
            print(f"| {name} | {rate:.0f} | {np.median(times):.1f} | {times.max():.1f} |")
        print(f"\nChromium {browser.version}, without a GPU; {machine()}")
        browser.close()


if __name__ == "__main__":
    main()

"""The explorer: its tables and every number of its page against the library, and its controls."""

import base64
import contextlib
import io
import json
import math
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from benchmarks import explorer
from numpy.polynomial import chebyshev
from playwright.sync_api import Page

import largeprompt as lp

from . import browser
from .site_builder import ROOT, builder, module_at

explorer_page = builder("explorer")
tables = module_at(ROOT / "docs" / "explorer" / "tables.py")

# sigma, L, d, noise, query, target: what the sliders reach, ends included
STATES = [
    (1.5, 1000, 5, 0.1, "one", 0.01),
    (0.05, 2, 1, 2.0, "one", 0.5),
    (0.79, 17, 3, 0.5, "random", 0.003),
    (4.0, 10**12, 32, 0.01, "one", 1e-4),
    (3.2, 49, 32, 0.013, "one", 0.02),
    (1.0, 30, 5, 0.1, "random", 0.01),
    (3.0, 4096, 1, 1.0, "random", 0.3),
    (0.3, 10**9, 2, 0.05, "random", 1e-4),
]
NAMES = ("sigma", "L", "d", "noise", "query", "target")
TOLERANCE = 1e-6


def _state(values: tuple) -> dict[str, Any]:
    return dict(zip(NAMES, values, strict=True))


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    found = json.loads(tables.FILE.read_text(encoding="utf-8"))
    return {name: _decoded(value) for name, value in found.items()}


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return np.frombuffer(base64.b64decode(value["data"]), "<f8").reshape(value["shape"])


def _on_panel(log_L: float, low: float, high: float, panels: int) -> tuple[int, float]:
    at = (log_L - low) / (high - low) * panels
    panel = min(panels - 1, int(at))
    return panel, 2 * (at - panel) - 1


def test_tables_of_weights_are_those_of_the_library(stored):
    rng = np.random.default_rng(0)
    S = stored["variance"]
    for log_L in rng.uniform(0.0, stored["weights_end"], 6):
        panel, x = _on_panel(log_L, 0.0, stored["weights_end"], len(stored["weights"]))
        log_p2, log_error = chebyshev.chebval(x, stored["weights"][panel])
        chosen = rng.choice(np.flatnonzero(S < 1500.0), 8)
        found = lp.participation(np.sqrt(S[chosen]), math.exp(log_L))
        p2, p3, p22 = (np.asarray(value) for value in (found.p2, found.p3, found.p22))
        error = (p2 + S[chosen] * (p2 - 6 * p3 + 6 * p22)) / (1 + S[chosen])
        np.testing.assert_allclose(np.exp(log_p2[chosen]), p2, rtol=1e-8)
        np.testing.assert_allclose(np.exp(log_error[chosen]), error, rtol=1e-8)


def test_tables_of_pairs_are_those_of_the_library(stored):
    rng = np.random.default_rng(1)
    low, high = stored["pair_start"], stored["pair_end"]
    for log_L, sigma in zip(rng.uniform(low, high, 4), (0.3, 1.0, 2.2, 7.0), strict=True):
        L = math.exp(log_L)
        panel, x = _on_panel(log_L, low, high, len(stored["pair"]))
        r = 2 * math.log1p(sigma**2) / stored["pair_top"] - 1
        found = chebyshev.chebval(r, chebyshev.chebval(x, stored["pair"][panel]).T)
        one, two = lp.participation(sigma, L), lp.pair_moments(sigma, sigma, -1.0, L)
        p2, p3, p22 = (float(value) for value in (one.p2, one.p3, one.p22))
        delta = float(two.c11 - two.c21 - two.c12 + two.c11_squared)
        mixed = 2 * float(two.a2c11 - two.c21 + two.b2c11 - two.c12)
        K = p2 - 6 * p3 + 6 * p22 - (mixed - float(two.a2b2) - delta) - 4 * p2
        difference = (p2 - float(two.c11)) * L**2 / (2 * (L - 1) * sigma**2)
        np.testing.assert_allclose(found, [L * p2, difference, -K * L / 2], rtol=1e-7)


def test_tables_of_ridge_are_those_of_the_library(stored):
    low, high = np.log(stored["noise"])
    for d, L, noise in ((1, 1, 0.01), (7, 5, 0.3), (32, 33, 2.0), (32, 49, 0.01), (5, 10**6, 0.1)):
        n = 2 * (math.log(noise) - low) / (high - low) - 1
        if L <= tables.SHORT:
            row = stored["ridge_short"][d - 1, L - 1]
        else:
            first, last = (math.log(end - d) for end in (tables.SHORT, stored["ridge_end"]))
            x = 2 * (math.log(L - d) - first) / (last - first) - 1
            row = chebyshev.chebval(x, stored["ridge"][d - 1])
        found = noise / 2 * (1 + math.exp(chebyshev.chebval(n, row)) / (d * noise))
        task = lp.LinearRegression(np.eye(d), np.eye(d) / d, noise)
        assert found == pytest.approx(float(task.bayes_risk(L).value), rel=1e-8)


def test_page_is_one_small_file_that_loads_nothing():
    text = explorer_page.page()
    assert len(text.encode()) < 2_000_000
    assert not re.search(r"^\s*(import|export) ", text, flags=re.MULTILINE)
    assert not re.search(r"""(src|href)=["'](?!data:)|url\((?!#)|@import|fetch\(""", text)
    assert text.isascii() or '<meta charset="utf-8">' in text
    for place in ("style.css", "tables.json", "scripts"):
        assert f"/* {place} */" not in text


def test_explorer_is_written_and_opened(tmp_path, monkeypatch, capsys):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    target = tmp_path / "new" / "mine.html"
    monkeypatch.setattr("sys.argv", ["explorer.py", str(target)])
    runpy.run_path(str(ROOT / "docs" / "builder" / "explorer.py"), run_name="__main__")
    assert target.read_text(encoding="utf-8") == explorer_page.page()
    assert opened == [target.as_uri()]
    assert capsys.readouterr().out == f"explorer: {target}\n"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory) -> Iterator[tuple[Page, list[str]]]:
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer_page.page(), encoding="utf-8")
    with browser.opened(path, 1280, 860) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("values", STATES, ids=str)
def test_state_has_the_numbers_of_the_library(laptop, values):
    tab, troubles = laptop
    state = _state(values)
    found = tab.evaluate("state => largeprompt.state(state)", state)
    sigma, L, d, noise, query, target = values
    mu = lp.Gaussian(np.zeros(d), np.eye(d))
    head = lp.Head(U=sigma / math.sqrt(d) * np.eye(d), V=np.eye(d))
    z = mu if query == "random" else lp.Dirac(np.ones(d))
    here = lp.regime(sigma, L)
    task = lp.LinearRegression(np.eye(d), np.eye(d) / d, noise)
    expected = {
        "p2": here.p2,
        "effective": 1 / here.p2,
        "x": here.x,
        "averagingFrom": here.averaging_from,
        "frozenUntil": here.frozen_until,
        "error": float(lp.concentration_curve(head, mu, z, [float(L)]).value[0]),
        "length": lp.prompt_length_for(head, mu, z, target, relative=True).length,
        "rate": lp.sharp_exponent(sigma**2 / d) if query == "random" else 1.0,
        "linear": float(task.minimiser(L, "linear").risk),
        "ridge": float(task.bayes_risk(L).value),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=TOLERANCE), name
    assert found["regime"] == here.name
    assert found["oneHead"]["risk"] == pytest.approx(float(task.minimiser(L).risk), rel=TOLERANCE)
    assert not troubles


@pytest.mark.slow
@pytest.mark.parametrize(("d", "noise", "L"), [(5, 0.1, 30), (16, 0.01, 10), (32, 2.0, 1000)])
def test_state_has_the_best_pair_of_the_library(laptop, d, noise, L):
    tab, _ = laptop
    found = tab.evaluate("s => largeprompt.state(s)", {"d": d, "noise": noise, "L": L})["pair"]
    task = lp.LinearRegression(np.eye(d), np.eye(d) / d, noise)
    best = float(task.minimiser(L, heads=2).risk)
    assert found["risk"] == pytest.approx(best, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "noise", "L"), [(3, 0.2, 4)])
def test_state_has_the_risk_of_its_pair(laptop, d, noise, L):
    tab, _ = laptop
    found = tab.evaluate("s => largeprompt.state(s)", {"d": d, "noise": noise, "L": L})["pair"]
    task = lp.LinearRegression(np.eye(d), np.eye(d) / d, noise)
    A, b = found["a"] * np.eye(d), found["b"]
    pair = lp.MultiHeadParams([lp.BlockParams(A, b), lp.BlockParams(-A, -b)])
    assert found["risk"] == pytest.approx(float(task.risk(pair, L).value), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("matrices", [False, True], ids=["isotropic", "matrices"])
@pytest.mark.parametrize("values", [STATES[0], STATES[5]], ids=["one", "random"])
def test_python_prints_the_numbers_of_the_page(laptop, values, matrices):
    tab, _ = laptop
    state = _state(values)
    if matrices:
        state |= dict(zip("UGz", map(_words, _head(5, 5, seed=0)), strict=True))
    found = tab.evaluate("state => largeprompt.state(state)", state)
    assert bool(found["U"]) == matrices
    printed = io.StringIO()
    with jax.enable_x64(True), contextlib.redirect_stdout(printed):
        exec(compile(tab.evaluate("largeprompt.python()"), "exported", "exec"), {})
    tab.evaluate("largeprompt.state({U: ''})")
    numbers = dict(line.split(": ") for line in printed.getvalue().splitlines())
    expected = {
        "effective tokens": found["effective"],
        "squared error": found["error"],
        "tokens needed": found["length"],
        "one softmax head": found["oneHead"]["risk"],
        "pair of heads": found["pair"]["risk"],
        "linear head": found["linear"],
        "ridge": found["ridge"],
    }
    assert numbers.pop("regime") == found["regime"]
    if values[4] == "random":
        expected["exponent of the rate"] = found["rate"]
    assert set(numbers) == set(expected)
    for name, value in expected.items():
        assert float(numbers[name]) == pytest.approx(value, rel=TOLERANCE), name


def _shown_state(tab: Page) -> dict[str, Any]:
    return tab.evaluate("largeprompt.state()")


@pytest.mark.slow
def test_sliders_follow_the_keyboard_and_typed_values(laptop):
    tab, troubles = laptop
    tab.evaluate("largeprompt.state({sigma: 1, L: 1000, d: 5, query: 'one', target: 0.01})")
    tab.wait_for_function("document.getElementById('sigma-value').value === '1'")
    tab.focus("#sigma")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        tab.keyboard.press(key)
    assert _shown_state(tab)["sigma"] == 1.01
    tab.focus("#L")
    tab.keyboard.press("End")
    assert _shown_state(tab)["L"] == 1e12
    tab.keyboard.press("Home")
    assert _shown_state(tab)["L"] == 2
    tab.fill("#L-value", "1e6")
    tab.press("#L-value", "Enter")
    assert _shown_state(tab)["L"] == 10**6
    tab.fill("#d-value", "99")  # clamped
    tab.press("#d-value", "Tab")
    assert tab.input_value("#d-value") == "32"
    tab.fill("#sigma-value", "not a number")
    tab.press("#sigma-value", "Tab")
    assert tab.input_value("#sigma-value") == "1.01"
    tab.wait_for_function("document.getElementById('L').getAttribute('aria-valuetext')[0] === '1'")
    assert tab.get_attribute("#L", "aria-valuetext") == "1,000,000 tokens"
    tab.get_by_role("button", name="random").focus()
    tab.keyboard.press("Space")
    assert _shown_state(tab)["query"] == "random"
    assert not troubles


def _words(matrix: np.ndarray) -> str:
    return ";".join(",".join(map(repr, map(float, row))) for row in np.atleast_2d(matrix))


def _head(d: int, rank: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """U of that rank and deviation 1, a covariance, and the direction of a query."""
    rng = np.random.default_rng(seed)
    left, right, root = (
        rng.normal(size=(d, rank)),
        rng.normal(size=(rank, d)),
        rng.normal(size=(d, d)),
    )
    U, G = left @ right, root @ root.T / d + 0.1 * np.eye(d)
    return U / math.sqrt(np.trace(U.T @ G @ U)), G, rng.normal(size=d)


@pytest.mark.slow
@pytest.mark.parametrize(("d", "rank", "sigma", "L"), [(5, 2, 2.0, 10**6), (32, 32, 2.5, 1000)])
def test_state_has_the_error_of_a_head_with_matrices(laptop, d, rank, sigma, L):
    """Over random queries; at one query, with length and rate, in the lines of Python below."""
    tab, troubles = laptop
    U, G, _ = _head(d, rank, seed=d)
    state = {"sigma": sigma, "L": L, "query": "random", "U": _words(U), "G": _words(G)}
    found = tab.evaluate("state => largeprompt.state(state)", state)
    tab.evaluate("largeprompt.state({U: ''})")
    assert found["d"] == d
    mu, nu = (lp.Gaussian(np.zeros(d), cov) for cov in (G, np.eye(d)))
    curve = lp.concentration_curve(lp.Head(U=sigma * U, V=np.eye(d)), mu, nu, [float(L)])
    assert found["error"] == pytest.approx(float(curve.value[0]), rel=TOLERANCE)
    assert found["rate"] == pytest.approx(curve.attrs["sharp_exponent"], rel=TOLERANCE)
    assert not troubles


@pytest.mark.slow
def test_matrices_are_typed_scaled_linked_and_dropped(laptop):
    tab, troubles = laptop
    U, G, z = _head(3, 3, seed=2)
    tab.evaluate("largeprompt.state({query: 'one'})")
    tab.evaluate("document.querySelector('.matrices').open = true")
    tab.fill("#matrix-U", str((2 * U).tolist()))  # as Python prints it
    tab.fill("#matrix-G", "\n".join(" ".join(map(repr, row)) for row in G.tolist()))
    tab.fill("#matrix-z", " ".join(map(repr, z.tolist())))
    tab.click("#use-head")
    there = _shown_state(tab)
    assert (there["sigma"], there["d"]) == pytest.approx((2.0, 3), rel=1e-12)
    link = tab.evaluate("largeprompt.link()")
    tab.evaluate("largeprompt.state({sigma: 1})")
    tab.wait_for_function(
        "document.getElementById('head-read').textContent.includes('U times 0.5')"
    )
    assert _shown_state(tab)["U"] == there["U"]
    tab.click("#drop-head")
    assert _shown_state(tab)["U"] == ""
    tab.evaluate("link => { location.hash = link; }", link)
    tab.wait_for_function("largeprompt.state().U !== ''")
    assert _shown_state(tab) == there
    tab.evaluate("largeprompt.state({d: 7})")  # of an isotropic head
    assert _shown_state(tab)["U"] == ""
    tab.evaluate("document.querySelector('.matrices').open = true")
    for U, G, z, message in (
        ("one", "", "", "U must be rows of numbers"),
        ("1 2", "", "", "U must be square"),
        ("1 0; 0 1", "1 0 0; 0 1 0; 0 0 1", "", "the covariance must be 2 × 2"),
        ("1 0; 0 1", "1 2; 0 1", "", "must be symmetric"),
        ("1 0; 0 1", "1 2; 2 1", "", "must be positive semidefinite"),
        ("1 0; 0 1", "", "1 2 3", "the query must have 2 numbers"),
        ("1 0; 0 1", "", "0 0", "must not be constant"),
        ("0 0; 0 0", "", "", "must be positive"),
        ("1 0; 0 1", "1; 2 3", "", "the covariance must be rows of numbers"),
    ):
        for name, words in (("U", U), ("G", G), ("z", z)):
            tab.fill(f"#matrix-{name}", words)
        tab.click("#use-head")
        assert message in tab.inner_text("#head-read")
    assert _shown_state(tab)["d"] == 7
    assert not troubles


@pytest.mark.slow
def test_exports_are_a_figure_and_a_script(laptop):
    tab, troubles = laptop
    saved = {}
    tab.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for name in ("svg", "png", "python"):
        with tab.expect_download() as coming:
            tab.click(f"#save-{name}")
        saved[name] = Path(coming.value.path()).read_bytes()
    svg = saved["svg"].decode()
    assert svg.startswith("<svg xmlns=")
    assert svg.count("<path") > 8
    assert "NaN" not in svg
    assert "you are here" in svg
    assert saved["png"].startswith(b"\x89PNG")
    assert len(saved["png"]) > 50_000
    assert saved["python"].decode() == tab.evaluate("largeprompt.python()")
    assert not troubles


def _drag_by_touch(
    tab: Page, name: str, start: tuple[float, float], end: tuple[float, float]
) -> dict[str, Any]:
    """Drag a finger between two points of an element, given as parts of its size."""
    box = tab.locator(name).bounding_box()
    assert box is not None
    session = tab.context.new_cdp_session(tab)
    for kind, part in (("touchStart", 0.0), ("touchMove", 0.5), ("touchMove", 1.0)):
        x, y = (a + part * (b - a) for a, b in zip(start, end, strict=True))
        point = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    return _shown_state(tab)


@pytest.mark.slow
def test_link_carries_the_state_to_a_phone(laptop):
    """The page opened by the link, by touch, in the dark, without a console message."""
    tab, _ = laptop
    there = tab.evaluate("largeprompt.state({sigma: 2.34, L: 777, d: 7, noise: 0.25, seed: 5})")
    link = tab.evaluate("largeprompt.link()")
    tab.wait_for_function("link => location.hash === link", arg=link)
    assert tab.context.browser is not None
    context = tab.context.browser.new_context(
        viewport={"width": 390, "height": 844}, offline=True, has_touch=True, color_scheme="dark"
    )
    troubles: list[str] = []
    phone = context.new_page()
    phone.on("console", lambda said: troubles.append(said.text))
    phone.on("pageerror", lambda error: troubles.append(str(error)))
    phone.goto(tab.url.partition("#")[0] + link)
    assert _shown_state(phone) == there
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    top = "element => element.getBoundingClientRect().top"
    assert phone.locator(".answer").evaluate(top) < phone.locator(".side").evaluate(top)

    def tap(name: str, x: float, y: float) -> dict[str, Any]:
        phone.locator(name).scroll_into_view_if_needed()
        box = phone.locator(name).bounding_box()
        assert box is not None
        phone.touchscreen.tap(box["x"] + x * box["width"], box["y"] + y * box["height"])
        return _shown_state(phone)

    moved = tap("#chart-regimes", 0.75, 0.3)
    assert moved["L"] > 1e6
    assert 2 < moved["sigma"] < 4
    dragged = _drag_by_touch(phone, "#chart-regimes", (0.75, 0.3), (0.4, 0.6))
    assert dragged["L"] < moved["L"] / 100
    assert dragged["sigma"] < moved["sigma"] - 0.5
    assert tap("#noise", 0.9, 0.5)["noise"] > 0.9
    assert tap("[data-query=one]", 0.5, 0.5)["query"] == "one"
    context.close()
    assert not troubles


@pytest.mark.slow
@pytest.mark.parametrize("slider", explorer.SLIDERS)
def test_figures_are_drawn_in_each_frame_of_a_drag(laptop, slider):
    """Rates depend on the machine: `python -m benchmarks.explorer` measures them."""
    tab, troubles = laptop
    tab.evaluate("largeprompt.state({query: 'one'})")
    found = explorer.drag(tab, slider, 30)
    assert len(set(found.starts)) == 30
    assert found.redraws.min() > 0
    assert "NaN" not in tab.inner_html("main")
    assert not troubles

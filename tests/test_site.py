"""The site: its navigation, the entries of the API reference, formulas, and the build."""

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser

import largeprompt as lp

from .browser import opened
from .site_builder import ROOT, builder, generated_pages

api, formulas = builder("api"), builder("formulas")


def _pages(nav: object) -> list[str]:
    """Pages of a navigation, depth first."""
    if isinstance(nav, str):
        return [nav]
    assert isinstance(nav, list | dict)
    return [
        page for part in (nav.values() if isinstance(nav, dict) else nav) for page in _pages(part)
    ]


def test_navigation_has_every_page_once():
    """A page in docs that is not in mkdocs.yml, or the other way round, fails here."""
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    found = _pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(found) == len(set(found))
    assert set(found) == written | generated_pages()


def test_api_pages_have_every_public_name_once():
    entries = [entry for names in api.entries().values() for entry in names]
    objects = {name for name in lp.__all__ if not inspect.ismodule(getattr(lp, name))}
    names = [name for name, _ in entries]
    assert len(names) == len(set(names))
    assert {f"lp.{name}" for name in objects} == {name for name in names if name.count(".") == 1}
    assert set(lp.__all__) - objects <= set(api.TITLES)  # rooms have pages
    text = "\n".join(api.pages().values())
    for name, path in entries:
        module, _, short = path.rpartition(".")
        defined = getattr(importlib.import_module(module), short)
        folder, _, last = name.replace("lp", "largeprompt", 1).rpartition(".")
        public = getattr(importlib.import_module(folder), last)
        assert public is defined, name
        assert defined.__doc__, name
        assert len(re.findall(rf"^::: {re.escape(path)}$", text, re.MULTILINE)) == 1, name


def test_api_pages_have_the_classes_that_public_functions_return():
    entries = {path for names in api.entries().values() for _, path in names}
    short = {path.rpartition(".")[2] for path in entries}
    returned = set()
    for name in lp.__all__:
        if inspect.isfunction(function := getattr(lp, name)):
            annotation = function.__annotations__.get("return")
            if inspect.isclass(annotation) and annotation.__module__.startswith("largeprompt."):
                returned.add(annotation.__name__)
    assert len(returned) > 10
    assert returned <= short


@pytest.mark.parametrize(
    ("plain", "tex"),
    [
        ("e^<u,x>", r"e^{\langle u,x\rangle }"),
        ("P_22 - 6 P_3", "P_{22} - 6 P_3"),
        ("grad psi_mu(U z)", r"\nabla  \psi _{\mu }(U z)"),
        ("sqrt(f(x) / 2)^-1", r"\sqrt{f(x) / 2}^{-1}"),
        ("E tr(V G V')", r"\mathbb{E}\,  \operatorname{tr}(V G V')"),
        ("s >= 1,    t = 0", r"s \ge  1, \quad t = 0"),
        ("[[A, 0], [0, b]]", r"\begin{pmatrix} A & 0 \\ 0 & b \end{pmatrix}"),
        (r"\frac{1}{L}", r"\frac{1}{L}"),
    ],
)
def test_tex_of_plain_formulas(plain, tex):
    assert formulas.tex(plain) == tex


def test_typeset_changes_marked_formulas_only():
    marked = r'<span class="arithmatex">\(&lt;x, U z&gt; &lt;= 1\)</span> <code>&lt;x&gt;</code>'
    expected = r'<span class="arithmatex">\(\langle x, U z\rangle  \le  1\)</span> '
    assert formulas.typeset(marked) == expected + "<code>&lt;x&gt;</code>"


def test_formulas_of_docstrings_are_closed():
    """An odd number of dollars would typeset the text between two formulas."""
    found = 0
    for names in api.entries().values():
        for _, path in names:
            module, _, short = path.rpartition(".")
            text = inspect.getdoc(getattr(importlib.import_module(module), short)) or ""
            prose = re.sub(r"^(>>>|\.\.\.|\[').*$|`[^`]*`", "", text, flags=re.MULTILINE)
            assert prose.count("$") % 2 == 0, path
            for formula in re.findall(r"\$\$?(.+?)\$\$?", prose):
                found += 1
                tex = formulas.tex(formula)
                assert tex.count("{") == tex.count("}"), formula
    assert found > 50


@pytest.mark.slow
def test_site_builds_and_needs_no_network(tmp_path):
    """Warnings fail the build. Pages load nothing from elsewhere, and every formula is typeset."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not re.search(
            r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', page.read_text()
        )
    for name in ("index.html", "api/measures.html"):
        with opened(tmp_path / name, 1200, 800) as (tab, troubles):
            tab.wait_for_selector(".katex")
            assert tab.locator(".arithmatex:not(.typeset)").count() == 0
            assert tab.locator(".katex-error").count() == 0
            assert not troubles
            if name == "index.html":
                assert tab.context.browser is not None
                _read_on_a_phone(tab.context.browser, tmp_path / "how_to_choose.html")


def _read_on_a_phone(browser: Browser, page: Path) -> None:
    """A page 390 pixels wide in the dark: nothing is cut off, and the search finds a function."""
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, offline=True, has_touch=True, color_scheme="dark"
    )
    troubles: list[str] = []
    tab = context.new_page()
    tab.on("console", lambda said: troubles.append(said.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.goto(page.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", paper)[:3])) < 80, paper
    tab.locator("label[for=__search]").first.click()
    tab.locator(".md-search__input").press_sequentially("prompt_length_for")
    tab.locator(".md-search-result__link").first.wait_for()
    assert "prompt_length_for" in tab.locator(".md-search-result__list").inner_text()
    context.close()
    assert not troubles

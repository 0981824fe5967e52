"""The studies at quick scale, computed once: verdicts, mutants, broken code, and the page."""

import io
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from markupsafe import escape
from PIL import Image

import largeprompt as lp
from reproduction import folder
from reproduction.catalogue import catalogue, load
from reproduction.record import from_dataset
from reproduction.report import inline_svg
from reproduction.report.formulas import typeset

from . import browser
from .reproduction.here import run

pytestmark = pytest.mark.slow
KEY = jax.random.key(0)
STUDIES = {name: load(file) for name, file in catalogue().items() if not load(file).weights}


_TRAINED: dict[str, xr.Dataset] = {}


def trained_once(*arguments, exact=lp.published_experiment, **options):
    """The published experiment, trained once for each set of arguments."""
    key = repr((arguments, options))
    if key not in _TRAINED:
        _TRAINED[key] = exact(*arguments, **options)
    return _TRAINED[key].copy(deep=True)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory) -> Path:
    """All studies at quick scale, computed once by the command itself."""
    out = tmp_path_factory.mktemp("paper") / "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lp, "published_experiment", trained_once)
        assert run("--out", out) == 0
    return out


def _stored(out: Path, name: str) -> xr.Dataset:
    record = folder.read(out, name)
    assert record is not None
    return record


def _data(out: Path, name: str) -> xr.Dataset:
    return from_dataset(_stored(out, name), STUDIES[name]).data


BOUNDED = {"proposition-3.1", "proposition-3.4"}


@pytest.mark.parametrize("name", STUDIES)
def test_study_finds_that_every_statement_holds(name, reproduced):
    findings = from_dataset(_stored(reproduced, name), STUDIES[name])
    assert findings.as_expected, findings.verdict
    assert findings.verdict.word == ("holds for L >= 2" if name in BOUNDED else "holds")
    assert findings.verdict == STUDIES[name].judge(findings.checks)


def test_studies_have_as_many_checks_as_ever(reproduced):
    assert sum(_stored(reproduced, name).sizes["check"] for name in STUDIES) >= 294


@pytest.mark.parametrize("name", STUDIES)
def test_findings_of_stored_data_are_the_stored_ones(name, reproduced):
    stored = from_dataset(_stored(reproduced, name), STUDIES[name])
    again = STUDIES[name].findings(stored.data)
    assert again.verdict == stored.verdict
    assert again.checks == stored.checks


@pytest.mark.parametrize("name", STUDIES)
def test_unnoticed_is_empty_for_every_study(name, reproduced):
    """The mutants are made from the stored numbers; nothing is computed again."""
    study = STUDIES[name]
    assert study.notices
    assert study.unnoticed(_data(reproduced, name)) == []


@pytest.mark.parametrize("name", STUDIES)
def test_notices_and_context_cover_every_variable(name, reproduced):
    study, data = STUDIES[name], _data(reproduced, name)
    assert set(study.notices) | set(study.context) == set(data.data_vars)
    assert not set(study.notices) & set(study.context)
    # no check may depend on context
    for variable in study.context:
        assert study.findings(data.assign({variable: 3 * data[variable]})).as_expected


@pytest.mark.usefixtures("reproduced")  # the same shapes: what was compiled there serves here
@pytest.mark.parametrize("name", STUDIES)
def test_study_run_with_broken_code_changes_the_verdict(name, monkeypatch):
    study = STUDIES[name]
    assert study.broken is not None
    monkeypatch.setattr(lp, "published_experiment", trained_once)
    study.broken(monkeypatch.setattr)
    with jax.enable_x64(True):
        broken = study.run({**study.quick, **study.fewer}, KEY)
    assert broken.verdict.word in ("fails", "not testable")
    assert not broken.as_expected


def test_conclusion_names_both_groups_and_every_restriction(reproduced):
    text = (reproduced / "index.html").read_text(encoding="utf-8")
    plain = re.sub(r"<[^>]+>", "", text.split('<div class="answer">')[1].split("</div>")[0])
    ours, paper = (sum(s.of_paper == of for s in STUDIES.values()) for of in (False, True))
    limited = sum(
        s.of_paper and (name in BOUNDED or bool(s.restriction)) for name, s in STUDIES.items()
    )
    assert f"The paper: {paper} of {paper} statements hold, {limited} of them with a " in plain
    for text in ("Proposition 3.1 (for L ≥ 2 only)", "Proposition 3.4 (for L ≥ 2 only)"):
        assert text in plain
    assert re.search(r"Section 6 \(.*about half of the published initialisations do not\)", plain)
    assert f"This project: {ours} of {ours} statements hold" in plain


def test_figures_say_that_the_constant_of_the_bound_is_fitted(reproduced):
    for name in BOUNDED:
        study = STUDIES[name]
        titles = [panel.title for panel in study.panels(_data(reproduced, name))]
        assert any("fitted" in title for title in titles)
        assert "fitted here" in study.caption


def test_study_has_the_same_settings_at_both_scales():
    for study in STUDIES.values():
        assert set(study.quick) == set(study.full), study.name


def _markup(out: Path) -> str:
    """The page without its scripts."""
    text = (out / "index.html").read_text()
    return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_write_report_makes_a_small_page_without_external_resources(reproduced):
    assert (reproduced / "index.html").stat().st_size < 1_500_000
    outside = _markup(reproduced)
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", outside)
    for study in STUDIES.values():
        assert study.title in outside
        assert typeset(study.statement) in outside
        assert typeset(study.method) in outside
        assert f"python -m reproduction --study {study.name}</code>" in outside
    assert outside.count("<math ") >= len(STUDIES)
    assert "\\frac" not in outside


def test_write_report_makes_links_that_exist(reproduced):
    text = _markup(reproduced)
    anchors = set(re.findall(r' id="([^"]+)"', text))
    targets = re.findall(r'<a href="([^"]+)"', text)
    assert len(targets) > 4 * len(STUDIES)
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in anchors
        else:
            assert (reproduced / target).stat().st_size > 0


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)], ids=["desk", "phone"])
def test_write_report_makes_a_page_that_works_in_a_browser(reproduced, width, height):
    with browser.opened(reproduced / "index.html", width, height) as (tab, troubles):
        # the first screen has the answer and a figure; everything else is folded
        lead = tab.locator("figure.lead")
        top = "element => element.getBoundingClientRect().top"
        assert tab.locator(".answer").evaluate(top) < lead.evaluate(top)
        assert lead.locator(".panel > svg").evaluate(top) < height / 2
        assert tab.locator("details[open]").count() == 0
        # a link opens its study
        tab.locator("#summary a").nth(3).click()
        tab.locator("details[open]").wait_for()  # the page follows the link a moment later
        assert tab.locator("details[open]").count() == 1
        tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        figures = tab.locator("details.study figure")
        assert figures.count() == len(STUDIES)
        for box in tab.locator(".panel > svg").evaluate_all(
            "all => all.map(svg => svg.getBoundingClientRect().toJSON())"
        ):
            assert box["width"] > 250
            assert box["height"] > 150
        _use_a_figure(tab)
        picture = Image.open(io.BytesIO(figures.first.screenshot())).convert("L")
        assert np.asarray(picture).std() > 5  # not one colour
        assert not troubles


def _use_a_figure(tab):
    """Read a value at the pointer, switch an axis, hide a curve; all of it in the lead figure."""
    lead = tab.locator("figure.lead")
    lead.scroll_into_view_if_needed()
    numbers = json.loads(lead.locator("script").inner_text())
    path = lead.locator("g[data-entry='0'] .l").first
    x, y, *_ = map(float, re.findall(r"[\d.]+", path.get_attribute("d")))
    box = lead.locator(".panel > svg").bounding_box()
    scale = box["width"] / inline_svg.WIDTH
    tab.mouse.move(box["x"] + x * scale, box["y"] + y * scale)
    first = numbers["series"][0]
    assert tab.locator("#reading b").inner_text() == f"{first['y'][0]:.4g}"
    assert tab.locator("#reading").inner_text().endswith(f"at {first['x'][0]:.4g}")
    switch = lead.locator(".switches button").last
    assert switch.inner_text() == "y: log"
    before = path.get_attribute("d")
    switch.click()
    assert switch.inner_text() == "y: linear"
    low, high, _ = numbers["axes"]["y"]["linear"]
    linear = float(re.findall(r"[\d.]+", path.get_attribute("d"))[1])
    assert abs(low + (246 - linear) / 238 * (high - low) - first["y"][0]) < 0.01 * (high - low)
    switch.click()
    assert path.get_attribute("d") == before
    curve = lead.locator(".legend button").first
    curve.click()
    assert not path.is_visible()
    curve.click()
    assert path.is_visible()


def test_write_report_makes_a_page_for_dark_screens_and_for_paper(reproduced):
    def grey(tab):
        picture = Image.open(io.BytesIO(tab.screenshot())).convert("L")
        return float(np.median(np.asarray(picture)))

    with browser.opened(reproduced / "index.html", 1000, 800) as (tab, troubles):
        assert grey(tab) > 240
        curve = tab.locator("figure.lead g[data-entry='0'] .l").first
        colour = "path => getComputedStyle(path).stroke"
        light = curve.evaluate(colour)
        tab.emulate_media(color_scheme="dark")
        assert grey(tab) < 40
        assert curve.evaluate(colour) != light
        tab.emulate_media(color_scheme="dark", media="print")  # paper is white all the same
        assert grey(tab) > 240
        assert curve.evaluate(colour) == light
        assert not tab.locator(".switches").first.is_visible()
        # nothing is folded on paper
        assert tab.locator("details.study figure svg").last.is_visible()
        assert not troubles


def test_write_report_describes_every_picture(reproduced):
    """Alternative texts have the numbers of the curves and do not repeat the title."""
    texts = re.findall(r'role="img" aria-label="([^"]+)"', _markup(reproduced))
    assert len(texts) > len(STUDIES)
    for text in texts:
        assert " against " in text
        assert re.search(r"\d", text)
    titles = {str(escape(study.title)) for study in STUDIES.values()}
    assert not titles & set(texts)


def test_write_report_typesets_checks(reproduced):
    rows = re.findall(r'<td data-label="check"><span>(.*?)</span></td>', _markup(reproduced))
    assert len(rows) > 250
    plain = [re.sub(r"<[^>]+>", "", row) for row in rows]
    assert not [row for row in plain if re.search(r"\w[\^_]|\bsigma\b|\de[-+]?\d|>=", row)]

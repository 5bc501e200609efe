"""The page of a report in a real browser: `make browser`, which needs Chromium."""

import os
from pathlib import Path

import pytest
from test_page import EVIL, KEY, WRONG, w, x

import covector
from covector._index import Line, write_index
from mutants import away, only, ruled
from planted import cubed

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is not there; set CHROMIUM to where Chromium is"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the page of a report; afterwards nothing may have been complained about or requested."""
    complaints, requests, contexts = [], [], []

    def open_page(report, **options):
        path = tmp_path / "page.html"
        report.to_html(path)
        contexts.append(browser.new_context(viewport={"width": 1200, "height": 1600}, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        assert requests == [path.as_uri()]
        return page

    yield open_page
    assert complaints == []
    assert len(requests) == len(contexts)
    for context in contexts:
        context.close()


def point_at(page, kind, row, column, size):
    """Move the mouse to a cell of a map that has `size` rows and columns and fills its place."""
    box = page.locator(f"#map-{kind}").bounding_box()
    x, y = (column + 0.5) * box["width"] / size[1], (row + 0.5) * box["height"] / size[0]
    page.mouse.move(box["x"] + x, box["y"] + y)


def pixels(page, kind):
    """The picture of a map."""
    return page.evaluate(f"document.getElementById('map-{kind}').toDataURL()")


def test_pointing_at_a_cell_shows_its_values(opened):
    page = opened(covector.check(WRONG, (x, w)))
    assert "Point at a cell" in page.inner_text("#readout")
    point_at(page, "error", 0, 4, (2, 6))
    text = page.inner_text("#readout")
    assert "d output[0] / d w[2, 0]" in text
    assert "analytic 4 numeric 2 error 2 > allowed 0.00201" in " ".join(text.split())
    point_at(page, "analytic", 1, 4, (2, 6))
    assert "d output[1] / d w[2, 0]" in page.inner_text("#readout")
    assert "error 0 ≤ allowed" in page.inner_text("#readout")


def test_another_pair_is_shown(opened):
    page = opened(covector.check(WRONG, (x, w)))
    assert page.inner_text("#pair-name") == "d output / d w"
    before = pixels(page, "numeric")
    page.click("text=d output / d x")
    assert page.inner_text("#pair-name") == "d output / d x"
    assert pixels(page, "numeric") != before
    point_at(page, "numeric", 0, 1, (2, 3))
    assert "d output[0] / d x[1]" in page.inner_text("#readout")
    assert page.locator("[aria-pressed=true]").inner_text() == "d output / d x"


def test_zooming_moving_and_going_back(opened):
    page = opened(covector.check(cubed(only(3, 1.5)), away((12,))(0)))
    whole = pixels(page, "error")
    page.click("#zoom-in")
    page.click("#zoom-in")
    near = pixels(page, "error")
    assert near != whole
    box = page.locator("#map-error").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 80, box["y"] + 80)
    page.mouse.up()
    page.mouse.move(0, 0)
    assert pixels(page, "error") not in (near, whole)
    page.click("#zoom-reset")
    assert pixels(page, "error") == whole
    page.focus("#map-error")
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.wheel(0, -300)
    page.wait_for_function("before => document.getElementById('map-error').toDataURL() !== before", arg=whole)


def test_everything_works_from_the_keyboard(opened):
    page = opened(covector.check(WRONG, (x, w)))
    page.focus("#map-analytic")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert "d output[1] / d w[1, 0]" in page.inner_text("#readout")
    before = pixels(page, "analytic")
    page.keyboard.press("+")
    assert pixels(page, "analytic") != before
    page.keyboard.press("0")
    assert pixels(page, "analytic") == before
    page.focus("[data-pair='1']")
    page.keyboard.press("Enter")
    assert page.inner_text("#pair-name") == "d output / d x"


def test_a_large_jacobian_and_the_entries_around_the_worst(opened):
    page = opened(covector.check(cubed(only(1234, 1.1)), away((2000,))(0)))
    point_at(page, "error", 1234 // 32, 1234 // 32, (63, 63))
    text = page.inner_text("#readout")
    assert "d output[1234] / d x[1234]" in text
    assert "the worst of 32 \u00d7 32 entries" in text
    page.select_option("#view", label="around d output[1234] / d x[1234]")
    point_at(page, "error", 12, 12, (24, 24))
    text = page.inner_text("#readout")
    assert "d output[1234] / d x[1234]" in text
    assert "worst of" not in text


def test_colours_follow_the_reader(opened):
    page = opened(covector.check(WRONG, (x, w)), color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    picture = pixels(page, "analytic")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    assert pixels(page, "analytic") != picture
    picture = pixels(page, "analytic")
    page.select_option("#scale", "linear")
    assert pixels(page, "analytic") != picture


def test_without_a_script_the_tables_are_readable(opened):
    page = opened(covector.check(WRONG, (x, w)), java_script_enabled=False)
    assert page.locator("canvas").first.is_hidden()
    assert page.locator("#theme").is_hidden()
    assert page.locator("#zoom-in").is_hidden()
    assert page.locator("code.no-js", has_text="d output / d w").is_visible()
    page.click("summary:has-text('d output / d w as a table')")
    assert page.locator("td", has_text="-2 / -1").first.is_visible()
    assert page.locator("svg.plot").first.is_visible()


def test_a_name_that_is_a_script_is_not_run(opened):
    def function(state):
        return cubed(lambda d: 2 * d)(state[KEY])

    function.__name__ = EVIL
    page = opened(covector.check(function, ({KEY: x},)))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    point_at(page, "error", 0, 0, (3, 3))
    assert KEY in page.inner_text("#readout")
    assert EVIL in page.inner_text("h1")


@pytest.mark.parametrize("width", [400, 1300])
def test_it_fits_the_window_and_entries_stay_on_one_line(opened, width):
    page = opened(covector.check(WRONG, (x, w)))
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lines = page.eval_on_selector_all("td code", "cells => cells.map((c) => c.getClientRects().length)")
    assert max(lines) == 1


def test_a_map_of_one_row_fills_its_place(opened):
    page = opened(covector.check(ruled(lambda x: x.sum(), lambda g, x: 2 * g.expand_as(x)), away((8,))(0)))
    box = page.locator("#map-error").bounding_box()
    assert box["height"] < box["width"] / 3
    for column in range(8):
        point_at(page, "error", 0, column, (1, 8))
        assert f"d output / d x[{column}]" in page.inner_text("#readout")
    unpainted = """canvas => {
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let clear = 0;
        for (let i = 3; i < pixels.length; i += 4) if (pixels[i] === 0) clear++;
        return 4 * clear / pixels.length;
    }"""
    assert page.eval_on_selector("#map-error", unpainted) < 0.05


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_index_follows_the_reader_and_fits(browser, tmp_path, scheme):
    """The list of pages has their colours, no line wider than the window, and one line for a diagnosis."""
    report = covector.check(WRONG, (x, w))
    where, hint = f"tests/test_{'long_' * 30}name.py::test", "likely: `" + "w" * 300 + "`"
    lines = [Line(where, "gradcheck(f)", "failed", 0.1, str(report), "page.html", hint, "failed")] * 3
    path = write_index(tmp_path, "3 checks did not pass", lines)
    report.to_html(tmp_path / "page.html")
    context = browser.new_context(viewport={"width": 400, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.set_viewport_size({"width": 1300, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1300
    assert page.locator(".hint").first.bounding_box()["height"] < 30
    page.click("a >> nth=0")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    assert page.inner_text("h1").startswith("check(")
    context.close()


def test_the_picture_in_the_documents_can_be_made(browser, tmp_path):
    """What `docs/make_images.py` does with the browser."""
    report = covector.check(WRONG, (x, w))
    report.to_html(tmp_path / "page.html")
    page = browser.new_page(viewport={"width": 1100, "height": 1500})
    page.goto((tmp_path / "page.html").as_uri())
    picture = page.locator("section[aria-labelledby=jacobians]").screenshot()
    page.close()
    assert picture.startswith(b"\x89PNG")

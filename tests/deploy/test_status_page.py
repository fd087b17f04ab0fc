"""The status page in a real browser: what it shows, keeps and forbids.

Set ``STATUS_PAGE_PICTURES`` to a directory to get a picture of every scene there.
"""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckpt_exporter.web.pages.status import StatusPage
from tests.deploy.status_scenes import HOSTILE, SCENES, history, saving, with_next_save
from tests.unit.web_site import Site, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

    from ckpt_exporter.model import Snapshot

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PICTURES = os.environ.get("STATUS_PAGE_PICTURES")
DESKTOP, TABLET, PHONE = ({"width": width, "height": 800} for width in (1200, 1000, 320))
# Runs before any script of the page: what the policy forbids is counted, not only logged.
WATCH_POLICY = """
window.violations = [];
document.addEventListener('securitypolicyviolation', e => violations.push(e.violatedDirective + e.sample));
"""

pytestmark = pytest.mark.skipif(not os.path.exists(CHROMIUM), reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run one browser for all tests."""
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture
def site() -> Iterator[Site]:
    """Serve the page by the real web server, with its real headers."""
    with serving() as running:
        yield running


def show(site: Site, snapshot: Snapshot) -> None:
    """Let the server show this snapshot from now on."""
    site.page[0] = StatusPage(lambda: snapshot, started=0.0, node="node-17")


@contextmanager
def looking(browser: Browser, site: Site, snapshot: Snapshot, **options: object) -> Iterator[Page]:
    """Open the page in a window of its own, its clock in the test's hand; no alert or error may come up."""
    show(site, snapshot)
    options.setdefault("viewport", DESKTOP)
    context: BrowserContext = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.add_init_script(WATCH_POLICY)
    page.clock.install()
    page.goto(f"http://127.0.0.1:{site.server.port}/")
    yield page
    if options.get("java_script_enabled", True):
        assert page.evaluate("window.violations") == []
    context.close()
    # A test that lets the server fail sees the browser's complaint about that.
    assert [text for text in complaints if "500" not in text] == []


def picture(page: Page, name: str) -> None:
    """Keep a picture for a person to look at, if one was asked for."""
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


def update(page: Page) -> None:
    """Let the time pass after which the page asks again, however long the last answer took."""
    with page.expect_response(lambda answer: answer.url.endswith("/")):
        page.clock.fast_forward(600_000)


def width_of(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


# --- what it shows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES)
def test_every_scene_fits_every_screen(browser: Browser, site: Site, scene: str) -> None:
    """In every state, light or dark, all details open, nothing is wider than the screen or forbidden."""
    with looking(browser, site, SCENES[scene]()) as page:
        for size, scheme in ((DESKTOP, "light"), (TABLET, "light"), (PHONE, "dark")):
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme)
            page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = false; })")
            picture(page, f"{scene}-{size['width']}-{scheme}")
            page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
            picture(page, f"{scene}-{size['width']}-{scheme}-open")
            assert width_of(page) <= size["width"]
            # What is cut off on the right would not widen the page.
            outside = page.evaluate(
                "[...document.querySelectorAll('main *')].filter(e => !e.closest('svg, .unseen, thead') &&"
                " e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
            )
            assert outside == [], size


def test_an_empty_page_says_so(browser: Browser, site: Site) -> None:
    """Before the first save there is a sentence, and no drawing."""
    with looking(browser, site, SCENES["empty"]()) as page:
        assert page.get_by_text("No save has ended since the exporter started.").is_visible()
        assert page.locator("figure").count() == 0
        assert page.title() == "node-17 · ckpt-exporter"


def test_a_save_under_way_shows_how_far_it_is(browser: Browser, site: Site) -> None:
    """The bar stands at 30 of 65 GB, the tab's title says that a save runs."""
    with looking(browser, site, saving()) as page:
        bar = page.get_by_role("progressbar", name="Bytes written, of those expected")
        assert bar.evaluate("bar => bar.position") == pytest.approx(30 / 65, abs=1e-3)
        assert page.title() == "saving · node-17 · ckpt-exporter"


def test_the_timeline_is_really_drawn(browser: Browser, site: Site) -> None:
    """Three windows have room; curve, columns, bands and bars have an extent; each is told in words."""
    with looking(browser, site, history()) as page:
        assert page.locator("figure svg[role=img]").count() == 3
        for kind in ("activity", "rate", "save", "bubble"):
            box = page.locator(f"#timeline-0-0 .{kind}").first.bounding_box()
            assert box is not None
            assert box["width"] > 5, kind
            assert box["height"] >= 5, kind
        name = page.get_by_role("img").first.evaluate(
            "e => document.getElementById(e.id + '-words').textContent"
        )
        assert "GPU activity between" in name


def test_saves_made_elsewhere_are_marked_and_drawn(browser: Browser, site: Site) -> None:
    """Their table stands apart behind a line of its own; their bands are dashed otherwise and told of."""
    with looking(browser, site, SCENES["both"]()) as page:
        table = page.get_by_role("table", name="Latest saves made elsewhere").first
        assert table.get_by_role("row").count() == 6  # headings and five saves
        assert table.get_by_role("columnheader", name="Bubble here").count() == 1
        lines = [
            page.locator(f"#directory-0 {place}").first.evaluate(f"e => getComputedStyle(e).{style}")
            for place, style in (
                ("div.elsewhere", "borderLeftStyle"),
                ("#timeline-0-2 .save:not(.elsewhere)", "strokeDasharray"),
                ("#timeline-0-1 .save.elsewhere", "strokeDasharray"),
            )
        ]  # fmt: skip
        assert lines == ["dashed", "3px, 3px", "8px, 4px"]
        words = page.locator("#timeline-0-1-words").evaluate("e => e.textContent")
        assert words.startswith("1 finished save, 1 made elsewhere.")


def test_broken_sources_come_first(browser: Browser, site: Site) -> None:
    """What needs attention stands above everything else, with a heading."""
    with looking(browser, site, SCENES["broken"]()) as page:
        first = page.get_by_role("heading", level=2).first
        assert first.inner_text() == "9 things need attention"
        assert page.get_by_role("region", name="9 things need attention").get_by_role("listitem").count() == 9


def test_hostile_names_stay_names(browser: Browser, site: Site) -> None:
    """No name becomes an element, a script, a direction of writing or a line of its own."""
    with looking(browser, site, SCENES["hostile"]()) as page:
        assert page.locator("img:not(svg)").count() == 0
        assert page.locator("script").count() == 1
        heading = page.get_by_role("heading", name="txt").inner_text()
        assert heading.startswith("</script><img src=x onerror=alert(1)>\\u202etxt.\\xff\\n\\x1b[31m")
        assert "\u202e" in HOSTILE
        assert "\u202e" not in page.content()


def test_dark_is_dark(browser: Browser, site: Site) -> None:
    """Who prefers dark gets a dark ground and light letters."""
    grounds = {}
    for scheme in ("light", "dark"):
        with looking(browser, site, history(), color_scheme=scheme) as page:
            grounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert grounds == {"light": "rgb(244, 245, 248)", "dark": "rgb(17, 21, 28)"}


def test_a_phone_shows_rows_as_lists_that_are_still_tables(browser: Browser, site: Site) -> None:
    """On 320 pixels each save is a block with its headings, and a screen reader still finds a table."""
    with looking(browser, site, history(), viewport=PHONE) as page:
        table = page.get_by_role("table", name="Latest saves")
        assert table.get_by_role("row").count() == 7  # headings and six saves
        assert table.get_by_role("cell", name="3 min 20 s").count() == 1  # step 1200
        cell = table.get_by_role("cell").first
        label = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert label == '"Started, UTC"'


# --- how it updates -------------------------------------------------------------------------------------


def test_it_updates_itself_and_keeps_what_its_reader_does(browser: Browser, site: Site) -> None:
    """A new save comes in without a reload; opened details, focus and scroll position stay."""
    with looking(browser, site, history()) as page:
        page.evaluate("window.mark = 'not reloaded'")
        summary = page.get_by_text("Storage, run, phases of the bubble, totals")
        summary.click()
        page.evaluate("scrollTo(0, 300)")
        assert page.get_by_text("1300", exact=True).count() == 0

        show(site, with_next_save(history(), 1300))
        update(page)
        page.get_by_role("rowheader", name="1300").wait_for()

        assert page.evaluate("window.mark") == "not reloaded"
        assert page.locator("#directory-0-more").get_attribute("open") is not None
        assert page.evaluate("document.activeElement.textContent") == summary.inner_text()
        assert page.evaluate("scrollY") == 300
        assert page.locator("#spoken").inner_text() == "llama: step 1300 complete."
        assert page.get_by_text("as of 2025-11-30 02:50:05 UTC").count() == 1


def test_a_directory_that_comes_and_goes_takes_nothing_with_it(browser: Browser, site: Site) -> None:
    """After a reload of the configuration, sections appear and vanish in their place."""
    two = SCENES["broken"]()
    with looking(browser, site, history()) as page:
        page.evaluate("document.querySelector('#sources').mark = 1")
        show(site, two)
        update(page)
        page.locator("#directory-2").wait_for()
        order = page.evaluate("[...document.querySelectorAll('main > section')].map(part => part.id)")
        directories = ["directory-0", "directory-1", "directory-2"]
        assert order == ["attention", "overview", *directories, "gpus", "sources"]
        assert page.evaluate("document.querySelector('#sources').mark") == 1
        show(site, history())
        update(page)
        page.locator("#directory-2").wait_for(state="detached")


def test_text_that_is_being_copied_stays(browser: Browser, site: Site) -> None:
    """While text is selected nothing changes under the reader's hand, and the page says so."""
    with looking(browser, site, history()) as page:
        page.evaluate("getSelection().selectAllChildren(document.querySelector('h2'))")
        show(site, with_next_save(history(), 1300))
        page.clock.fast_forward(600_000)
        assert page.locator("#lost").inner_text() == "Not updating while text is selected."
        assert page.get_by_role("rowheader", name="1300").count() == 0
        page.evaluate("getSelection().removeAllRanges()")
        update(page)
        page.get_by_role("rowheader", name="1300").wait_for()
        assert page.locator("#lost").is_hidden()


def test_an_exporter_that_does_not_answer_is_said(browser: Browser, site: Site) -> None:
    """When no answer comes the page says that it is old, keeps what it shows, and goes on afterwards."""

    def fails() -> str:
        raise RuntimeError

    with looking(browser, site, history()) as page:
        site.page[0] = fails
        update(page)
        page.locator("#lost").wait_for()
        picture(page, "lost")
        assert "what is shown here is old" in page.locator("#lost").inner_text()
        assert page.get_by_role("table", name="Latest saves").is_visible()
        show(site, history())
        update(page)
        page.locator("#lost").wait_for(state="hidden")


def test_a_newer_exporter_brings_its_own_page(browser: Browser, site: Site) -> None:
    """An answer with another script or style is loaded anew instead of being mixed into the old one."""
    with looking(browser, site, history()) as page:
        old = site.page[0]
        page.evaluate("window.mark = 'not reloaded'")
        site.page[0] = lambda: old().replace('data-look="', 'data-look="new')
        update(page)
        page.wait_for_function("window.mark === undefined")


def test_it_is_whole_without_script(browser: Browser, site: Site) -> None:
    """With scripts switched off everything is there, and the browser is told to load the page anew."""
    show(site, saving())
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{site.server.port}/")
    assert page.locator("meta[http-equiv=refresh]").get_attribute("content") == "15"
    assert page.get_by_role("table", name="Latest saves").is_visible()
    assert page.get_by_role("progressbar").is_visible()
    context.close()


# --- keyboard -------------------------------------------------------------------------------------------


def test_it_is_used_by_keyboard_alone(browser: Browser, site: Site) -> None:
    """Tab leads from the skip link over the links to the details; focus is visible, Enter opens."""
    with looking(browser, site, history()) as page:
        stops = []
        for _ in range(6):
            page.keyboard.press("Tab")
            stops.append(page.evaluate("document.activeElement.textContent"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", stops
        more = "Storage, run, phases of the bubble, totals"
        assert stops == [
            "Skip to the directories", "Metrics", "Health", "Readiness", "4 earlier saves", more,
        ]  # fmt: skip
        page.keyboard.press("Enter")
        assert page.locator("details[open] > summary").all_inner_texts() == [more]

"""The page in a real browser: nothing overflows and all text is readable, on large and small
screens, in light and dark mode.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import hostile, samples, tuned

from autotune.report.page.compare import write_comparison
from autotune.report.page.html import write_report
from autotune.report.text.comparison import compare

pytestmark = pytest.mark.browser

LEGIBLE = 4.5  # WCAG 2.1, 1.4.3: contrast of normal text, level AA
SIZES = {"desk": (1280, 900), "tablet": (768, 1024), "phone": (360, 740)}
SECTIONS = (
    "changes",
    "waterfall",
    "time",
    "timeline",
    "operators",
    "loss",
    "trials",
    "parallel",
    "importance",
    "reproduce",
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Every text with its contrast to its background: (words, contrast), worst first.
CONTRASTS = """
() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const light = ([r, g, b]) => { const f = v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = e => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; }
    return [255, 255, 255, 1];
  };
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || e.tagName === "title") continue;
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const style = getComputedStyle(e), ink = parse(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x);
    found.push([text.slice(0, 60), (a + 0.05) / (b + 0.05)]);
  }
  return found.sort((x, y) => x[1] - y[1]);
}
"""
# Text outside the page that is neither clipped nor inside a scrolling element.
OUTSIDE = """
() => [...document.querySelectorAll("main *")].filter(e => {
  if (e.closest(".scroll, nav, svg")) return false;
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.tagName + "." + e.className + ": " + e.textContent.trim().slice(0, 40))
"""
TEXT_SIZES = """() => [...document.querySelectorAll("figure svg text")].map(e => {
  const m = e.getScreenCTM(); return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(m.a, m.b); })"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install -e '.[dev]')"
    )
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        pytest.skip("no Chromium here (on Debian: apt install chromium)")
    with driver.sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


class Shown:
    """A page opened at one size and color scheme, with its console messages and requests."""

    def __init__(self, browser: Any, path: Path, size: str, scheme: str) -> None:
        width, height = SIZES[size]
        self.page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, result in samples().items():
        (folder / name).mkdir()
        found[name] = write_report(result, folder / name)
    found["compare"] = folder / "compare.html"
    write_comparison(compare(tuned(), samples()["keep"]), found["compare"])
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", [*samples(), "compare"])
def test_a_page_fits_is_legible_and_keeps_to_itself(
    name: str, size: str, scheme: str, pages: dict[str, Path], browser: Any
) -> None:
    with Shown(browser, pages[name], size, scheme) as shown:
        assert not shown.said
        assert [url for url in shown.asked if url != "data:,"] == [pages[name].as_uri()]
        scroll, inner = shown.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert scroll <= inner
        assert shown.page.evaluate(OUTSIDE) == []
        contrasts = shown.page.evaluate(CONTRASTS)
        assert len(contrasts) > 20
        assert [c for c in contrasts if c[1] < LEGIBLE] == []


@pytest.mark.parametrize("size", list(SIZES))
def test_every_section_and_plot_is_there(size: str, pages: dict[str, Path], browser: Any) -> None:
    with Shown(browser, pages["tuned"], size, "light") as shown:
        for section in SECTIONS:
            assert shown.page.locator(f"#{section}").is_visible(), section
        for plot in (
            "#waterfall svg",
            "#loss svg",
            "#trials svg",
            "#parallel svg",
            "#timeline svg",
        ):
            box = shown.page.locator(plot).first.bounding_box()
            assert box is not None, plot
            assert box["width"] > 200, plot
            assert box["height"] > 15, plot
        assert min(shown.page.evaluate(TEXT_SIZES)) >= 9, "px: what a phone's reader still reads"


def test_navigation_leads_to_every_place_it_names(pages: dict[str, Path], browser: Any) -> None:
    with Shown(browser, pages["tuned"], "phone", "light") as shown:
        links = shown.page.locator("nav a")
        assert links.count() >= 6
        for index in range(links.count()):
            target = links.nth(index).get_attribute("href")
            links.nth(index).click()
            heading = shown.page.locator(f"{target} h2").bounding_box()
            bar = shown.page.locator("nav").bounding_box()
            assert heading is not None
            assert bar is not None
            assert bar["y"] + bar["height"] <= heading["y"] + 1, (
                f"the bar covers the heading of {target}"
            )
            assert heading["y"] < SIZES["phone"][1], target


def test_marks_of_one_scheme_differ_from_the_other(pages: dict[str, Path], browser: Any) -> None:
    def paper(scheme: str) -> str:
        with Shown(browser, pages["tuned"], "desk", scheme) as shown:
            return shown.page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert paper("light") != paper("dark")


def test_many_knobs_with_long_names_fit_a_phone(tmp_path: Path, browser: Any) -> None:
    base = tuned()
    names = [f"a_rather_long_name_of_a_knob_{n}" for n in range(20)]
    baseline = dict.fromkeys(names, "reduce-overhead")
    trials = tuple(
        replace(base.trials[0], number=n, config={name: "max-autotune-no-cudagraphs"})
        for n, name in enumerate(names)
    )
    domains = dict.fromkeys(names, ("reduce-overhead", "max-autotune-no-cudagraphs"))
    result = replace(
        base,
        baseline=baseline,
        trials=trials,
        knobs=dict.fromkeys(names[:4], "max-autotune-no-cudagraphs"),
        observation=replace(base.observation, domains=domains, defaults=baseline),
        explanation=replace(base.explanation, importance=dict.fromkeys(names, 1 / 20)),
    )
    with Shown(browser, write_report(result, tmp_path), "phone", "dark") as shown:
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= SIZES["phone"][0]
        assert shown.page.evaluate(OUTSIDE) == []
        boxes = shown.page.evaluate(
            """() => { const s = document.querySelector("#parallel svg").getBoundingClientRect();
            return [...document.querySelectorAll("#parallel svg text")].map(e => e.getBoundingClientRect())
              .map(b => [b.left - s.left, s.right - b.right]); }"""
        )
        assert min(min(pair) for pair in boxes) > -8, "labels stay in their picture"


def test_the_checks_would_tell(tmp_path: Path, browser: Any) -> None:
    path = tmp_path / "bad.html"
    words = "<p>word</p>" * 25
    path.write_text(
        f'<body style="background:#fff"><main>{words}<p style="color:#999">pale</p><div'
        ' style="width:3000px">wide</div></main><script>console.error("seen")</script><img'
        ' src="http://example.invalid/x.png">'
    )
    with Shown(browser, path, "phone", "light") as shown:
        assert any("seen" in said for said in shown.said)
        assert "http://example.invalid/x.png" in shown.asked
        assert shown.page.evaluate("document.documentElement.scrollWidth") > SIZES["phone"][0]
        assert shown.page.evaluate(OUTSIDE) != []
        assert shown.page.evaluate(CONTRASTS)[0][1] < LEGIBLE


def test_hostile_words_run_nothing(tmp_path: Path, browser: Any) -> None:
    with Shown(browser, write_report(hostile(), tmp_path), "desk", "light") as shown:
        assert shown.page.evaluate("document.scripts.length") == 0

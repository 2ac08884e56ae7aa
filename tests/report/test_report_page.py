"""The page is complete, makes no network request, and escapes the job's text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sample_results import HOSTILE, hostile, samples, tuned

from autotune import words
from autotune.report.page.html import render, write_report
from autotune.report.plots.loss import loss_svg, write_loss_plot
from autotune.report.plots.trials import trials_svg
from autotune.results import LossVerdict

VOID = {"meta", "link", "br", "wbr", "img", "hr"}
RUN = Path("autotune-runs/digits-cnn")


class Page(HTMLParser):
    """Parses a page strictly: every element closed, ids unique; collects all text and external
    references.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: dict[str, int] = {}
        self.ids: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] = self.elements.get(tag, 0) + 1
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}=…> would run a script"
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action", "data", "srcset", "poster"):
                self.references.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("name", list(samples()))
def test_every_result_makes_a_sound_page_of_its_own(name: str) -> None:
    text = render(samples()[name], RUN)
    page = Page(text)
    assert "script" not in page.elements
    assert len(page.ids) == len(set(page.ids))
    outward = [r for r in page.references if not r.startswith(("#", "data:"))]
    assert not outward
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "nan" not in re.findall(r"\bnan\b", page.text.lower())
    assert not re.search(r"#0[1-7]0[1-7]0[1-7]", text), (
        "a marking color was not given the page's own"
    )


def test_hostile_words_are_shown_not_run() -> None:
    text = render(hostile(), RUN)
    page = Page(text)
    assert "<script>alert" not in text
    assert "<script>alert('x')</script> [bold red]é漢字" in page.text
    assert "{{ 2**31 }}" in page.text
    assert str(2**31) not in page.text
    assert page.text.count(words.clean(HOSTILE, 600)) > 10


def test_secrets_of_the_command_line_stay_off_the_page() -> None:
    command = [
        "python",
        "train.py",
        "--api-key",
        "hf_0123456789abcdef",
        "--store=s3://me:hunter2hunter2@host/b",
        "--lr",
        "0.1",
    ]
    page = Page(render(replace(tuned(), environment={"command": command}), RUN))
    assert "hf_0123456789abcdef" not in page.text
    assert "hunter2" not in page.text
    assert "python train.py --api-key '***'" in page.text
    assert "--lr 0.1" in page.text


def test_tuned_page_tells_the_whole_story() -> None:
    page = Page(render(tuned(), RUN))
    for said in (
        "2.10×",
        "faster (95% interval 1.93–2.29), loss unchanged",
        "1.71× (1.60–1.83)",
        "paid back after 22 steps",
        "waiting for data",
        "prefetch_factor stays 2, not 4: nothing is lost without it.",
        "Not certified: the final quality",
        "BackendCompilerFailed: no C++ compiler",
        "prefetch_factor had no effect",
        "needs a CUDA device",
        "aten::addmm",
        "traces/winner.json.gz",
        "autotune launch autotune-runs/digits-cnn/tuned.yaml",
        "python train.py --epochs 5",
        "start-up of the job",
        "gives nothing by itself: the smaller change wins",
    ):
        assert said in page.text, said
    assert page.elements["svg"] == 4 + 4, (
        "waterfall, loss, trials, parallel coordinates; two lanes of two timelines"
    )


@pytest.mark.parametrize(
    ("name", "said", "unsaid"),
    [
        ("keep", "Keep your settings: no configuration was faster", "Loss check"),
        ("undecided", "Loss check undecided", "autotune launch"),
        ("nothing", "No configuration was tried.", "autotune launch"),
    ],
)
def test_other_verdicts_claim_nothing(name: str, said: str, unsaid: str) -> None:
    text = Page(render(samples()[name], RUN)).text
    assert said in text
    assert unsaid not in text


def test_stacked_bars_share_one_scale() -> None:
    text = render(tuned(), RUN)
    sums = [
        sum(float(w) for w in re.findall(r'class="p-\w+" style="width:([0-9.]+)%"', bar))
        for bar in re.findall(r'<div class="stack">.*?</div>', text, flags=re.DOTALL)
    ]
    assert sums[0] == pytest.approx(100, abs=0.1)
    assert sums[1] == pytest.approx(100 * 46.8 / 97.3, abs=0.2)


def test_write_report_publishes_one_file(tmp_path: Path) -> None:
    path = write_report(tuned(), tmp_path)
    assert path == tmp_path / "report.html"
    assert list(tmp_path.iterdir()) == [path]
    path.read_text(encoding="utf-8")


def test_plots_are_left_out_where_there_is_nothing_to_draw() -> None:
    assert trials_svg(samples()["nothing"]) == ""
    assert loss_svg(replace(tuned(), loss=LossVerdict("not-needed", "", 0, 0))) == ""
    assert trials_svg(tuned()) == trials_svg(tuned()), "the same result makes the same picture"


def test_loss_plot_is_a_png(tmp_path: Path) -> None:
    import matplotlib.image

    write_loss_plot(samples()["nothing"], tmp_path / "none.png")
    write_loss_plot(tuned(), tmp_path / "loss.png")
    picture = matplotlib.image.imread(tmp_path / "loss.png")
    assert picture.shape[0] > 300
    assert picture[0, 0, :3] == pytest.approx([1, 1, 1]), "white, wherever it is shown"
    assert picture[..., :3].min() < 0.5, "something is drawn on it"
    assert [p.name for p in tmp_path.iterdir()] == ["loss.png"]


def browse(page: str, profile: Path) -> tuple[list[str], set[str]]:
    """Open the address ``page`` in a browser: (console messages, addresses requested beyond the
    file).
    """
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        pytest.skip("no Chromium here")
    log = profile / "net.json"
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-features=NetworkTimeServiceQuerying",
            f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            f"--log-net-log={log}",
            f"--screenshot={profile / 'page.png'}",
            page,
        ],
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (profile / "page.png").exists(), done.stderr
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    events = json.loads(log.read_text())["events"]
    urls = {str(e.get("params", {}).get("url", "")) for e in events}
    return console, {u for u in urls if u.startswith(("http:", "https:", "ws:", "wss:"))}


@pytest.fixture(scope="module")
def own_hosts(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the browser requests by itself, with no page open."""
    return {urlsplit(u).netloc for u in browse("about:blank", tmp_path_factory.mktemp("blank"))[1]}


@pytest.mark.browser
@pytest.mark.parametrize("name", list(samples()))
def test_a_browser_finds_no_error_and_no_request(
    name: str, tmp_path: Path, own_hosts: set[str]
) -> None:
    path = write_report(samples()[name], tmp_path)
    console, asked = browse(path.as_uri(), tmp_path)
    assert not console
    assert not {u for u in asked if urlsplit(u).netloc not in own_hosts}


@pytest.mark.browser
def test_the_browser_would_tell(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<link rel="icon" href="data:,"><script>console.error("seen")</script><img src="http://example.invalid/x.png">'
    )
    console, asked = browse(path.as_uri(), tmp_path)
    assert any("seen" in line for line in console)
    assert "http://example.invalid/x.png" in asked

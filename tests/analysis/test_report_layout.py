"""The page of a comparison as a browser gets it, read as HTML: it fetches nothing, figures fit, tables are sorted."""

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser

import pytest
from algorithms import line, line_data
from late import late
from test_compare import draws_of, exact, result

import pyro_fed as pf

style = late("pyro_fed.analysis.plots.style")

#: Elements that have no end.
VOID = {"meta", "br", "img", "link", "input"}
#: A phone's width in pixels, less the page's margins.
PHONE = 360
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 768, 1280)
#: A page in a frame of each width, which says as its own text what it has found.
FRAMES = """<!DOCTYPE html><meta charset="utf-8"><title>frames</title><body><script>
const page = %s, widths = %s, found = [];
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  frame.addEventListener("load", () => {
    const inside = frame.contentDocument, table = inside.querySelector("table.sortable"), view = frame.contentWindow;
    const column = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[1].dataset.value));
    const button = table.tHead.rows[0].cells[1].querySelector("button");
    button.click(); const up = column(); button.click(); const down = column();
    const cut = [...inside.querySelectorAll("body *")].filter((one) => !one.closest(".scroll, svg, details:not([open])")
      && one.getBoundingClientRect().right > view.innerWidth + 1).map((one) => one.tagName);
    const fetched = view.performance.getEntriesByType("resource").map((one) => one.name);
    found.push({width: view.innerWidth, across: inside.documentElement.scrollWidth, cut, fetched, up, down});
    if (found.length === widths.length) document.body.textContent = JSON.stringify(found);
  });
  frame.srcdoc = page; document.body.append(frame);
}
</script>"""


class Page(HTMLParser):
    """Elements with their attributes, in order; faults of nesting; text by element's path."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.faults, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        if data.strip():
            self.words.append((tuple(self.open), data.strip()))

    def attributes(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    fed = pf.Federation(line, line_data(), plate="data", num_clients=3)
    draws = draws_of(*exact())
    results = {
        "truth": result(draws, draws_are="chains"),
        "far": result(draws + 1.0),
        "near": pf.run(pf.FedEP(), fed, progress=False),
    }
    path = tmp_path_factory.mktemp("page") / "page.html"
    pf.write_report(path, pf.compare(results, "truth", federation=fed), results, fed, reference="truth")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_it_is_whole_and_fetches_nothing(text, page):
    assert page.faults == [] and page.open == []
    assert not re.search(r"(src|href)=.?(https?:)?//|@import|url\((?!#)", text)
    assert [name for name, count in Counter(a["id"] for _, a in page.elements if "id" in a).items() if count > 1] == []
    names = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    assert {one["href"][1:] for one in page.attributes("a")} <= names
    assert set(re.findall(r'(?:url\(#|xlink:href="#)([\w-]+)', text)) <= names


def test_tables_say_what_their_cells_are_and_can_be_sorted(text, page):
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.attributes("th"))
    heads = re.findall(r"<table class=\"sortable\">\s*<thead>(.*?)</thead>", text, re.DOTALL)
    assert len(heads) >= 4 and all("<button" in head for head in heads)
    for table in re.findall(r'<table class="sortable">.*?</table>', text, re.DOTALL):
        columns = table.count('scope="col"') - 1
        for row in re.findall(r"<tr[^>]*><th scope=\"row\">.*?</tr>", table):
            assert row.count("<td data-value=") == columns


def test_figures_fit_a_phone_and_say_what_is_seen(text, page):
    figures = [attrs for attrs in page.attributes("svg") if attrs.get("class") == "figure"]
    assert len(figures) >= 12
    for attrs in figures:
        assert attrs["role"] == "img" and len(attrs["aria-label"]) > 20 and re.search(r"\d", attrs["aria-label"])
        drawn = 96 * float(re.search(r"width: ([\d.]+)in", attrs["style"])[1])  # pixels
        assert 9 * 96 / 72 * min(1, PHONE / drawn) >= 10  # pixels of its text
    assert "svg.figure { display: block; max-width: 100%; height: auto;" in text
    titles = [words for path, words in page.words if path[-1] == "h2"]
    wanted = {"Posterior", "All parameters", "Posteriors", "Two parameters together", "Chains", "Convergence"}
    wanted |= {"Error against bytes", "Can the model make such data?", "Who holds what", "Who moves the answer"}
    assert wanted | {"What each client brings", "Each client alone", "Settings"} <= set(titles)
    assert "Cannot be drawn" not in text


def test_colours_are_those_of_the_style_sheet(text):
    """A colour of the palette that stood in a figure as such would be the same on dark paper."""
    drawn = " ".join(re.findall(r"<svg class=\"figure\".*?</svg>", text, re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", drawn) == []
    for light, dark in style.DARK.items():
        assert text.count(f"--figure-{light[1:].lower()}: {light};") == 1
        assert text.count(f"--figure-{light[1:].lower()}: {dark};") == 1


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    """WCAG 2.2's."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_have_three_to_one():
    for light in (*style.COLORS, style.REFERENCE_LINE, style.INK, style.SOFT):
        dark = style.DARK[light]
        assert contrast(light, style.PAPER) >= 3 and contrast(light, style.REFERENCE) >= 3
        assert contrast(dark, style.DARK_PAPER) >= 3 and contrast(dark, style.DARK[style.REFERENCE]) >= 3


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_shows_it_whole_and_sorts_it(text, tmp_path):
    page = json.dumps(text).replace("</", "<\\/")
    (tmp_path / "frames.html").write_text(FRAMES % (page, list(WIDTHS)), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", (tmp_path / "frames.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = json.loads(re.search(r"<body>(.*)</body>", shown, re.DOTALL).group(1))
    assert sorted(one["width"] for one in found) == list(WIDTHS)
    for one in found:
        assert one["across"] <= one["width"] and not one["cut"] and not one["fetched"]
        numbers = [[x for x in one[way] if x is not None] for way in ("up", "down")]
        assert len(numbers[0]) >= 2 and numbers[0] == sorted(numbers[0]) and numbers[1] == sorted(numbers[1])[::-1]

"""The page of a comparison in a browser: nothing sticks out at three widths, and its tables are sorted by a click."""

import html
import json
import re
import shutil
import subprocess

import pytest
from algorithms import line, line_data
from test_compare import draws_of, exact, result

import pyro_fed as pf
from pyro_fed.analysis.report.page import write_report

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--dump-dom"),
)
#: Sorts the first table by its second column twice, and leaves what it sees in the page.
PROBE = """<script>
addEventListener("load", () => {
  const table = document.querySelector("table.sortable"), head = table.tHead.rows[0].cells[1];
  const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const seen = {before: names(), width: document.documentElement.scrollWidth, screen: innerWidth};
  head.firstChild.click(); seen.up = names(); seen.sort = head.getAttribute("aria-sort");
  head.firstChild.click(); seen.down = names();
  seen.images = [...document.images].map((image) => image.complete && image.naturalWidth > 0 && image.alt.length > 20);
  const found = document.createElement("pre"); found.id = "seen"; found.textContent = JSON.stringify(seen);
  document.body.append(found);
});
</script></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    fed = pf.Federation(line, line_data(), plate="data", num_clients=3)
    draws = draws_of(*exact())
    results = {"truth": result(draws), "far": result(draws + 1.0), "near": result(draws + 0.1)}
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_report(path, pf.compare(results, "truth", federation=fed), results, fed, title="Three", reference="truth")
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    return path


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [500, 768, 1280])  # a headless window is no narrower than 500
def test_the_page_in_a_browser(page, tmp_path, width):
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path}", f"--window-size={width},900", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    seen = json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert seen["width"] <= seen["screen"] <= width
    assert seen["before"] == ["truth", "far", "near"]
    assert (seen["up"], seen["sort"]) == (["near", "far", "truth"], "ascending")  # the reference has no error: last
    assert seen["down"] == ["far", "near", "truth"]
    assert seen["images"] and all(seen["images"])

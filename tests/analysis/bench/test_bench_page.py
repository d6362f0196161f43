"""The page and the tables, of made-up cells."""

import re
from html.parser import HTMLParser

import pytest

from pyro_fed.analysis.bench.bench import Results, as_values, confusion, from_values, medians, outcome_line, summary
from pyro_fed.analysis.bench.cell import Outcome
from pyro_fed.analysis.bench.page import write_page


def cell(algorithm, split, outcome, error=0.1, low=0.9, high=1.1, **more):
    scores = {"mean_error": error, "sd_low": low, "sd_high": high, "coverage": 0.9, "coverage_low": 0.8}
    scores |= {"sliced_wasserstein": 0.05, "rounds": 3.0, "bytes": 1200.0, "cpu_seconds": 2.0, "seconds": 3.0}
    row = {"label": "w<0>", "reference_mean": 1.0, "reference_sd": 2.0, "mean": 1.2, "sd": 1.8, "coverage": 0.9}
    return Outcome(
        "linear",
        split,
        algorithm,
        0,
        "v",
        outcome,
        scores=scores,
        where="w<0>",
        parameters=[{**row, "judged": True}],
        **more,
    )


@pytest.fixture
def results():
    return Results(
        [
            cell("fedep", "iid/10", "right"),
            cell("fedep", "sorted/10", "wrong, said", 0.5, 0.5, doubts=["the SD of `w` grows <still>"]),
            cell("other", "iid/10", "wrong, silent", 3.0, 0.01, 40.0),
            Outcome("linear", "sorted/10", "other", 0, "v", "late", error="no answer within 30 s of CPU time"),
        ],
        {"fedep": "sites", "other": "another's"},
        ["other"],
        {"linear": "a line & more"},
        ["group/10: linear has 0 groups"],
        2,
    )


class Parsed(HTMLParser):
    """Ids, links, and whether tags close."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found.get("href") or found["xlink:href"]] if tag == "a" else []
        if tag not in ("meta", "br", "img", "line", "rect", "circle", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("meta", "br", "img", "line", "rect", "circle", "link"):
            assert self.open.pop() == tag


def test_a_dark_page_has_colours_of_its_own(tmp_path, results):
    write_page(tmp_path / "b.html", results)
    text = (tmp_path / "b.html").read_text()
    used = set(re.findall(r"var\((--figure-\w+)\)", text))
    assert used and not re.findall(r'(?:fill|stroke)(?:="|: ?)#', text)
    for name in used:
        assert len(set(re.findall(rf"{name}: (#\w+);", text))) == 2  # for light paper and for dark


def test_every_cell_opens_its_diagnosis(tmp_path, results):
    write_page(tmp_path / "b.html", results, command="pyro-fed bench")
    text = (tmp_path / "b.html").read_text()
    page = Parsed(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    for number, one in enumerate(results.outcomes):
        links = page.links.count(f"#c{number}")
        assert links == (4 if one.answered else 2)  # two heat maps, two scatters
        title = f'<a xlink:href="#c{number}"><title>{one.algorithm} on {one.case}, {one.split}: '
        assert text.count(title) == (2 if one.answered else 0)
    assert "_blank" not in text
    assert re.findall(r'(?:src|href)="(?![#"])', text) == []  # it needs no other file
    for part in (
        "0.50 !",
        "3.00",
        "late",
        "w&lt;0&gt;",
        "grows &lt;still&gt;",
        "no answer within 30 s",
        "a line &amp; more",
    ):
        assert part in text
    assert 'class="h6 silent"' in text and 'class="h0"' not in text  # errors from 0.1 on are no class 0
    own = [one for one in results.outcomes if one.algorithm not in results.adapters]
    assert f"Of {len(own)} cells of this package&#39;s algorithms" in text
    others = len(results.outcomes) - len(own)
    assert others and f"Of {others} cells of other people&#39;s methods" in text
    assert "prefers-color-scheme: dark" in text
    assert "2 more have not been run yet" in text


def test_outcomes_are_counted_and_scores_are_medians(results):
    assert {name: count for name, count in confusion(results.outcomes).items() if count} == {
        "right": 1,
        "wrong, said": 1,
        "wrong, silent": 1,
        "late": 1,
    }
    assert medians(results.outcomes[:2])["mean_error"] == pytest.approx(0.3)
    rows = summary(results)
    assert [row[:2] for row in rows] == [["fedep", "2"], ["other", "2"]]
    assert from_values(as_values(results)) == results
    assert "wrong, said" in outcome_line(results.outcomes[1]) and "no answer" in outcome_line(results.outcomes[3])


def test_a_page_of_nothing(tmp_path):
    write_page(tmp_path / "b.html", Results([], {"fedep": "sites"}, [], {}, [], 3))
    assert "0 cells" in (tmp_path / "b.html").read_text()

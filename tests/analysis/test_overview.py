"""What federations, algorithms and runs show of themselves in a notebook."""

import re
from html.parser import HTMLParser

import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.analysis.report.overview import posterior_frame

QUIET = {"num_draws": 80, "compile": "off", "progress": False}


class Balance(HTMLParser):
    """Whether every element that is opened is closed, in order; and the texts in between."""

    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def words(page):
    """The texts of a piece of HTML, which has to be well formed."""
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    return parser.words


def test_a_federation_shows_its_clients():
    fed = unequal_lines()
    found = words(fed._repr_html_())
    assert repr(fed) in found
    assert [row for row in fed.row_counts.tolist() if str(row) not in found] == []


def test_an_algorithm_shows_what_differs_from_its_defaults():
    found = words(pf.DSVGD(num_particles=30)._repr_html_())
    at = found.index("num_particles")
    assert found[at : at + 3] == ["num_particles", "30", str(pf.DSVGD().num_particles)]
    assert any(re.fullmatch(r"\d+ settings at their defaults", one) for one in found)
    assert "here" not in words(pf.FedEP()._repr_html_())  # nothing differs


@pytest.fixture(scope="module")
def fitted():
    return pf.run(pf.FedEP(), unequal_lines(), **QUIET)


def test_a_run_shows_its_verdict_first(fitted):
    overview = pf.Overview(fitted)
    assert overview.title == "FedEP on 3 clients: nothing speaks against it"
    assert repr(overview).startswith(overview.title)
    assert words(overview._repr_html_())[0] == overview.title
    assert "w[0]" in repr(overview) and "sent by the clients" in repr(overview)


def test_doubts_are_counted_and_escaped(fitted):
    doubted = fitted.copy()
    doubted.attrs = fitted.attrs | {"doubts": "an SD < 0.5\nR-hat is 1.3"}
    overview = pf.Overview(doubted)
    assert overview.title == "FedEP on 3 clients: 2 reasons to doubt it"
    assert {"an SD < 0.5", "R-hat is 1.3"} <= set(words(overview._repr_html_()))
    assert "&lt; 0.5" in overview._repr_html_()


def test_what_was_not_audited_is_not_praised():
    idata = pf.run(pf.FedEP(), unequal_lines(), audit=False, **QUIET)
    assert pf.Overview(idata).title == "FedEP on 3 clients: it was not audited"


def test_a_point_has_no_sd():
    idata = pf.run(pf.FedAvg(), unequal_lines(), num_rounds=2, audit=False, **QUIET)
    assert "sd" not in words(pf.Overview(idata)._repr_html_())


def test_a_point_is_shown_in_the_model_s_order(fitted):
    point = fitted.copy()
    point["posterior"] = fitted["posterior"].assign(a=fitted["posterior"]["w"])
    point.attrs = fitted.attrs | {"draws_are": "point"}
    assert posterior_frame(point).index.str.startswith("w")[0]


def test_flags_are_numbers(fitted):
    assert fitted.attrs["converged"] == 1 and fitted.attrs["interrupted"] == 0 and fitted.attrs["audited"] == 1
    assert not fitted.attrs["centralized"]  # a text would be true

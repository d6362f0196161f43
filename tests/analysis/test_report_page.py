"""The page of a comparison with results that are broken, foreign, or doubted in several ways."""

import json
import re

import numpy as np
import pytest
from algorithms import line, line_data
from test_compare import draws_of, exact, result

import pyro_fed as pf
from pyro_fed.analysis.report.page import check_report, write_report
from pyro_fed.codes import sentences
from pyro_fed.errors import SettingError


@pytest.mark.usefixtures("close_figures")
def test_the_page_says_beside_each_result_what_speaks_against_it(tmp_path):
    fed = pf.Federation(line, line_data(), plate="data", num_clients=3)
    draws = draws_of(*exact())
    remark = sentences.loo_not_reliable(rows=9, of_rows=23, limit=0.7)
    results = {
        "truth": result(draws, algorithm="NUTS", settings="{}"),
        "broken": result(np.full_like(draws, np.nan)),
        "point": result(draws[:1], draws_are="point"),
        "doubted": result(draws, warnings="the KDE is dead; so are others\nhalf of it"),
        "remarked": result(draws, findings=json.dumps([remark.to_plain()])),
    }
    table = pf.compare(results, "truth", federation=fed)
    write_report(tmp_path / "page.html", table, results, fed, title="Five", reference="truth")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    verdicts = " ".join(page[page.index('id="warnings"') : page.index("<nav")].split())
    assert '<strong>truth</strong> (the reference): <span class="good">nothing speaks against it.</span>' in verdicts
    assert '<strong>broken</strong>: <span class="bad">the draws are not finite: 1000 of 1000' in verdicts
    assert "<li>the KDE is dead; so are others</li><li>half of it</li>" in verdicts
    remarked = verdicts[verdicts.index("remarked") :]
    assert "nothing speaks against its posterior" in remarked
    assert 'class="note">its ELPD' in remarked
    assert "Left out, as their draws are no numbers: broken." in page
    assert '<span class="bad">the KDE is dead.</span> <details><summary>All 2 reasons, and what to do' in verdicts
    assert "Nothing speaks against 2 of 5 results: truth, remarked." in page
    assert "<td>NUTS</td><td>all at their defaults</td>" in page
    assert "made by another library" in page
    assert not re.search(r"(src|href)=.?(https?:)?//", page)  # it needs nothing from elsewhere
    assert re.search(r'aria-label="Bars of the rows of 3 clients[^"]*: \d+ to \d+"', page)
    assert "23 rows over 3 clients, 7 to 8 each" in page
    with pytest.raises(SettingError, match=r"table that pf\.compare returns"):
        write_report(tmp_path / "other.html", table.reset_index(), results, fed, title="Other")


@pytest.mark.usefixtures("close_figures")
def test_a_page_gives_no_distance_to_a_doubtful_reference(tmp_path):
    draws = draws_of(*exact())
    short = draws[:40]  # too few to tell a mean that is 0.25 SDs off
    for name, values in (("sound", draws), ("short", short)):
        results = {name: result(values), "other": result(draws[::-1].copy())}
        table = pf.compare(results, name)
        write_report(tmp_path / "page.html", table, results, reference=name)
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert ("other: mean off by" in page) is (name == "sound")
        assert ("The reference is doubtful" in page) is (name == "short")


@pytest.mark.usefixtures("close_figures")
@pytest.mark.parametrize("audited", [0, 1])
def test_what_was_not_audited_is_not_praised_without_a_word(audited, tmp_path):
    results = {"one": result(draws_of(*exact()), audited=audited)}
    write_report(tmp_path / "page.html", pf.compare(results), results)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "nothing speaks against it" in page
    assert ("it, which its run did not audit" in page) is not bool(audited)


@pytest.mark.usefixtures("close_figures")
@pytest.mark.filterwarnings("ignore:not converged after 1 rounds")
def test_of_a_plan_the_page_says_what_it_chose_and_of_groups_the_rows_in_them(tmp_path):
    from pyro_fed.recipes import library

    surgery = library.load_model("hierarchical_logistic")
    args, _ = surgery.load_data(num_hospitals=4)
    fed = pf.Federation(surgery.model, args, plate="hospital", rows={"patient": "hospital_idx"}, num_clients=2)
    idata = pf.run(pf.FedEP(), fed, num_rounds=1, compile="off", audit=False, progress=False)
    idata.attrs |= {"plan": "Auto", "chosen": "FedEP", "settings": "{}"}
    results = {"one": idata}
    pf.write_report(tmp_path / "page.html", pf.compare(results), results, fed)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<td>Auto, which chose FedEP</td>" in page
    assert f"{len(args[-1])} rows over 2 clients" in page
    assert "There are reasons to doubt this result." in page  # one round is not enough


def test_a_page_under_the_name_of_another_format_is_refused_before_the_work(tmp_path):
    with pytest.raises(pf.errors.SettingError, match=r"page\.pdf' would be an HTML page, .* call it 'page\.html'"):
        check_report(tmp_path / "page.pdf")
    for name in ("page", "page.htm", "PAGE.HTML"):
        check_report(tmp_path / name)

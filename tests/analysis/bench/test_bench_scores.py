"""Scores against what two Gaussians have in closed form."""

import numpy as np
import pytest
from scipy import stats

from pyro_fed.analysis.bench.cases.case import Reference, Split
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.analysis.bench.clients import dataset
from pyro_fed.analysis.bench.scores import parameters, scores, summarise_scores
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.errors import DataError
from pyro_fed.ops.arviz_versions import make_result

#: Quantiles of N(0, 1), 20,000 of them: their moments are right to 1e-3.
Z = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)


def draws(*columns, kind="particles"):
    return Draws(np.stack(columns, -1)[None], [f"w[{i}]" for i in range(len(columns))], kind)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.5, 1.0), (0.0, 0.5), (-1.0, 2.0)])
def test_scores_of_two_gaussians_are_the_closed_forms(shift, scale):
    """N(m + shift s, (scale s)²) for N(m, s²), m = 3, s = 2."""
    (row,) = parameters(draws(3 + 2 * (shift + scale * Z)), draws(3 + 2 * Z))
    end = stats.norm.ppf(0.95) * scale
    assert row.mean_error == pytest.approx(abs(shift), abs=1e-3)
    assert row.sd_ratio == pytest.approx(scale, rel=1e-3)
    assert row.coverage == pytest.approx(stats.norm.cdf(shift + end) - stats.norm.cdf(shift - end), abs=1e-3)
    wrong = abs(shift) > 0.25 or not 0.8 <= scale <= 1.25
    assert summarise_scores([row], 0.0).is_wrong == wrong
    assert (row.badness > 1) == wrong


def test_the_worst_parameter_is_named_and_each_score_is_the_worst():
    found = summarise_scores(parameters(draws(Z, Z + 0.4, 0.7 * Z), draws(Z, Z, Z)), 0.1)
    assert (found.where, found.is_wrong) == ("w[1]", True)  # 1.6 and log(0.7) / log(0.8) = 1.598 times the limits
    assert found.mean_error == pytest.approx(0.4, abs=1e-3)
    assert found.sd_low == pytest.approx(0.7, rel=1e-3)
    assert found.sd_high == pytest.approx(1.0, rel=1e-3)
    assert [row.label for row in found.parameters] == ["w[1]", "w[2]", "w[0]"]
    assert found.coverage == pytest.approx(np.mean([row.coverage for row in found.parameters]))
    assert found.coverage_low == min(row.coverage for row in found.parameters)


def test_heavy_tails_are_shown_and_not_judged_and_constants_are_left_out():
    heavy = stats.t(3).ppf((np.arange(20_000) + 0.5) / 20_000)
    rows = parameters(draws(Z, 9 * heavy, Z), draws(Z, heavy, 0 * Z))
    assert [(row.label, row.judged) for row in rows] == [("w[0]", True), ("w[1]", False)]
    assert not summarise_scores(rows, 0.0).is_wrong
    with pytest.raises(DataError, match="nothing can be judged"):
        summarise_scores(rows[1:], 0.0)


@pytest.fixture(scope="module")
def share():
    """A share with few successes: one bounded parameter, in closed form."""
    case = all_cases()["beta_bernoulli"]
    return case.reference(case.data()), Split.parse("iid/2").federation(case, 0).problem


def result(values):
    return make_result({"posterior": dataset(values)}, {"draws_are": "particles"})


def test_both_scales_and_the_distance(share):
    reference, problem = share
    assert scores(result(reference.values), reference, problem).mean_error == 0.0
    logits = np.log(reference.values["share"]) - np.log1p(-reference.values["share"])
    moved = 1 / (1 + np.exp(-(logits + 0.3 * logits.std())))
    found = scores(result({"share": moved}), reference, problem)
    inside = next(row for row in found.parameters if row.label.endswith("(unconstrained)"))
    assert inside.mean_error == pytest.approx(0.3, abs=1e-4)
    assert found.sliced_wasserstein == pytest.approx(0.3, abs=1e-2)  # in one dimension the Wasserstein distance itself
    assert found.is_wrong


def test_what_is_no_answer_is_refused(share):
    reference, problem = share
    values = reference.values["share"]
    for broken, text in (
        ({"other": values}, "no site 'share'"),
        ({"share": values[..., None]}, "expected the shape"),
        ({"share": np.where(values > np.median(values), np.nan, values)}, "not finite"),
    ):
        with pytest.raises(DataError, match=text):
            scores(result(broken), reference, problem)
    with pytest.raises(DataError, match="the reference has the sites"):
        other = Reference({"other": values}, True, "")
        scores(result({"other": values}), other, problem)

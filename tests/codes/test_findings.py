"""Findings: codes that a program can read, decisions that no text makes, and results that keep them."""

import ast
import json
import math
from dataclasses import replace
from pathlib import Path

import arviz as az
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, Sentence, Severity, Topic
from pyro_fed.errors import SettingError

PACKAGE = Path(pf.__file__).parent
KINDS = {name: one for name, one in vars(sentences).items() if isinstance(one, Sentence)}


def model(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    s = pyro.sample("s", dist.HalfCauchy(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, s), obs=y)


@pytest.fixture(scope="module")
def fed():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = x.sum(1) + torch.randn(40, generator=generator, dtype=torch.float64)
    return pf.Federation(model, (x, y), plate="data", num_clients=3, seed=0)


@pytest.fixture(scope="module")
def doubted(fed):
    with pytest.warns(UserWarning, match="not the posterior's"):
        return pf.run(pf.FedLaplace(), fed, num_draws=600, progress=False)


def test_a_code_is_the_name_of_its_sentence():
    assert len(KINDS) > 90
    assert all(one.code == name for name, one in KINDS.items())


def test_every_sentence_is_said_somewhere():
    used = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sentences":
                used.add(node.attr)
    used |= {"algorithm_warning"}  # by `as_findings`
    assert set(KINDS) <= used, sorted(set(KINDS) - used)


def test_where_figures_and_cures_are_told_apart():
    found = sentences.mean_is_off(parameter="tau", by="chains", size=0.5, error=0.01, largest=3.0, cures=["Sample it"])
    assert found.code == "mean_is_off" and found.topic is Topic.MOMENTS and found.severity is Severity.DOUBT
    assert found.where == {"parameter": "tau"} and found.cures == ("Sample it",)
    assert found.figures == {"by": "chains", "size": 0.5, "error": 0.01, "largest": 3.0, "bound": False}
    assert found.text.endswith("move the mean of 'tau' by 0.50 ± 0.01 SDs. Sample it")


def test_a_figure_that_is_missing_is_an_error_where_the_finding_is_made():
    with pytest.raises(TypeError, match="limit"):
        sentences.chains_disagree(chains=4, r_hat=1.1, cures=[])


def test_json_has_all_of_a_finding_and_numbers_that_are_not_finite():
    found = sentences.evidence_not_known(error=math.inf, pareto_k=0.9)
    plain = json.loads(json.dumps(found.to_plain(), allow_nan=False))
    assert plain["figures"] == {"error": "inf", "pareto_k": 0.9}
    again = Finding.from_plain(plain)
    assert (again.code, again.topic, again.severity, again.text) == (
        found.code,
        found.topic,
        found.severity,
        found.text,
    )


def test_a_result_keeps_codes_and_figures_and_its_doubts_are_their_texts(doubted, tmp_path):
    table = pf.findings(doubted)
    assert list(table.columns) == ["code", "topic", "severity", "where", "figures", "cures", "text"]
    row = table[table.code == "mean_is_off"].iloc[0]
    assert row["where"]["parameter"].startswith("s") and row["figures"]["size"] > 0.25 and len(row["cures"]) == 1
    assert "\n".join(table[table.severity == "doubt"].text) == doubted.attrs["doubts"]
    assert "\n".join(table.text) == doubted.attrs["warnings"]
    file = tmp_path / "result.nc"
    doubted.to_netcdf(str(file))
    pd.testing.assert_frame_equal(pf.findings(az.from_netcdf(str(file))), table)


def test_a_comparison_has_the_codes_of_its_results(doubted, fed):
    right = pf.run(pf.FedAIS(), fed, progress=False)
    table = pf.findings(pf.compare({"right": right, "off": doubted}, "right", federation=fed))
    off = set(table[(table.result == "off") & (table.severity == "doubt")].code)
    assert {"mean_is_off", "mean_differs"} <= off
    assert not len(table[(table.result == "right") & (table.severity == "doubt")])


def test_rows_beyond_leave_one_out_are_noted_wherever_they_are(doubted):
    """Ten rows with weights of infinite variance, whose loss is nothing beside the others': a note, not silence."""
    rows, draws = 400, 500
    normal = torch.randn(draws, rows, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_lik = -1.0 - 0.5 * torch.linspace(0, 3, rows, dtype=torch.float64) + 0.01 * normal
    heavy = torch.distributions.Pareto(1.0, torch.tensor(1.1, dtype=torch.float64))
    torch.manual_seed(2)
    log_lik[:, :10] -= 1e-3 * heavy.sample((draws, 10))
    log_lik[:, :10] -= heavy.sample((draws, 10)).log()
    fake = az.from_dict(posterior={"w": normal[None, :, 0].numpy()}, log_likelihood={"y": log_lik.numpy()[None]})
    table = pf.findings(pf.compare({"a": fake}))
    assert set(table.code) & {"loo_rows_beyond", "loo_not_reliable"}
    assert set(table.severity) == {"note"}


def two_modes(y):
    m = pyro.sample("m", dist.Normal(0.01, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m**2, 1.0), obs=y)


def test_no_decision_is_made_on_a_text(monkeypatch):
    """With all texts replaced by numbers a plan takes the same steps, and finds the same."""
    y = 1.0 + torch.randn(30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    fed = pf.Federation(two_modes, (y,), plate="data", num_clients=3, seed=0)

    def outcome():
        idata = pf.fit(fed, progress=False)
        steps = json.loads(idata.attrs["steps"])
        return [(row["algorithm"], row["rounds"], row["chosen"], row["codes"]) for row in steps], list(
            pf.findings(idata).code
        )

    expected = outcome()
    assert len(expected[0]) > 1 and "mode_without_draws" in expected[0][0][3]
    call, count = Sentence.__call__, iter(range(10**6))

    def unreadable(self, *args, **kwargs):
        return replace(call(self, *args, **kwargs), text=str(next(count)))

    monkeypatch.setattr(Sentence, "__call__", unreadable)
    monkeypatch.setattr("pyro_fed.errors.warn_user", lambda text: None)
    assert outcome() == expected


def test_a_sentence_of_an_algorithm_of_ones_own_is_a_finding(fed):
    class Own(pf.FedEP):
        def warnings(self, record, problem):
            return ["it rains", *super().warnings(record, problem)]

    with pytest.warns(UserWarning, match="it rains"):
        table = pf.findings(pf.run(Own(), fed, progress=False))
    assert list(table.code) == ["algorithm_warning"] and list(table.text) == ["it rains"]


def test_what_is_neither_a_result_nor_a_comparison_is_refused():
    with pytest.raises(SettingError, match=r"a result of pf\.run or pf\.fit"):
        pf.findings(3)
    with pytest.raises(SettingError, match=r"table that pf\.compare returns"):
        pf.findings(pd.DataFrame({"a": [1]}))

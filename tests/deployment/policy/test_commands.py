"""`pyro-fed node`: approve, verify, report; and an agent that is refused before its model is imported."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from pyro_fed.cli.main import main
from pyro_fed.deployment.policy import Gate, Outgoing, Policy, verify
from pyro_fed.deployment.policy.approval import Request, check_approved, recipe_facts
from pyro_fed.errors import PolicyError
from pyro_fed.recipes import recipe

MODEL = '''
"""Linear regression with known noise."""
import pyro
import pyro.distributions as dist
import torch

PLATE = "data"


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
'''
RULES = "min_rows = 20\nmax_numbers_per_row = 0.2\nmax_share = 0.5\nmax_rounds = 9\napproval = true\n"


@pytest.fixture
def place(tmp_path):
    """A site's folder, a model and rows: 60 numbers of x and 30 of y."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "policy.toml").write_text(RULES)
    (tmp_path / "line.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=rng.normal(size=(60, 2)), y=rng.normal(size=60))
    return tmp_path


def asked(place, *more, answer="y\n", recipe="fedep"):
    given = ["node", "approve", str(place / "line.py"), recipe, "--policy", str(place / "site" / "policy.toml")]
    return CliRunner().invoke(main, [*given, *more], input=answer)


@pytest.mark.filterwarnings("ignore")
def test_an_approval_says_what_will_leave_and_is_written_once_it_is_given(place):
    said = asked(place, "--data", str(place / "rows.npz"), answer="n\n")
    assert said.exit_code == 1 and not (place / "site" / "approved").exists()
    text = " ".join(said.output.split())
    assert "update, FedLaplace, up to 100 times" in text and "update, FedEP, up to" in text
    assert "precision 2 x 2" in text and "60 rows" in text
    assert re.search(
        r"log_likelihood, the audit, influence and leave_one_client_out, once: .* 4,000 numbers .* REFUSED by max_",
        text,
    )
    assert "state, leave_one_client_out, for each agent that asks, once" in text
    assert "6 numbers (precision 2 x 2, eta 2)" in text
    assert re.search(r"update, FedEP[^;]*; \d numbers \([^)]*\), 0.1\d* for each row; may leave", text)
    assert "at most 9 updates and answers to questions leave in all" in text
    said = asked(place, "--data", str(place / "rows.npz"))
    assert said.exit_code == 0, said.output
    written = json.loads((place / "site" / "approved" / "approval.json").read_text())
    assert written["hash"] in said.output and written["version"] and written["policy"]["min_rows"] == "20"
    policy = Policy.read(place / "site" / "policy.toml")
    facts = [recipe_facts(recipe.load("fedep"))]
    assert check_approved(place / "site", place / "line.py", policy, lambda: facts) == written["hash"]
    assert Request.of(place / "line.py", facts, policy).digest == written["hash"]


def test_without_rows_the_numbers_are_not_known(place):
    said = asked(place, "--yes")
    text = " ".join(said.output.split())
    assert said.exit_code == 0 and "the numbers in a message are not known: pass --data" in text
    nowhere = CliRunner().invoke(main, ["node", "approve", str(place / "line.py"), "fedep", "--policy", "no.toml"])
    assert nowhere.exit_code == 2 and "expected the path of a file policy.toml" in nowhere.output


def test_an_agent_runs_nothing_but_what_its_site_has_approved(place):
    assert asked(place, "--yes", recipe="p2p_vi").exit_code == 0
    (place / "peers.toml").write_text('graph = "complete"\n[agents.a]\naddress = "127.0.0.1:1"\n[agents.b]\naddress = '
                                      '"127.0.0.1:2"\n')  # fmt: skip
    given = ["agent", str(place / "line.py"), "p2p_vi", "--name", "a", "--data", str(place / "rows.npz"), "--peers",
             str(place / "peers.toml"), "--certificates", str(place), "--policy",
             str(place / "site" / "policy.toml")]  # fmt: skip
    changed = CliRunner().invoke(main, [*given, "--set", "gossip_tolerance=0.5"])
    assert changed.exit_code == 2 and "differs in recipe setting gossip_tolerance" in changed.output
    changed = CliRunner().invoke(main, [*given, "--rounds", "77"])
    assert changed.exit_code == 2 and "differs in recipe run num_rounds" in changed.output
    right = CliRunner().invoke(main, given)
    assert right.exit_code == 2 and "a.key" in right.output  # it gets as far as its certificates
    (place / "line.py").write_text(MODEL + "\nraise SystemExit('it was imported')\n")
    changed = CliRunner().invoke(main, given)
    assert changed.exit_code == 2 and "differs in model (approved" in changed.output
    assert re.search(r"approved [0-9a-f]{10}\.\.\., asked", " ".join(changed.output.split()))  # no whole hash is shown


def test_a_ledger_is_verified_and_reported(place):
    gate = Gate.open(place / "site", "ward <1>", 60, "f00")
    for number in range(3):
        gate.release(Outgoing(kind="update", data=bytes(9), tensors={}, round=number, asked=bytes([number]),
                              share=lambda: 0.1))  # fmt: skip
    with pytest.raises(PolicyError):
        gate.release(Outgoing(kind="loo", data=b"1", share=lambda: 0.9))
    ledger, page = place / "site" / "what_left.jsonl", place / "page.html"
    said = CliRunner().invoke(main, ["node", "verify", str(ledger)])
    head = verify(ledger)[-1]["hash"]
    assert said.exit_code == 0 and "4 lines are intact. Messages that left: 3; refused: 1." in said.output
    assert head in said.output and "not detected without --head" in said.output
    said = CliRunner().invoke(main, ["node", "report", str(ledger), "--out", str(page), "--head", head])
    assert said.exit_code == 0, said.output
    text = page.read_text()
    assert "ward &lt;1&gt;" in text and "<script src" not in text and "http" not in text  # it needs no other file
    for words in ("GDPR", "HIPAA", "Computed from the rows: 3", "max_share", "update", "fewer rows than 20", head):
        assert words in text
    assert "What this page cannot see" in text and "all are there" in text
    for line in verify(ledger):
        assert line["sha256"][:16] in text
    ledger.write_text("\n".join(ledger.read_text().split("\n")[:2]) + "\n")
    for command in (["verify", str(ledger)], ["report", str(ledger), "--out", str(page)]):
        said = CliRunner().invoke(main, ["node", *command, "--head", head])
        assert said.exit_code == 2 and "lines were removed from the end" in " ".join(said.output.split())


WARDS = '''
"""Wards with effects of their own."""
import pyro
import pyro.distributions as dist

PLATE, ROWS = "ward", {"patient": "ward_idx"}


def model(num_wards, ward_idx, y):
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    with pyro.plate("ward", num_wards):
        level = pyro.sample("level", dist.Normal(centre, 0.5))
    with pyro.plate("patient", len(y)):
        pyro.sample("y", dist.Normal(level[ward_idx], 1.0), obs=y)
'''


OF_PATIENTS = '''
"""A latent of each patient."""
import pyro
import pyro.distributions as dist

PLATE = "patient"


def model(y):
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    with pyro.plate("patient", len(y)):
        level = pyro.sample("level", dist.Normal(centre, 0.5))
        pyro.sample("y", dist.Normal(level, 1.0), obs=y)
'''


def test_own_effects_leave_as_two_numbers_each_once_a_person_consents(tmp_path):
    """The oracle is the conjugate posterior given the shared parameter, which the result has at one value."""
    import xarray as xr

    from pyro_fed.results.to_arviz import make_inference_data

    site, y = tmp_path / "site", np.array([0.5, 1.5, 2.5, 0.0, 1.0])
    site.mkdir()
    (site / "policy.toml").write_text("min_cell = 2\n")
    (tmp_path / "wards.py").write_text(WARDS)
    rows = {"num_wards": 2, "ward_idx": np.array([0, 0, 0, 1, 1]), "y": y}
    np.savez(tmp_path / "rows.npz", **rows)
    draws = xr.Dataset({"centre": (["chain", "draw"], np.full((1, 4000), 1.0))})
    make_inference_data({"posterior": draws}, {"local_sites": "level"}).to_netcdf(str(tmp_path / "result.nc"))

    def asked(answer="y\n"):
        names = ("wards.py", "result.nc", "--data", "rows.npz", "--policy", "site/policy.toml")
        names = (*names, "--out", "out.json", "--page", "page.html")
        given = [str(tmp_path / one) if "." in one else one for one in names]
        return CliRunner().invoke(main, ["node", "effects", *given, "--name", "north"], input=answer)

    assert asked("n\n").exit_code == 1
    assert not (tmp_path / "out.json").exists() and not (site / "what_left.jsonl").exists()
    page = (tmp_path / "page.html").read_text()
    for words in ("level[0]", "level[1]", "smallest of which has 2", "sent them 0 times", "how to withdraw"):
        assert words in page
    said = asked()
    assert said.exit_code == 0, said.output
    left = json.loads((tmp_path / "out.json").read_text())
    assert left["site"] == "north" and set(left["effects"]) == {"level[0]", "level[1]"}
    for number, own in enumerate((y[:3], y[3:])):
        precision = 4 + len(own)
        found = left["effects"][f"level[{number}]"]
        assert set(found) == {"mean", "sd"}
        assert found["mean"] == pytest.approx((4 + own.sum()) / precision, abs=5 / np.sqrt(4000 * precision))
        assert found["sd"] == pytest.approx(precision**-0.5, rel=5 / np.sqrt(2 * 4000))
    (line,) = verify(site / "what_left.jsonl")
    assert (line["kind"], line["left"], line["numbers"]) == ("effect", True, 4)
    assert asked("n\n").exit_code == 1 and "sent them 1 times" in (tmp_path / "page.html").read_text()
    (site / "policy.toml").write_text("min_cell = 3\n")  # of the second ward's two patients
    refused = asked()
    assert isinstance(refused.exception, PolicyError) or "min_cell" in refused.output
    assert "rules forbid it: a cell has fewer than 3 rows" in (tmp_path / "page.html").read_text()
    (site / "policy.toml").write_text("max_share = 0.6\n")  # each ward's rows are half of the site's
    assert asked().exit_code and "the share of each row in it is unknown" in (tmp_path / "page.html").read_text()
    assert [line["left"] for line in verify(site / "what_left.jsonl")] == [True, False, False]
    (site / "policy.toml").write_text("")
    (tmp_path / "out.json").unlink()
    np.savez(tmp_path / "rows.npz", **rows | {"ward_idx": np.array([0, 0, 0, 0, 1])})
    said = asked()
    assert "group 1 of plate 'patient' has one row" in " ".join(f"{said.output} {said.exception}".split())
    (tmp_path / "wards.py").write_text(OF_PATIENTS)
    np.savez(tmp_path / "rows.npz", y=y)
    said = asked()
    assert "its latents are that row's own" in f"{said.output} {said.exception}"
    assert not (tmp_path / "out.json").exists() and len(verify(site / "what_left.jsonl")) == 3

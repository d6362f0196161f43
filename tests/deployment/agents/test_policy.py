"""An agent with a policy: each message is judged before neighbours can fetch it, and has a line in its ledger."""

import json

import pytest
from agents_case import NAMES, Rehearsal, peers_file
from forks import together

import pyro_fed as pf
from pyro_fed.deployment.policy import verify
from pyro_fed.deployment.policy.rules import Policy


pytestmark = together


def both(folder, **policies):
    """Two agents, and what each ended with; `policies` are texts by name."""
    names = NAMES[:2]
    peers_file(folder, names, 'graph = "complete"')
    agents = Rehearsal(folder, pf.P2PVI(start="prior"), num_rounds=3)
    for name in names:
        site = folder / f"site-{name}"
        site.mkdir()
        if name in policies:
            (site / "policy.toml").write_text(policies[name])
        agents.start(name, site=site)
    return agents, agents.join()


def test_the_ledger_has_each_message_of_an_agent(tmp_path):
    text = "min_rows = 5\nmax_numbers_per_row = 3.0\nmax_share = 0.9\nmax_rounds = 5"
    _, ended = both(tmp_path, north=text)
    assert ended == {"north": 0, "east": 0}
    for name in ended:
        lines = verify(tmp_path / f"site-{name}" / "what_left.jsonl")
        kinds = [line["kind"] for line in lines]
        assert kinds[0] == "agreement" and kinds[-1] == "notice" and set(kinds) >= {"statement", "update"}
        assert all(line["left"] and line["to"] == "neighbours" for line in lines)
        computed = [line for line in lines if line["kind"] in ("statement", "update")]
        rounds = {(line["replay"]["phase"], line["round"]) for line in computed}
        assert (0, 1) in rounds and lines[-1]["rounds"] == len(rounds)  # with what all say before the first round
        assert {line["policy"] for line in lines} == {
            Policy(min_rows=5, max_numbers_per_row=3.0, max_share=0.9, max_rounds=5).digest
            if name == "north" else Policy().digest
        }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "text"),
    [("max_numbers_per_row", "max_numbers_per_row = 0.5"), ("max_share", "max_share = 0.05")],
)
def test_an_agent_whose_message_breaks_a_rule_leaves_and_says_the_rule(tmp_path, rule, text):
    agents, ended = both(tmp_path, north=text)
    assert ended == {"north": 1, "east": 1}
    lines = verify(tmp_path / "site-north" / "what_left.jsonl")
    refused = [line for line in lines if not line["left"]]
    assert len(refused) == 1 and refused[0]["refused_by"] == rule
    assert not [line for line in lines[refused[0]["number"] :] if line["left"] and line["kind"] != "notice"]
    assert "agent north has left: site north: " in agents.log("east").read_text()
    assert f"({rule} of policy.toml)" in agents.log("east").read_text()
    assert json.loads((tmp_path / "site-north" / "what_left.jsonl").read_text().splitlines()[-1])["kind"] == "notice"

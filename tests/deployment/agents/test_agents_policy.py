"""An agent with a policy: each message is judged before neighbours can fetch it, and has a line in its ledger."""

import json
from types import SimpleNamespace

import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from agents_case import NAMES, Rehearsal, peers_file
from forks import together

import pyro_fed as pf
from pyro_fed.deployment.agents import agent as agents
from pyro_fed.deployment.agents.certificates import Identity
from pyro_fed.deployment.agents.links import Links
from pyro_fed.deployment.agents.outbox import At, NoMessage
from pyro_fed.deployment.agents.peers import LinkSettings, load_peers
from pyro_fed.deployment.agents.wire import Wire, with_step
from pyro_fed.deployment.claimed_federation import own_federation
from pyro_fed.deployment.policy import verify
from pyro_fed.deployment.policy.rules import Policy
from pyro_fed.errors import DataError, DivergenceError, PolicyError, QuorumError

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
        assert all(line["to"] == "neighbours" for line in lines)
        held_back = [(line["kind"], line["refused_by"]) for line in lines if not line["left"]]  # draws, for the audit:
        assert held_back == ([("statement", "max_numbers_per_row")] if name == "north" else [])  # the result stands
        computed = [line for line in lines if line["left"] and line["kind"] in ("statement", "update")]
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


# --------------------------------------------------------------------------------- values planted at an agent
NUMBER, WORD = 777123.25, "Zaphod-Marker"


def planted(kind, y, dose):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w[kind.long()] + dose - 777123.25, 1.0), obs=y)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return load_peers(peers_file(folder, NAMES[:2], 'graph = "complete"')), folder / "certificates"


def test_what_agents_must_agree_on_has_no_planted_value_and_names_what_differs(pair):
    peers, folder = pair
    said = []
    for number, dose in ((0, NUMBER), (1, NUMBER + 1)):
        kinds = pd.Categorical(["a", WORD, "a"], categories=["a", WORD])
        rows = kinds, torch.tensor([0.5, NUMBER, 0.25], dtype=torch.float64), dose
        identity = Identity.load(folder, NAMES[number])
        one = agents.Agent(model=planted, plate="data", rows=rows, identity=identity, peers=peers, algorithm=pf.P2PVI())
        own = own_federation(planted, NAMES[number], rows, "data", None, "by agents")
        said.append(agents._agreement(one, agents._algorithm(one, own), own, 3))
    text = json.dumps(said)
    assert "777123" not in text and "777124" not in text and WORD not in text
    assert next(key for key in said[0] if said[0][key] != said[1][key]) == "shared argument dose"


def test_a_farewell_has_no_planted_value():
    links = SimpleNamespace(wire=SimpleNamespace(run="r", left={}), names=NAMES)
    chained = ValueError(f"{WORD} {NUMBER}")
    chained.__cause__ = KeyError(WORD)
    chained.add_note(WORD)
    errors = [chained, DataError(f"{NUMBER}"), DivergenceError(WORD), QuorumError(WORD), OSError(2, WORD, f"{NUMBER}")]
    for error in errors:
        told = agents._farewell(links, error).encode().decode()
        assert WORD not in told and "777123" not in told and (type(error).__name__ in told)
    assert "(min_rows of" in agents._farewell(links, PolicyError("too few (min_rows of policy.toml)")).why


def test_a_neighbour_is_told_the_class_of_what_fails_in_an_answer(pair, monkeypatch):
    """gRPC itself would send the text of an exception."""
    peers, folder = pair
    ends = []
    for number in (0, 1):
        links = Links(number, peers, LinkSettings(retry_every=0.02), {"seed": "0"})
        links.wire = Wire(
            number, peers, Identity.load(folder, NAMES[number]), links.settings, links.agreement, links.answer
        )
        ends.append(links)

    def failing(*_):
        raise ValueError(f"{WORD} {NUMBER}")

    monkeypatch.setattr(ends[0].wire, "_answer", failing)
    try:
        asked = {0: with_step("Take", At(0, 0, 0), {"eta": torch.zeros(1, 3)})}
        for seconds in (5.0, 5.0):  # the first request may come before the channel is there
            answer = ends[1].wire.ask(asked, seconds, again=False)
        assert isinstance(answer[0], NoMessage)
        assert ends[1].wire.failures[0] == "internal: ValueError"
    finally:
        for links in ends:
            links.wire.close()

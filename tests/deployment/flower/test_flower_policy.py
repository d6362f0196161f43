"""A node with a policy: each reply is judged before it leaves, has a line in the ledger, and can be computed again."""

import hashlib
import json
import random
import shutil

import pytest
import torch

from pyro_fed.deployment.policy import Policy, verify
from pyro_fed.deployment.policy.approval import approve
from pyro_fed.deployment.policy.gate import numbers_hash
from pyro_fed.errors import QuorumError
from pyro_fed.runtime.messages import decode

NODES = {100: "0", 101: "1", 102: "2"}
CONFIG = {"num-clients": 3, "timeout": 30.0, "compile": "off", "num-draws": 30}
RECIPE = {"FedEP": "[settings]\nstart = 'prior'\n[run]\nnum_rounds = 2"}
pytestmark = pytest.mark.filterwarnings("ignore")


class Recording:
    """All that the server gets: the bytes of each reply, and each error's text."""

    def __init__(self, grid):
        from pyro_fed.deployment.flower.client import content_bytes

        self.grid, self.bytes, self.errors, pull = grid, [], [], grid.pull_messages

        def pulled(ids):
            replies = pull(ids)
            for one in replies:
                self.errors += [one.error.reason] if one.has_error() else []
                self.bytes += [] if one.has_error() else [content_bytes(one)]
            return replies

        grid.pull_messages = pulled


def site(folder, node, text):
    place = folder / f"site-{node}"
    place.mkdir(exist_ok=True)
    (place / "policy.toml").write_text(text)
    return place


def case(flower, tmp_path, text="", recipes=RECIPE, nodes=NODES):
    """A grid whose nodes have a policy, each in its own folder; and what the server gets."""
    model, files = flower.write_case(tmp_path, recipes)
    grid = flower.grid(model, files)
    for node in nodes:
        grid.contexts[node].node_config["policy"] = str(site(tmp_path, node, text) / "policy.toml")
    return grid, model, files, Recording(grid)


def run(flower, grid, model, files, **config):
    return flower.serve(grid, model, files["FedEP"], flower.read_configuration(CONFIG | config))


def test_the_ledgers_have_each_message_and_it_can_be_computed_again(flower, tmp_path):
    text = "keep_orders = true\nmin_rows = 3\nmax_share = 1.0\nmax_rounds = 4"  # which all three keep
    grid, model, files, got = case(flower, tmp_path, text)
    result = run(flower, grid, model, files, audit=True, loo=True)
    assert "loo" in result
    ledgers = {node: verify(tmp_path / f"site-{node}" / "what_left.jsonl") for node in NODES}
    lines = [line for one in ledgers.values() for line in one]
    assert sorted(line["sha256"] for line in lines) == sorted(hashlib.sha256(one).hexdigest() for one in got.bytes)
    assert {line["kind"] for line in lines} == {"description", "update", "log_likelihood", "loo"}
    update = next(line for line in lines if line["kind"] == "update")
    assert update["numbers"] == sum(torch.zeros(one).numel() for one in update["shapes"].values()) > 5
    assert sum(line["kind"] == "update" for line in ledgers[100]) == 2 and ledgers[100][-1]["rounds"] == 4

    again = flower.grid(model, files)  # by the orders that the site has kept, in the ledger's order
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict  # as Flower reads a message's content

    from pyro_fed.deployment.flower.client import content_bytes, state_hash

    for line in ledgers[101]:
        order = (tmp_path / "site-101" / "orders" / line["asked"]).read_bytes()
        content = recorddict_from_proto(RecordDict.FromString(order))
        message = flower.Message(content, 101, "query" if line["kind"] == "description" else "train")
        message.metadata.__dict__["_message_id"] = "m"
        assert line["replay"].get("state", "") == state_hash(again.contexts[101])
        reply = again.client(message, again.contexts[101])
        if line["kind"] == "description":
            assert hashlib.sha256(content_bytes(reply)).hexdigest() == line["sha256"]
            continue
        found = decode(reply.content["message"]["data"], None, finite=False).tensors
        assert numbers_hash(found) == line["numbers_sha256"]
        first = next(iter(found))
        assert numbers_hash({**found, first: found[first] + 1}) != line["numbers_sha256"]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("min_rows", "min_rows = 8"),
        ("max_numbers_per_row", "max_numbers_per_row = 0.01"),
        ("max_share", "max_share = 0.01"),
        ("kinds", 'kinds = ["description", "state"]'),
        ("max_rounds", "max_rounds = 1"),
        ("approval", "approval = true"),
    ],
)
def test_a_reply_that_breaks_a_rule_does_not_leave_the_node(flower, tmp_path, rule, text):
    grid, model, files, got = case(flower, tmp_path, text, nodes=[101])
    with pytest.raises(QuorumError):
        run(flower, grid, model, files, audit=False, **{"min-clients": 3})
    assert any(f"({rule} of policy.toml)" in reason and "client 1: site 1:" in reason for reason in got.errors)
    lines = verify(tmp_path / "site-101" / "what_left.jsonl")
    refused = [line for line in lines if not line["left"]]
    assert refused and all(line["refused_by"] == rule for line in refused)
    sent = {hashlib.sha256(one).hexdigest() for one in got.bytes}
    assert not sent & {line["sha256"] for line in refused}
    assert [line["kind"] for line in lines if line["kind"] == "notice"]


def test_sums_alone_are_judged_before_they_are_masked(flower, tmp_path):
    recipes = {"FedEP": RECIPE["FedEP"], "FedAvg": "[settings]\nchain_steps = 2\n[run]\nnum_rounds = 1"}
    grid, model, files, _ = case(flower, tmp_path, "max_numbers_per_row = 2.0\nmin_rows = 3", recipes)
    options = {"secure-aggregation": True, "audit": False}
    flower.serve(grid, model, files["FedAvg"], flower.read_configuration(CONFIG | options))
    lines = verify(tmp_path / "site-102" / "what_left.jsonl")
    assert [line["kind"] for line in lines] == ["description", "keys", "keys", "masked", "keys"]
    assert lines[3]["numbers"] == 4 and lines[3]["shapes"] == {"masked": [4]}


# ------------------------------------------------------------------------------------------------ approval
def asked_of(flower, tmp_path, model, files, text="approval = true"):
    """What the node replies to the question for its description."""
    grid = flower.grid(model, files)
    grid.contexts[101].node_config["policy"] = str(site(tmp_path, 101, text) / "policy.toml")
    message = flower.Message(flower.RecordDict({"settings": flower.ConfigRecord({})}), 101, "query")
    message.metadata.__dict__["_message_id"] = "m"
    return grid.client(message, grid.contexts[101])


def tampered(draw, kind, model, files, place, monkeypatch):
    """Change one thing, and return its name in the refusal."""
    if kind == "model":
        data = bytearray(model.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(7)
        model.write_bytes(data)
        return "model"
    if kind == "setting":
        name, value = draw.choice([("damping", draw.random()), ("num_points", draw.randint(2, 60)), ("start", "auto")])
        text = files["FedEP"].read_text()
        text = text.replace("start = 'prior'", f"start = {json.dumps(value)}" if name == "start" else
                            f"start = 'prior'\n{name} = {json.dumps(value)}")  # fmt: skip
        files["FedEP"].write_text(text)
        return f"recipe setting {name}"
    if kind == "rounds":
        files["FedEP"].write_text(files["FedEP"].read_text().replace("= 2", f"= {draw.randint(3, 99)}"))
        return "recipe run num_rounds"
    if kind == "recipe":
        files["FedEP"].write_text(f'algorithm = "pyro_fed.infer:{draw.choice(["PVI", "DSVGD", "FSGLD", "FedAvg"])}"')
        return "recipe algorithm"
    if kind == "version":
        monkeypatch.setattr("pyro_fed.deployment.policy.approval.VERSION", f"0.{draw.randint(2, 99)}.0")
        return "version"
    if kind == "policy":
        name, value = draw.choice([("min_rows", draw.randint(1, 9)), ("max_share", draw.uniform(0.5, 0.9)),
                                   ("max_rounds", draw.randint(5, 50)), ("error_text", "true")])  # fmt: skip
        (place / "policy.toml").write_text(f"approval = true\n{name} = {value}")
        return f"policy {name}"
    path = place / "approved" / draw.choice(["approval.json", "model.py", "recipe-0.toml"])
    content = json.loads(path.read_text()) if path.suffix == ".json" else {}
    changed = json.dumps(content | {"version": "9"}) if content else path.read_text() + "\nrounds_ = 1"
    path.write_text(changed)
    return "approval is not as it was written"


KINDS = ["model", "setting", "rounds", "recipe", "version", "policy", "approval"]


def test_50_tamperings_of_50_are_refused_by_what_differs(flower, tmp_path, monkeypatch):
    model, files = flower.write_case(tmp_path, RECIPE)
    place = site(tmp_path, 101, "approval = true")
    approve(place, model, [files["FedEP"]], Policy.read(place / "policy.toml"))
    whole = {path: path.read_bytes() for path in [model, files["FedEP"], *place.rglob("*.*")] if path.is_file()}
    draw, imported = random.Random(3), []
    monkeypatch.setattr("pyro_fed.deployment.policy.approval.load_model", lambda *_, **__: imported.append(_))
    for number in range(50):
        kind = KINDS[number % len(KINDS)]
        with monkeypatch.context() as patch:
            named = tampered(draw, kind, model, files, place, patch)
            text = (place / "policy.toml").read_text()
            reply = asked_of(flower, tmp_path, model, files, text)
        assert reply.has_error() and named in reply.error.reason, (number, kind, reply)
        assert reply.error.reason.startswith("client 1: the site")
        if kind == "model":
            assert not imported  # not even imported
        imported.clear()
        for path, data in whole.items():
            path.write_bytes(data)


def test_a_node_runs_its_own_copies_of_what_it_has_approved(flower, tmp_path):
    model, files = flower.write_case(tmp_path, RECIPE)
    place = site(tmp_path, 101, "approval = true")
    approved = approve(place, model, [files["FedEP"]], Policy.read(place / "policy.toml"))
    grid, _, _, _ = case(flower, tmp_path, "approval = true", nodes=[101])
    run(flower, grid, model, files, audit=False)
    lines = verify(place / "what_left.jsonl")
    assert {line["approval"] for line in lines} == {approved.digest} and all(line["left"] for line in lines)
    import sys

    own = str(place / "approved" / "model.py")
    assert any(getattr(module, "__file__", None) == own for module in list(sys.modules.values()))
    shutil.rmtree(place / "approved")
    assert "(approval of policy.toml)" in asked_of(flower, tmp_path, model, files).error.reason


def test_a_reply_whose_rules_are_no_hashes_is_refused_before_its_state_is_taken():
    from types import SimpleNamespace

    from flwr.app import ConfigRecord, RecordDict

    from pyro_fed.deployment.flower.executor import Flower
    from pyro_fed.deployment.flower.wire import MESSAGE, SETTINGS

    server = SimpleNamespace(decoded=lambda *_: pytest.fail("the reply was taken"))
    records = {SETTINGS: ConfigRecord({"policy": "<b>"}), MESSAGE: ConfigRecord({"data": b""})}
    reply = SimpleNamespace(has_error=lambda: False, content=RecordDict(records))
    assert "64 hexadecimal digits" in Flower._answer(server, 0, None, reply)

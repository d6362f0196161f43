"""The gate: what breaks a rule does not leave, and the ledger has a line for each message that does or does not."""

import hashlib
import json
import random
import re

import pytest
import torch

from pyro_fed.deployment.policy import KINDS, Gate, Ledger, Outgoing, Policy, largest_share, verify
from pyro_fed.deployment.policy.rules import COMPUTED
from pyro_fed.errors import PolicyError, ProtocolError, SettingError

RULES = """
min_rows = 20
min_cell = 5
min_level = 6
max_numbers_per_row = 0.5
max_share = 0.3
kinds = ["description", "update", "table"]
max_rounds = 4
"""


def gate_in(folder, rows=100, text=RULES, approval=""):
    folder.mkdir(exist_ok=True)
    (folder / "policy.toml").write_text(text)
    return Gate.open(folder, "north", rows, approval)


def good(**changed):
    parts = {"kind": "update", "data": b"1234", "tensors": {"eta": torch.ones(7)}, "round": 0, "asked": b"order"}
    return Outgoing(**parts | {"share": lambda: 0.1} | changed)


# ---------------------------------------------------------------------------------------------- 200 violations
def violation(draw):
    """A message that breaks one rule by a random amount, the rule, and the site's rows."""
    rule = draw.choice(["min_rows", "min_cell", "min_level", "max_numbers_per_row", "max_share", "kinds", "max_rounds"])
    rows = draw.randint(20, 500)
    if rule == "min_rows":
        return good(kind=draw.choice(["description", "update"]), tensors={}), rule, draw.randint(0, 19)
    if rule in ("min_cell", "min_level"):
        name, least = ("cells", 5) if rule == "min_cell" else ("levels", 6)
        counts = {f"c{i}": draw.choice([0, draw.randint(least, 90)]) for i in range(draw.randint(0, 5))}
        counts[f"c{draw.randint(0, 5)}"] = draw.randint(1, least - 1)
        return good(kind="table" if rule == "min_cell" else "description", **{name: counts}), rule, rows
    if rule == "max_numbers_per_row":
        most = rows // 2
        first = draw.randint(0, most)
        shapes = [first, most + 1 - first + draw.randint(0, 3)]
        return good(tensors={f"t{i}": torch.zeros(size) for i, size in enumerate(shapes)}), rule, rows
    if rule == "max_share":
        share = draw.choice([None, float("nan"), draw.uniform(0.3 + 1e-9, 1.0)])
        return good(share=draw.choice([None, lambda: share]), tensors={"eta": torch.ones(3)}), rule, rows
    if rule == "kinds":
        return good(kind=draw.choice(sorted(set(KINDS) - {"description", "update", "table", "notice"}))), rule, rows
    return good(asked=b"a fifth order", tensors={}), rule, rows


def test_200_violations_of_200_are_refused_by_the_name_of_their_rule(tmp_path):
    draw, broken = random.Random(7), dict[str, int]()
    for number in range(200):
        message, rule, rows = violation(draw)
        gate = gate_in(tmp_path / str(number), rows)
        before = 4 if rule == "max_rounds" else 0
        for order in range(before):
            gate.release(good(asked=bytes([order]), tensors={}))
        with pytest.raises(PolicyError, match=rule) as caught:
            gate.release(message)
        assert caught.value.rule == rule and "site north" in str(caught.value)
        last = verify(gate.folder / "what_left.jsonl")[-1]
        assert not last["left"] and last["refused_by"] == rule and last["number"] == before
        broken[rule] = broken.get(rule, 0) + 1
    assert sum(broken.values()) == 200 and min(broken.values()) > 10


def test_what_keeps_every_rule_leaves_at_their_very_limits(tmp_path):
    gate = gate_in(tmp_path / "site", 20)
    for order in (b"1", b"2", b"3", b"4", b"4"):  # the same order again is no further round
        limit = good(asked=order, tensors={"eta": torch.ones(10)}, share=lambda: 0.3)
        assert gate.release(limit) == b"1234"
    assert gate.release(good(kind="notice", data=b"gone", tensors={}, share=None)) == b"gone"
    cells = {"cells": {"f": 5, "m": 0}, "levels": {"a": 6}}
    with pytest.raises(PolicyError, match="max_rounds"):
        gate.release(good(kind="table", asked=b"5", **cells))
    assert gate.release(good(kind="description", share=None, asked=b"", **cells)) == b"1234"
    again = gate_in(tmp_path / "site", 20, RULES.replace("max_rounds = 4", "max_rounds = 5"))
    assert again.release(good(kind="table", asked=b"6", **cells)) == b"1234"  # other rules count anew


def test_a_site_without_rules_lets_everything_out_and_says_so(tmp_path):
    gate = Gate.open(tmp_path, "north", 1)
    for kind in KINDS:
        gate.release(good(kind=kind, share=None, tensors={"a": torch.zeros(10**4)}))
    assert len(verify(tmp_path / "what_left.jsonl")) == len(KINDS)
    assert "no rules: everything that the run asks for may leave" in gate.in_words()
    assert Gate.open(None, "north").release(good(share=None)) == b"1234"
    assert "min_rows = 20, min_cell = 5" in gate_in(tmp_path / "other").in_words()


def test_a_policy_that_asks_for_an_approval_lets_nothing_out_without_one(tmp_path):
    text = "approval = true"
    with pytest.raises(PolicyError, match=r"pyro-fed node approve.*approval of policy.toml"):
        gate_in(tmp_path / "a", text=text).release(good(kind="description"))
    assert gate_in(tmp_path / "b", text=text, approval="f00").release(good()) == b"1234"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min_row = 3", "unknown key 'min_row' of Policy; did you mean 'min_rows'"),
        ("min_rows = -1", "min_rows must be a whole number of at least 0"),
        ("min_rows = 2.5", "'min_rows' of Policy expects int, received 2.5"),
        ("max_share = 0.0", "max_share must lie in (0.0, 1.0]"),
        ('kinds = ["updates"]', "kinds has no 'updates'; did you mean 'update'"),
        ("[rules]\nmin_rows = 3", "unknown key 'rules'"),
        ("min_rows", "policy.toml is not a TOML file: Expected '='"),
        ("max_numbers_per_row = -1", "max_numbers_per_row must be positive"),
    ],
)
def test_policies_that_are_none(tmp_path, text, words):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(SettingError, match=re.escape(words)) as caught:
        Policy.read(tmp_path / "policy.toml")
    assert str(caught.value).count("policy.toml") == 1


def test_the_hash_of_a_policy_is_that_of_its_rules(tmp_path):
    changed = [{}, {"min_rows": 2}, {"max_share": 0.5}, {"kinds": ("update",)}, {"approval": True}, {"max_rounds": 0}]
    assert len({Policy(**one).digest for one in changed}) == len(changed)
    assert Policy(kinds=("update", "loo")).digest == Policy(kinds=("loo", "update")).digest
    assert Policy(min_rows=0).digest == Policy().digest
    assert set(COMPUTED) < set(KINDS) and "notice" not in COMPUTED


# ------------------------------------------------------------------------------------------------- the ledger
def written(folder, lines=12):
    gate = gate_in(folder, text="keep_orders = true")
    for number in range(lines):
        gate.release(good(data=bytes([number]), asked=bytes([number]), round=number, replay={"seed": 3}))
    return folder / "what_left.jsonl"


def test_a_line_says_what_left(tmp_path):
    lines = verify(written(tmp_path / "site", 3))
    line = lines[2]
    assert line["sha256"] == hashlib.sha256(b"\2").hexdigest() and line["bytes"] == 1 and line["numbers"] == 7
    assert line["kind"] == "update" and line["round"] == 2 and line["shapes"] == {"eta": [7]} and line["left"]
    assert line["replay"] == {"seed": 3} and line["asked"] == hashlib.sha256(b"\2").hexdigest()
    assert (tmp_path / "site" / "orders" / line["asked"]).read_bytes() == b"\2"
    assert line["policy"] == Policy(keep_orders=True).digest and line["rounds"] == 3
    assert oct((tmp_path / "site" / "what_left.jsonl").stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize("fault", ["deleted", "changed", "reordered", "truncated", "forged", "cut", "doubled"])
def test_a_ledger_that_was_touched_is_found(tmp_path, fault):
    path = written(tmp_path / "site")
    head, draw, whole = verify(path)[-1]["hash"], random.Random(fault), path.read_text().splitlines(keepends=True)
    for _ in range(30):
        lines, at = list(whole), draw.randrange(len(whole) - 1)
        kept = None
        if fault == "deleted":
            del lines[at]
        if fault == "changed":
            place = draw.randrange(len(lines[at]) - 1)
            letter = draw.choice([one for one in '0123456789abcdef"' if one != lines[at][place]])
            lines[at] = lines[at][:place] + letter + lines[at][place + 1 :]
        if fault == "reordered":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
        if fault == "truncated":
            lines, kept = lines[: at + 1], head
        if fault == "forged":  # a changed line with its own hash made anew
            line = json.loads(lines[at]) | {"left": False}
            del line["hash"]
            line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
            lines[at] = json.dumps(line) + "\n"
        if fault == "cut":
            lines[-1] = lines[-1][: -1 - draw.randrange(20)]
        if fault == "doubled":
            lines.insert(at, lines[at])
        path.write_text("".join(lines))
        with pytest.raises(ProtocolError, match=r"line|hash"):
            verify(path, kept)
    path.write_text("".join(whole[:5]))
    assert len(verify(path)) == 5  # without a kept hash nobody can see that the end is missing
    path.write_text("".join(whole))
    assert len(verify(path, head)) == 12


def test_nothing_leaves_after_a_ledger_was_cut(tmp_path):
    path = written(tmp_path / "site")
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ProtocolError, match="cut off"):
        Gate.open(tmp_path / "site", "north", 100).release(good())


def test_a_long_line_is_read_whole(tmp_path):
    ledger = Ledger(tmp_path / "what_left.jsonl")
    for size in (10, 300_000, 70_000, 5):
        with ledger.appending() as (_, line):
            line["text"] = "x" * size
    assert [len(line["text"]) for line in verify(ledger.path)] == [10, 300_000, 70_000, 5]


# --------------------------------------------------------------------------------------------------- shares
def test_the_largest_share_is_that_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(30, 5, generator=generator)
    parts[:, 3] = 0.0
    by_hand = max(
        abs(float(parts[i, j])) / sum(abs(float(one)) for one in parts[:, j]) for i in range(30) for j in (0, 1, 2, 4)
    )
    assert largest_share(parts) == pytest.approx(by_hand)
    assert largest_share(torch.zeros(3, 2)) is None
    assert largest_share(torch.tensor([[1.0], [float("nan")]])) is None

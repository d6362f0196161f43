"""What a client makes of a server that asks for anything, and what leaves it when its own code fails."""

import copy
import logging
import re
import resource
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.errors import QuorumError
from pyro_fed.recipes import recipe as recipes_of

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]
RECIPE = {"FedEP": '[settings]\nstart = "prior"\n[run]\nnum_rounds = 2'}
RUN, OTHER, NONCE = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def client(flower, tmp_path):
    """`ask(settings, tensors, header)`: what the client with 13 of 23 rows answers to a changed order."""
    from pyro_fed.deployment.flower.wire import pack
    from pyro_fed.runtime.messages import Header

    model, recipes = flower.write_case(tmp_path, RECIPE)
    grid = flower.grid(model, recipes)
    algorithm = replace(recipes_of.load(recipes["FedEP"]).build(), covariance="full", curvature="hessian")  # as chosen
    settings = {
        "job": "work",
        "algorithm": settings_line(algorithm),
        "num_clients": 3,
        "num_rows": 23,
        "width": 13,
        "client": 2,
        "slots": "2",
    }
    settings |= {"phase": 1, "begins": True, "verdict": -1, "round": 0, "seed": 0, "level": "off", "copies": False}
    site = {"precision": torch.zeros(1, 2, 2), "eta": torch.zeros(1, 2)}
    good = {f"local.{name}": value.double() for name, value in site.items()}
    good |= {"shared.precision": torch.eye(2)[None].double(), "shared.eta": torch.zeros(1, 2).double()}

    def ask(changed=None, tensors=None, header=None, fresh=True):
        given = {"kind": "work", "run": RUN, "round": 0, "client": "2", "nonce": NONCE} | (header or {})
        chosen = {name: value for name, value in (good | (tensors or {})).items() if value is not None}
        content = pack(flower.ConfigRecord(settings | (changed or {})), Header(**given), chosen)
        message = flower.Message(content, 102, "train")
        message.metadata.__dict__["_message_id"] = "m"
        if fresh:
            grid.start(102, 2)
        return grid.client(copy.deepcopy(message), grid.contexts[102])

    return ask


def test_a_good_order_is_followed(client):
    assert not client().has_error()


HUGE = 10**12


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"width": -1}, "width: expected a number from 1"),
        ({"width": 12}, "width: expected at least 13, this client's own rows, received 12"),
        ({"num_rows": -1}, "num_rows: expected a number from 1"),
        ({"num_rows": 14}, "num_rows: expected 15 to 39"),
        ({"num_clients": HUGE, "num_rows": HUGE}, "num_clients: expected a number from 1 to"),
        ({"client": 3}, "client: expected a number below 3"),
        ({"phase": -1}, "phase: expected"),
        ({"round": -2}, "round: expected a number from -1"),
        ({"round": -1}, "round: expected a round if there is work"),
        ({"seed": -1}, "seed: expected"),
        ({"slots": "2 1"}, "slots: expected ascending"),
        ({"slots": "x" * 300}, "slots: expected positions"),
        ({"slots": ""}, "slots: expected positions if there is work"),
        ({"slots": "9" * 200_000}, "slots: expected at most 100000 characters"),
        ({"level": "os.system"}, "level: expected a level"),
        ({"verdict": 10**11}, "verdict: expected"),
        ({"verdict": 0}, "tensor 'taken': expected whole numbers"),
        ({"job": "rows"}, "the header's kind: expected 'ask'"),
    ],
)
def test_settings_out_of_range_are_refused(client, changed, words):
    reply = client(changed)
    assert reply.has_error() and f"client 2: the server's order has {words}" in reply.error.reason
    assert "give server and clients the same model" in reply.error.reason


def test_a_job_that_the_algorithm_does_not_have_is_refused(client):
    reply = client({"job": "rows"}, header={"kind": "ask"})
    assert "job: expected one of work, states, log_lik, received rows" in reply.error.reason


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"junk": torch.zeros(3)}, r"tensor 'junk': expected shared\.\*, local\.\* for this order, received torch"),
        ({"told.x": torch.zeros(1, 3)}, r"tensor 'told\.x'"),
        ({"taken": torch.zeros(1, dtype=torch.int64)}, "tensor 'taken'"),
        ({"shared.eta": torch.zeros(5, 2)}, r"tensor 'shared\.eta': expected 1 along the first axis"),
        ({"local.eta": torch.zeros(7, 2)}, r"tensor 'local\.eta': expected 1 along the first axis"),
        ({"local.eta": torch.zeros(())}, r"tensor 'local\.eta': expected 1 along the first axis"),
    ],
)
def test_tensors_of_no_order_are_refused(client, tensors, words):
    assert re.search(words, client(tensors=tensors).error.reason)


@pytest.mark.parametrize("name", ["shared.unknown", "junk"])
def test_400_megabytes_are_not_unpacked(client, name):
    """The message itself is in memory; were it unpacked, another 400 MB would be."""
    client()
    junk = torch.zeros(1, 50_000_000, dtype=torch.float64)
    before = {}
    from pyro_fed.deployment.remote import site

    def unpack(*given, **options):
        before["unpacked"] = True
        raise AssertionError

    real, site.decode = site.decode, unpack
    try:
        reply = client(tensors={name: junk})
    finally:
        site.decode = real
    assert not before
    assert name in reply.error.reason and "400000000 bytes" in reply.error.reason


def test_rows_are_padded_no_further_than_a_width_that_fits(client):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not client({"width": 10**9, "num_rows": 10**9 + 20}).has_error()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"client": "0"}, "the header's client: expected 2, received 0"),
        ({"round": 5}, "the header's round: expected 0"),
        ({"kind": "ask"}, "the header's kind: expected 'work'"),
        ({"kind": "reply"}, "the header's kind: expected 'work'"),
    ],
)
def test_headers_of_other_messages_are_refused(client, header, words):
    assert words in client(header=header).error.reason


def test_an_order_of_another_run_is_refused(client):
    assert not client().has_error()
    on = {"begins": False, "round": 1}
    alone = {"local.eta": None, "local.precision": None}
    again = {"header": {"round": 1}, "fresh": False}
    assert not client(on, alone, **again).has_error()
    again["header"]["run"] = OTHER
    words = f"the header's run: expected {RUN}, whose state this client has, received {OTHER}"
    assert words in client(on, alone, **again).error.reason


MARK = 4711.125
FAILING = {
    "load_rows": "raise KeyError(f'row {rows}')",
    "exit": "raise SystemExit(f'row {rows}')",
    "protocol": "raise pf.errors.ProtocolError(f'row {rows}')",
    "chained": (
        "try:\n        raise ValueError(str(rows))\n"
        "    except ValueError as error:\n        raise pf.errors.DataError(f'{rows}') from error"
    ),
    "sums": "pf.column_sums(rows[0]['no'])",
    "nan": "return rows[0], rows[1] * float('nan')",
    "text": "return rows[0], [f'{v}' for v in rows[1].tolist()]",
    "lengths": "return rows[0][:2], rows[1]",
    "model": "return rows",
    "constant": "return torch.full((3, 2), MARK)",
}
CODE = """
import torch
import pyro_fed as pf
MARK = 4711.125

def load_rows(model, node_config):
    rows = torch.full((3, 2), MARK), torch.full((3,), MARK)
    {body}
"""
MODEL_FAILS = "    if float(y.max()) == 4711.125:\n        raise ZeroDivisionError(f'rows {y}')\n"


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.filterwarnings("ignore")
def test_no_text_with_rows_leaves_a_client(flower, case, tmp_path, caplog):
    """Whoever raises, of whatever class: the server gets the class, file and line, and the client's log the text."""
    model, recipes = flower.write_case(tmp_path, RECIPE)
    if case == "model":
        text = model.read_text()
        model.write_text(text.replace("    w = pyro", f"{MODEL_FAILS}    w = pyro"))
    path = tmp_path / "client_code.py"
    path.write_text(CODE.format(body=FAILING[case]))
    space = {"__name__": "client_code"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    app = flower.client_app(model, list(recipes.values()), space["load_rows"])
    grid = flower.LocalGrid(app)
    message = flower.Message(flower.RecordDict({"settings": flower.ConfigRecord({})}), 102, "query")
    message.metadata.__dict__["_message_id"] = "m"
    with caplog.at_level(logging.ERROR, logger="flwr"):
        reply = app(message, grid.contexts[102])
    assert reply.has_error()
    assert "4711" not in str(reply.error.reason)
    assert str(MARK) not in str(reply.metadata)  # its own numbers, such as the time, may have four digits of the mark
    assert re.fullmatch(r"client 2: \w+ at [\w.]+\.py:\d+; the text is in the client's own log", reply.error.reason)
    if case in ("load_rows", "exit", "protocol", "chained", "sums"):
        assert " at client_code.py:" in reply.error.reason
    if case == "model":
        assert " at line.py:" in reply.error.reason
    assert caplog.records and caplog.records[-1].exc_info


def test_no_text_with_rows_reaches_the_server_in_a_run(flower, tmp_path, monkeypatch):
    """Clients that describe themselves and fail in their work: the replies that the server gets, and its own error."""
    model, recipes = flower.write_case(tmp_path, RECIPE)
    fails = "    import os\n    if os.environ.get('FAILS'):\n        raise ZeroDivisionError(f'rows {y} 4711.125')\n"
    failing = tmp_path / "failing.py"
    failing.write_text(model.read_text().replace("    w = pyro", f"{fails}    w = pyro"))
    grid = flower.grid(failing, recipes)
    got, pull = [], grid.pull_messages

    def watched(ids):
        replies = pull(ids)
        got.extend(replies)
        if all("description" in str(reply) for reply in replies):
            monkeypatch.setenv("FAILS", "1")
        return replies

    grid.pull_messages = watched
    config = {"num-clients": 3, "timeout": 5.0, "compile": "off", "audit": False, "min-clients": 1}
    with pytest.raises(QuorumError) as caught:
        flower.serve(grid, model, recipes["FedEP"], flower.read_configuration(config))
    assert "at failing.py:" in str(caught.value)
    assert len(got) == 6 and str(MARK) not in "".join(map(str, got))
    assert "4711" not in str(caught.value.args) + "".join(str(reply.error) for reply in got if reply.has_error())


def test_where_an_exception_is_without_a_line_of_the_users():
    from pyro_fed.deployment.flower.client import place_of

    assert place_of(ValueError("never raised")) == "an unknown line"

"""Values, labels and names that are planted at a client, in all that the server gets, writes and logs: none is there.

Numbers are looked for as text and as the bytes of floats. What a client says of its own in its own log is left out.
"""

import logging
import struct

import pytest
import torch
from algorithms import line

import pyro_fed as pf
from pyro_fed.errors import PyroFedError, QuorumError

NUMBER, WORD = 777123.25, "Zaphod-Marker"
#: A value of rows in a run that succeeds; it is exact in both precisions.
VALUE = 0.7771232128143311
OWN_LOG = ("client.py",)
pytestmark = pytest.mark.filterwarnings("ignore")


def forms(*marks):
    """All forms in which a mark may travel, as bytes."""
    found = []
    for mark in marks:
        if isinstance(mark, str):
            found += [mark.encode(), mark.encode("utf-16-le"), mark.lower().encode()]
        else:
            found += [f"{mark:.6g}"[:7].encode(), struct.pack("<d", mark), struct.pack(">d", mark)]
            found += [struct.pack("<f", mark), struct.pack("<d", -mark)]
    return found


class Heard:
    """All that the server gets: the bytes of each reply and error; and the lines of log that are not a client's own."""

    def __init__(self, caplog):
        self.caplog, self.data = caplog, []

    def reply(self, message):
        from pyro_fed.deployment.flower.client import content_bytes

        self.data.append(message.error.reason.encode() if message.has_error() else content_bytes(message))
        self.data.append(repr(vars(message.metadata)).encode())
        return message

    def watch(self, grid):
        pull = grid.pull_messages
        grid.pull_messages = lambda ids: [self.reply(one) for one in pull(ids)]
        return grid

    def folder(self, folder):
        self.data += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]

    def check(self, *marks):
        lines = [one for one in self.caplog.records if one.filename not in OWN_LOG]
        self.data += [f"{one.getMessage()} {one.exc_info}".encode() for one in lines]
        assert self.data
        for data in self.data:
            for form in forms(*marks):
                assert form not in data, (form, data[:2000])


# ------------------------------------------------------------------------------- clients that fail before a round
LOADING = {
    "file": "open('/data/Zaphod-Marker-777123.25.csv')",
    "column": "pd.DataFrame({'Zaphod-Marker 777123': [1.0]})['Zaphod-Marker']",
    "frame": "raise ValueError(pd.DataFrame({'Zaphod-Marker': x}).to_string())",
    "note": "error = ValueError('Zaphod-Marker'); error.add_note('777123.25'); raise error",
    "group": "raise ExceptionGroup('Zaphod-Marker', [ValueError(777123.25)])",
    "text that fails": "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})('777123.25', 'Zaphod-Marker')",
    "evaluated": "eval(compile('1/0', '<Zaphod-Marker 777123.25>', 'eval'))",
    "only evaluated": "raise_in('<Zaphod-Marker 777123.25>')",
    "exit": "raise SystemExit('Zaphod-Marker 777123.25')",
    "a refusal's class": "raise pf.errors.PolicyError('Zaphod-Marker 777123.25', '777123.25')",
    "another refusal's class": "raise Refusal('Zaphod-Marker 777123.25')",
    "assertion": "assert not x.tolist(), x.tolist()",
    "unicode": "'Zaphod-Marker\\udcff'.encode()",
    "wrong type": "return 'Zaphod-Marker 777123.25'",
    "wrong count": "return x, x, x",
    "a table": "return {'Zaphod-Marker': x}, x",
    "text": "return ['Zaphod-Marker'] * len(x), x[:, 0]",
    "labels": "return pd.Categorical(['Zaphod-Marker'] * len(x)), x[:, 0]",
    "dates": "return pd.to_datetime(['1977-12-31'] * len(x)), x[:, 0]",
    "objects": "return np.array([777123.25, 'Zaphod-Marker', None]), x[:, 0]",
    "missing": "return x, x[:, 0] * float('nan')",
    "lengths": "return x[:-1], x[:, 0]",
    "shapes": "return x, x",
    "sums": "pf.column_sums([777123.25, 'Zaphod-Marker'])",
    "sums of sums": "pf.pooled_moments([777123.25, 'Zaphod-Marker'])",
    "a federation": "pf.Federation(lambda a: None, (x,), plate='Zaphod-Marker 777123.25', num_clients=2)",
}
MODELS = {
    "raised": "raise ZeroDivisionError(f'{x} Zaphod-Marker')",
    "chained": "int(f'Zaphod-Marker {x}')",
    "index": "torch.zeros(2)[x.long()]",
    "parameter": "pyro.sample('s', dist.Normal(0.0, -x[0, 0]))",
    "support": "pyro.sample('c', dist.Poisson(1.0).expand([len(y)]).to_event(1), obs=-y)",
    "name": "pyro.sample(f'Zaphod-Marker {float(x[0, 0])}', dist.Uniform(0.0, x[0, 0] - 777123.25))",
    "plate": "with pyro.plate('Zaphod-Marker', int(x[0, 0])): raise ValueError",
    "a statement": "pyro.param('Zaphod-Marker', x[0])",
    "shared": "pf.shared(x.mean())",
    "warned": "import warnings; warnings.warn(f'Zaphod-Marker {x}'); raise ValueError",
    "logged": "import logging; logging.getLogger('flwr').debug('Zaphod-Marker %s', x); raise ValueError",
    "recursion": "model(x, y)",
}
CLIENT = """
import numpy as np
import pandas as pd
import torch
import pyro_fed as pf
from pyro_fed.deployment.remote.order import Refusal

def raise_in(name):
    space = {{}}
    exec(compile('def fail(): raise ValueError(777123.25)', name, 'exec'), space)
    space['fail']()

def load_rows(model, node_config):
    x = torch.full((3, 2), 777123.25)
    {}
    return x, x[:, 0]
"""


def described(flower, model, files, body, folder, heard, **config):
    """What a client replies to the question for its description."""
    path = folder / "client_code.py"
    path.write_text(CLIENT.format(body))
    space = {"__name__": "client_code"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    app = flower.client_app(model, list(files.values()), space["load_rows"])
    grid = flower.LocalGrid(app)
    grid.contexts[102].node_config.update(config)
    message = flower.Message(flower.RecordDict({"settings": flower.ConfigRecord({})}), 102, "query")
    message.metadata.__dict__["_message_id"] = "m"
    return heard.reply(app(message, grid.contexts[102]))


#: Each place without a policy; with one, whose errors leave by the same way, a few.
PLACES = [(place, False) for place in (*LOADING, *(f"model: {name}" for name in MODELS))]
PLACES += [(place, True) for place in ("file", "a refusal's class", "text that fails", "model: support")]


@pytest.mark.parametrize(("place", "policy"), PLACES)
def test_no_failure_before_a_round_tells_a_planted_value(flower, place, policy, tmp_path, caplog):
    model, files = flower.write_case(tmp_path, {"FedEP": ""})
    body = LOADING.get(place, "return x, x[:, 0]")
    if place.startswith("model: "):
        planted = f"import pyro_fed as pf\n    {MODELS[place.removeprefix('model: ')]}\n    w = pyro"
        model.write_text(model.read_text().replace("w = pyro", planted, 1))
    config = {}
    if policy:
        (tmp_path / "policy.toml").write_text("min_rows = 2")
        config["policy"] = str(tmp_path / "policy.toml")
    heard = Heard(caplog)
    with caplog.at_level(logging.INFO, logger="flwr"):
        reply = described(flower, model, files, body, tmp_path, heard, **config)
    assert reply.has_error() and reply.error.reason.startswith("client 2: "), place
    if policy:
        heard.data.append((tmp_path / "what_left.jsonl").read_bytes())
    heard.check(NUMBER, WORD)


def test_the_text_leaves_where_the_site_allows_it(flower, tmp_path, caplog):
    model, files = flower.write_case(tmp_path, {"FedEP": ""})
    (tmp_path / "policy.toml").write_text("error_text = true")
    config = {"policy": str(tmp_path / "policy.toml")}
    for body, text in (("raise ValueError('dose 7')", "ValueError: dose 7"), (LOADING["text that fails"], "Odd")):
        reply = described(flower, model, files, body, tmp_path, Heard(caplog), **config)
        assert text in reply.error.reason and "client_code.py:" in reply.error.reason


# ------------------------------------------------------------------------------------------------------ in a run
def marked_lines():
    """Clients of 3, 7 and 13 rows, a third of which have planted values."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(23, 2, generator=generator).double(), torch.randn(23, generator=generator).double()
    x[::3, 1], y[::3] = VALUE, VALUE
    parts = pf.partition.Explicit([list(range(3)), list(range(3, 10)), list(range(10, 23))])
    return pf.Federation(line, (x, y), plate="data", partition=parts)


@pytest.mark.parametrize("family", ["FedEP", "FSGLD"])
def test_a_whole_run_with_questions_and_a_checkpoint_has_no_planted_value(flower, family, tmp_path, caplog):
    model, files = flower.write_case(tmp_path / "..", {family: flower.RECIPES[family].replace("= 4", "= 2")})
    heard = Heard(caplog)
    app = flower.make_client(model, files.values(), fed=marked_lines())
    grid = heard.watch(flower.LocalGrid(app, {(1, 1): "error"} if family == "FedEP" else {}))
    options = {"num-clients": 3, "timeout": 30.0, "compile": "off", "num-draws": 30, "audit": True, "loo": True,
               "influence": True, "checkpoint": str(tmp_path / "state")}  # fmt: skip
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = flower.serve(grid, model, files[family], flower.read_configuration(options))
    result.to_netcdf(str(tmp_path / "posterior.nc"))
    heard.folder(tmp_path)
    assert len(heard.data) > 20
    heard.check(VALUE)


@pytest.mark.parametrize("when", ["in a round", "in a question"])
def test_a_client_that_fails_in_a_run_tells_no_planted_value(flower, when, tmp_path, caplog, monkeypatch):
    """The model fails once descriptions are there, or once the last round is over: the results and errors."""
    model, files = flower.write_case(tmp_path, {"FedEP": "[run]\nnum_rounds = 2"})
    fails = "import os\n    if os.environ.get('FAILS'):\n        raise ValueError(f'{y} Zaphod-Marker 777123.25')\n    "
    planted = tmp_path / "planted.py"
    planted.write_text(model.read_text().replace("w = pyro", f"{fails}w = pyro", 1))
    heard = Heard(caplog)
    app = flower.make_client(planted, files.values(), fed=marked_lines())
    grid = heard.watch(flower.LocalGrid(app))
    push = grid.push_messages

    def failing(messages):
        job = messages[0].content["settings"].get("job", "")
        if job == ("work" if when == "in a round" else "log_lik"):
            monkeypatch.setenv("FAILS", "1")
        return push(messages)

    grid.push_messages = failing
    options = {"num-clients": 3, "timeout": 30.0, "compile": "off", "num-draws": 30, "influence": True, "loo": True}
    said = ""
    with caplog.at_level(logging.INFO, logger="flwr"):
        try:
            result = flower.serve(grid, model, files["FedEP"], flower.read_configuration(options))
            said = str(result.attrs)
        except QuorumError as error:
            said = f"{error} {error.args}"
    assert "planted.py:" in said or "ValueError" in said
    heard.data.append(said.encode())
    heard.check(NUMBER, WORD, VALUE)


def test_labels_leave_as_a_hash_alone(flower, tmp_path, caplog):
    model, files = flower.write_case(tmp_path, {"FedEP": ""})
    text = model.read_text().replace("x @ w", "w[x.long()]")
    model.write_text(text)
    body = "return pd.Categorical(['a', 'Zaphod-Marker', 'a'], categories=['a', 'Zaphod-Marker']), x[:, 0] / 777123.25"
    heard = Heard(caplog)
    assert not described(flower, model, files, body, tmp_path, heard).has_error()
    heard.check(NUMBER, WORD)


def test_the_search_finds_what_is_there(flower, caplog):
    """A mark in a reply, as text or as a number, is found: else the tests above would say nothing."""
    for value in (WORD, struct.pack("<d", NUMBER)):
        heard = Heard(caplog)
        record = flower.RecordDict({"message": flower.ConfigRecord({"data": value})})
        heard.reply(flower.Message(record, 1, "train"))
        with pytest.raises(AssertionError):
            heard.check(NUMBER, WORD)
    assert issubclass(pf.PyroFedError, PyroFedError)

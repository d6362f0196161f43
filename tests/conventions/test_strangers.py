"""What a stranger hands to the public face by mistake: a sentence that says where and the cure, or the right answer."""

import decimal
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from algorithms import line, line_data
from torch import Tensor

import pyro_fed as pf
from pyro_fed.errors import PyroFedError
from pyro_fed.recipes.recipe import load

X, Y = line_data(rows=12, seed=0)
QUIET = {"progress": False, "compile": "off", "audit": False, "log_likelihood": False, "num_rounds": 1}


class Dealt(pf.partition.Partition):
    """A user's own partition."""

    def __init__(self, answer):
        self.answer = answer

    def assign(self, num_rows, num_clients, rng, labels):
        return self.answer(num_rows, num_clients)


class Odd(pf.executors.Vectorised):
    """A user's own executor."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def execute(self, work):
        return self.answer(super().execute(work))


class Chosen(pf.schedule.Schedule):
    """A user's own schedule."""

    def select(self, round, num_clients, rng):
        return ANSWERS[0]()


ANSWERS = [list]


def made(model=line, args=(X, Y), **options):
    return pf.Federation(model, args, **{"plate": "data", "num_clients": 3} | options)


def frames(df):
    line(torch.as_tensor(df[["a", "b"]].values), torch.as_tensor(df["y"].values))


def by_group(labels):
    return made(partition=pf.partition.ByGroup(labels), num_clients=None)


def doubled():
    columns = np.column_stack([X.numpy(), Y.numpy()])
    return made(frames, (pd.DataFrame(columns, columns=["a", "a", "y"]),))


def quits(x, y):
    line(x, y)
    sys.exit(3)


def by_name(*, x, y):
    line(x, y)


CALLS = {
    "a client that is a pair": (
        lambda: pf.Federation.from_clients(line, [("a", (X, Y)), ("b", (X, Y))], plate="data"),
        "a pair of the name 'a' and arguments: names are the keys of a dictionary",
    ),
    "a client's arguments by name": (
        lambda: pf.Federation.from_clients(line, [{"x": X, "y": Y}], plate="data"),
        "arguments in from_clients by position, as a tuple",
    ),
    "a home folder": (
        lambda: pf.run(pf.FedAvg(), made(), checkpoint="~/state", **QUIET),
        r"folder called '~' .*Path\('~/state'\).expanduser\(\)",
    ),
    "a device without numbers": (lambda: made(device="meta"), "device='meta': torch has no such device here"),
    "a complex W": (lambda: pf.graph.from_matrix(np.full((2, 2), 0.5 + 0j)), "W must be .*real numbers.* complex"),
    "a model that quits": (lambda: made(quits), r"`sys.exit\(3\)` \(.*calls sys.exit\(3\); raise an error there"),
    "arguments by name alone": (lambda: made(by_name), r"kwargs=\{'x': \.\.\., 'y': \.\.\.\}.*def by_place\(x, y\)"),
    "a ragged list": (
        lambda: made(args=([[1.0, 2.0], [1.0]] * 6, Y)),
        r"'x' is a list whose items have different lengths \(2, 1\).*obs_mask",
    ),
    "columns of one name": (doubled, "several columns called 'a'"),
    "a generator for a column": (lambda: made(args=((row for row in X), Y)), "argument 'x' is a generator"),
    "a set for a column": (lambda: made(args=(X, {1.0, 2.0})), "argument 'y' is a set"),
    "labels with None": (lambda: by_group(["a", None, "b"] * 4), r"by\[1\] is None \(4 missing"),
    "labels 1 and '1'": (lambda: by_group([1, "1", 2] * 4), r"by mixes types: \[1\] is '1', \[0\] is 1;"),
    "a partition of None": (
        lambda: made(partition=Dealt(lambda n, k: None)),
        "assign returned None .*list of 3 arrays",
    ),
    "a partition of a number": (lambda: made(partition=Dealt(lambda n, k: 3)), "assign returned 3 "),
    "a partition of a dict": (lambda: made(partition=Dealt(lambda n, k: {0: [1]})), "assign returned {0: "),
    "a partition that fails": (lambda: made(partition=Dealt(lambda n, k: 1 / 0)), "assign failed: ZeroDivisionError"),
    "a partition that loses": (
        lambda: made(partition=Dealt(lambda n, k: [[0], [1], [2]])),
        "9 of 12 rows belong to no",
    ),
    "a dtype of numpy": (lambda: made(dtype=np.float64), "pass torch.float64"),
    "without a list": (lambda: made().without(["0"]), "names of clients as separate texts"),
    "without a number": (lambda: made().without(0), "as separate texts, such as without"),
    "an empty folder": (
        lambda: pf.run(pf.FedEP(), made(), checkpoint="", **QUIET),
        "checkpoint must be a folder's path",
    ),
    "a folder with a zero": (lambda: pf.run(pf.FedEP(), made(), checkpoint="a\0b", **QUIET), "must be a folder's path"),
    "draws that no memory holds": (
        lambda: pf.run(pf.FedEP(), made(), num_draws=10**15, **QUIET),
        "num_draws must be at most",
    ),
    "influence of nothing": (
        lambda: pf.influence(None),
        "influence takes a result of pf.run as its first argument, received None",
    ),
    "surrogates of text": (lambda: pf.infer.Given("a", torch.zeros(2, 2)), "Given: precision must be"),
    "agents that are none": (lambda: pf.graph.mixing_bound(0, 0.5), "num_agents must be at least 1"),
    "leaving out of nothing": (lambda: pf.leave_one_client_out(None, made()), "_out takes a result of pf.run"),
    "a figure of nothing": (lambda: pf.plots.plot_contributions(3), "found must be"),
    "a figure on nothing": (lambda: pf.plots.plot_graph(pf.graph.ring(3), ax=3), "ax must be"),
    "loo of nothing": (
        lambda: pf.loo(None, made()),
        "loo takes a result of pf.run as its first argument, received None",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_said_what_is_wrong(name):
    call, words = CALLS[name]
    with pytest.raises(PyroFedError, match=words):
        call()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "returned None"),
        (3, "returned 3 "),
        ("all", "returned all "),
        ([0, 0], "client 0 twice"),
        ([0, 9], "returned 9 in"),
        ([-1], "returned -1 in"),
        ([0.0], "returned 0.0 in"),
        ([True, False, True], "flatnonzero"),
        ({0, 1}, "set"),
        (ZeroDivisionError(), "failed: ZeroDivisionError"),
    ],
)
def test_what_a_users_schedule_answers_is_checked(answer, words):
    """By itself, without a run: `run` asks `chosen` alone."""

    def tell():
        if isinstance(answer, Exception):
            raise answer
        return answer

    ANSWERS[0] = tell
    with pytest.raises(pf.errors.SettingError, match=rf"Chosen.select\(round=2, num_clients=3\).*{words}"):
        Chosen().chosen(2, 3, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda reply: None, "must return a pf.executors.Reply, received None"),
        (lambda reply: replace(reply, messages={}), "no messages, though 3 of 3 clients"),
        (lambda reply: replace(reply, failures={7: "gone"}), "a failure of the client at place 7 of 3"),
        (lambda reply: replace(reply, failures={0: "gone"}), r"as \(3, .*each of the 2 clients"),
        (lambda reply: replace(reply, messages=mapped(reply, lambda part: part[:-1])), r"as \(2, .*each of the 3"),
        (lambda reply: replace(reply, messages=mapped(reply, lambda part: part.numpy())), "as ndarray, expected a"),
        (lambda reply: replace(reply, messages=mapped(reply, Tensor.cfloat)), r"as torch.complex64 .*expected torch.f"),
        (lambda reply: replace(reply, messages=mapped(reply, Tensor.half)), r"as torch.float16 .*expected torch.float"),
        (lambda reply: replace(reply, messages=mapped(reply, lambda part: part[..., None])), r"of shape \(\d, 1\) a c"),
        (lambda reply: replace(reply, messages={"mine": torch.ones(3)}), "returned the messages mine, without '"),
    ],
)
def test_what_a_users_executor_answers_is_checked(answer, words):
    with pytest.raises(pf.errors.SettingError, match=f"executor Odd: execute .*{words}"):
        pf.run(pf.FedAvg(chain_steps=1), made(), executor=Odd(answer), **QUIET)


def mapped(reply, change):
    return {name: change(part) for name, part in reply.messages.items()}


def test_an_error_of_a_users_progress_is_told():
    def tell(progress):
        raise ZeroDivisionError("no rounds")

    with pytest.raises(ZeroDivisionError, match="no rounds") as caught:
        pf.run(pf.FedAvg(chain_steps=1), made(), **{**QUIET, "progress": tell})
    assert "given as progress= raised this error at: FedAvg: " in caught.value.__notes__[0]


def test_clients_that_no_round_has_reached_are_named():
    fed = made()
    alone = pf.schedule.Explicit([[0]])
    with pytest.warns(UserWarning, match="clients 1, 2 took part in no round"):
        result = pf.run(pf.FedEP(start="prior"), fed, schedule=alone, **{**QUIET, "num_rounds": None})
    assert "clients 1, 2 took part in no round" in result.attrs["doubts"]
    started = pf.run(pf.infer.PVI(), fed, schedule=alone, **{**QUIET, "num_rounds": None})  # from sites of all clients
    assert "no round" not in started.attrs["doubts"]


@pytest.mark.parametrize("answer", [[2, 0], (2, 0), np.array([2, 0]), torch.tensor([2, 0])])
def test_clients_numbers_in_any_container_are_clients(answer):
    ANSWERS[0] = lambda: answer
    assert Chosen().chosen(0, 3, np.random.default_rng(0)) == [2, 0]


def test_columns_and_partitions_of_other_kinds_are_read():
    """Lists of numpy's numbers and of decimals, a partition that is a generator."""
    expected = made().problem.rows[1]
    for column in ([np.float64(v) for v in Y], list(Y.numpy().astype(np.float64))):
        torch.testing.assert_close(made(args=(X, column)).problem.rows[1], expected)
    with pytest.raises(pf.errors.DataError, match="argument 'y' is an array of dtype object that holds Decimal"):
        made(args=(X, [decimal.Decimal("1.5")] * 12))
    fed = made(partition=Dealt(lambda n, k: (np.arange(i, n, k) for i in range(k))))
    assert [len(rows) for rows in fed.client_rows] == [4, 4, 4]


def test_recipes_of_other_editors(tmp_path):
    """A byte order mark is no statement; a number of 5,000 digits is none that Python reads."""
    path = tmp_path / "mine.toml"
    path.write_bytes(b'\xef\xbb\xbfalgorithm = "pyro_fed.infer:FedEP"\n')
    assert load(path).algorithm is pf.FedEP
    path.write_text('algorithm = "pyro_fed.infer:FedEP"\n[settings]\nnum_points = ' + "9" * 5000)
    with pytest.raises(pf.errors.SettingError, match="is not a recipe: Exceeds the limit"):
        load(path)

"""A state is taken up by the model that made it, and by no other: whatever it is that the models differ in."""

import functools
import math
import os

import pyro
import pyro.distributions as dist
import pytest
import torch
from forks import ended, together
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.errors import CheckpointError
from pyro_fed.runtime.fingerprint import fingerprint

X = torch.randn(24, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X @ torch.tensor([0.5, -1.0], dtype=torch.float64)
SCALE = 1.0


def by_closure(noise):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    return model


def by_argument(x, y, noise):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def by_global(x, y):
    by_argument(x, y, SCALE)


def far_away(limit):
    """Differs from its kin where no fixed point is."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w).clamp(-limit, limit), 1.0), obs=y)

    return model


def by_prior(spread):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), spread).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


class Scaled(pyro.nn.PyroModule):
    """A module with a buffer, and a branch on it that cannot be traced."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
        scale = self.scale if float(w.detach().sum()) < math.inf else 1.0
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def by_rows_of_its_own(y):
    """Indexes data that it holds."""

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=X.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(y)) as index:
            pyro.sample("y", dist.Normal(X[index] @ w, 1.0), obs=y[index])

    return model


def federation(model, *arguments, **options):
    return pf.Federation(model, arguments, plate="data", num_clients=3, **options)


def cases(name):
    other = Y.clone()
    other[17] += 1.0
    made = {
        "closure": ((by_closure(1.0), X, Y), (by_closure(10.0), X, Y)),
        "shared argument": ((by_argument, X, Y, 1.0), (by_argument, X, Y, 10.0)),
        "shared tensor": (
            (by_argument, X, Y, torch.tensor(1.0).double()),
            (by_argument, X, Y, torch.tensor(2.0).double()),
        ),
        "far away": ((far_away(50.0), X, Y), (far_away(60.0), X, Y)),
        "prior": ((by_prior(1.0), X, Y), (by_prior(1.001), X, Y)),
        "data of its own": ((by_rows_of_its_own(Y),), (by_rows_of_its_own(other),)),
    }
    return (federation(*arguments, dtype=torch.float64) for arguments in made[name])


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("closure", "log-likelihood of client 0 at a fixed point was"),
        ("shared argument", "shared argument 'noise' is 1.0, this run's is 10.0"),
        ("shared tensor", "shared argument 'noise'"),
        ("far away", "operations"),
        ("prior", "log prior of site 'w'"),
        ("data of its own", "log-likelihood of client"),
    ],
)
def test_resume_with_another_model_is_refused_and_says_what_differs(tmp_path, case, words):
    before, after = cases(case)
    quiet(pf.FedEP(start="prior"), before, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=words):
        quiet(pf.FedEP(start="prior"), after, checkpoint=tmp_path, resume=True)
    quiet(pf.FedEP(start="prior"), before, checkpoint=tmp_path, resume=True)


@pytest.mark.filterwarnings("ignore:the model cannot be")
def test_a_model_that_cannot_be_traced_is_known_by_its_values(tmp_path):
    options = {"num_rounds": 1, "num_draws": 5, "log_likelihood": False, "checkpoint": tmp_path}  # a row at a time
    quiet(pf.FedEP(start="prior"), federation(Scaled(1.0), X, Y), **options)
    with pytest.raises(CheckpointError, match="log-likelihood of client 0"):
        quiet(pf.FedEP(start="prior"), federation(Scaled(2.0), X, Y), resume=True, **options)


def test_a_constant_outside_the_model_counts(tmp_path, monkeypatch):
    quiet(pf.FedEP(start="prior"), federation(by_global, X, Y), checkpoint=tmp_path)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    with pytest.raises(CheckpointError, match="log-likelihood of client 0"):
        quiet(pf.FedEP(start="prior"), federation(by_global, X, Y), checkpoint=tmp_path, resume=True)


def test_parameters_that_have_been_trained_in_the_meantime_count(tmp_path):
    def model(x, y):
        by_argument(x, y, pyro.param("noise", torch.tensor(1.0, dtype=x.dtype)))

    @functools.cache
    def made(value):
        pyro.clear_param_store()
        pyro.param("noise", torch.tensor(value, dtype=X.dtype))
        with pytest.warns(UserWarning, match="held constant"):
            return federation(model, X, Y)

    quiet(pf.FedEP(start="prior"), made(1.0), checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"'pyro\.param noise'"):
        quiet(pf.FedEP(start="prior"), made(2.0), checkpoint=tmp_path, resume=True)


def test_the_start_of_another_model_is_refused_and_of_other_clients_is_not(tmp_path):
    names = ["north", "south", "west"]

    def clients(noise, which):
        parts = {name: (X[i::3], Y[i::3]) for i, name in enumerate(names) if name in which}
        return pf.Federation.from_clients(by_closure(noise), parts, plate="data")

    quiet(pf.FedEP(start="prior"), clients(1.0, names), checkpoint=tmp_path)
    quiet(pf.FedEP(start="prior"), clients(1.0, names[1:]), start=tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot be the start: .* log-likelihood of client south"):
        quiet(pf.FedEP(start="prior"), clients(10.0, names[1:]), start=tmp_path)
    strangers = {"east": (X[:9] + 1.0, Y[:9])}
    with pytest.raises(CheckpointError, match=r"cannot be the start: .* operations"):
        quiet(
            pf.FedEP(start="prior"),
            pf.Federation.from_clients(by_closure(10.0), strangers, plate="data"),
            start=tmp_path,
        )
    quiet(
        pf.FedEP(start="prior"),
        pf.Federation.from_clients(by_closure(1.0), strangers, plate="data"),
        start=tmp_path,
    )


def test_another_graph_of_the_same_name_and_size_is_refused(tmp_path):
    fed = federation(by_closure(1.0), X, Y)
    even = pf.graph.FixedGraph([[1 / 3] * 3] * 3, "three")
    uneven = pf.graph.FixedGraph([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]], "three")
    quiet(pf.P2PVI(), fed, graph=even, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="its graph"):
        quiet(pf.P2PVI(), fed, graph=uneven, checkpoint=tmp_path, resume=True)


@together
def test_two_processes_find_the_same_marks(tmp_path):
    """Also with another number of threads, and hashes of texts that are not the same."""
    assert ended(write_marks, tmp_path / "marks") == 0
    found, hashed = (tmp_path / "marks").read_text().split("\n")
    assert found == repr(marks())
    assert hashed != str(hash("marks")) or "PYTHONHASHSEED" in os.environ


def write_marks(path):
    torch.set_num_threads(torch.get_num_threads() + 1)
    path.write_text(f"{marks()!r}\n{hash('marks')}")


def marks():
    fed = federation(by_closure(1.0), X, Y)
    return fingerprint(pf.FedEP(), fed, 4, pf.schedule.All(), pf.graph.ring(3), 0, None, None)

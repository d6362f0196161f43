"""New data of the same shapes: nothing is compiled again, and the answer is that of a new federation to the bit."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

QUIET = {"progress": False, "log_likelihood": False}
UNAUDITED = {"compile": "off", "audit": False}
RUNS = [0]


def model(x, y, scale):
    """A regression that counts how often it is run; `scale` is shared by all clients."""
    RUNS[0] += 1
    beta = pyro.sample("beta", dist.Normal(0.0, scale).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def effects(y):
    """Rows with effects of their own, which NUTS samples and the others integrate out."""
    RUNS[0] += 1
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(theta, 0.5), obs=y)


def counties(x, county):
    """Groups with rows of their own."""
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("county", 4):
        a = pyro.sample("a", dist.Normal(0.0, tau))
    with pyro.plate("obs", len(x)):
        pyro.sample("x", dist.Normal(a[county], 1.0), obs=x)


def data(seed, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(24, 2)), rng.uniform(size=24) < 0.5
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype), torch.ones(2, dtype=dtype)


def values(seed, n=8):
    return torch.tensor(np.random.default_rng(seed).normal(size=n))


def federation(args=None, **options):
    return pf.Federation(model, args or data(0), plate="data", num_clients=3, seed=4, **options)


def draws(algorithm, fed, **options):
    """The draws, and what is said of them."""
    idata = pf.run(algorithm, fed, seed=1, **QUIET, **options)
    said = np.array(idata.attrs["doubts"])
    return {name: value.values for name, value in idata["posterior"].data_vars.items()} | {"doubts": said}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def runs_of(call):
    before = RUNS[0]
    call()
    return RUNS[0] - before


def test_nothing_is_compiled_again():
    fed, algorithm = federation(), pf.FedEP()
    draws(algorithm, fed, compile="trace")
    steps = set(fed.problem.compiler.cache)
    again = runs_of(lambda: draws(algorithm, fed, compile="trace"))
    made = []
    assert runs_of(lambda: made.append(fed.with_args(data(1)))) == 1  # validated, on all rows
    assert (
        runs_of(lambda: draws(algorithm, made[0], compile="trace")) == again
    )  # what checks and the result need, and no step
    assert set(made[0].problem.compiler.cache) == steps


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few draws have not mixed, and say so
def test_latents_of_rows_are_not_compiled_again_for_nuts():
    fed = pf.Federation(effects, (values(0),), plate="data", num_clients=2)
    algorithm = pf.NUTS(num_samples=3, warmup_steps=3, num_chains=1)
    other = fed.with_args((values(1),))
    draws(algorithm, fed, audit=False)
    again = runs_of(lambda: draws(algorithm, fed, audit=False))
    assert runs_of(lambda: draws(algorithm, other, audit=False)) == again
    fresh = pf.Federation(effects, (values(1),), plate="data", num_clients=2)
    assert same(draws(algorithm, other, audit=False), draws(algorithm, fresh, audit=False))


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (pf.FedEP(), {"num_rounds": 3}),
        (pf.DSVGD(num_particles=8), {"num_rounds": 3}),
        (pf.NUTS(num_samples=5, warmup_steps=5, num_chains=1), {"audit": False}),
    ],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # short runs have not converged, and say so
def test_the_answer_is_that_of_a_new_federation_to_the_bit(algorithm, options):
    fed = federation()
    before = draws(algorithm, fed, **options)
    other = fed.with_args(data(1))
    assert torch.equal(fed.problem.rows[0], data(0)[0])  # the first one is as it was
    after = draws(algorithm, other, **options)
    assert same(after, draws(algorithm, federation(data(1)), **options))
    assert not same(after, before)


def test_what_clients_share_may_change():
    fed = federation()
    draws(pf.FedLaplace(), fed, audit=False)
    x, y, scale = data(1)
    new = (x, y, 0.1 * scale)
    assert same(
        draws(pf.FedLaplace(), fed.with_args(new), audit=False), draws(pf.FedLaplace(), federation(new), audit=False)
    )


def test_latents_of_rows_get_their_quadrature():
    fed = pf.Federation(effects, (values(0),), plate="data", num_clients=2)
    other = fed.with_args((values(1),))
    fresh = pf.Federation(effects, (values(1),), plate="data", num_clients=2)
    assert other.problem.quadrature == fresh.problem.quadrature
    assert same(draws(pf.FedLaplace(), other, **UNAUDITED), draws(pf.FedLaplace(), fresh, **UNAUDITED))


@pytest.mark.filterwarnings("ignore::UserWarning")  # a hierarchy's mode, which is not its mean
def test_rows_of_nested_plates():
    county = torch.arange(4).repeat_interleave(3)

    def made(x, county=county):
        return pf.Federation(counties, (x, county), plate="county", rows={"obs": "county"}, num_clients=2)

    fed = made(values(0, 12))
    other = fed.with_args((values(1, 12), county))
    fresh = draws(pf.FedLaplace(), made(values(1, 12)), **UNAUDITED)
    assert same(draws(pf.FedLaplace(), other, **UNAUDITED), fresh)
    with pytest.raises(pf.errors.DataError, match="'county' holds each row's group"):
        fed.with_args((values(1, 12), county.flip(0)))


def test_data_that_lie_apart():
    clients = {"north": (values(0, 3),), "south": (values(1, 5),)}
    fed = pf.Federation.from_clients(effects, clients, plate="data")
    other = fed.with_args((values(2, 8),))
    assert other.client_names == ["north", "south"]
    new = {"north": (values(2, 8)[:3],), "south": (values(2, 8)[3:],)}
    fresh = pf.Federation.from_clients(effects, new, plate="data")
    assert same(draws(pf.FedLaplace(), other, **UNAUDITED), draws(pf.FedLaplace(), fresh, **UNAUDITED))
    bad = values(2, 8)
    bad[4] = torch.nan
    with pytest.raises(pf.errors.DataError, match=r"client south, argument 'y'\[1\] is NaN"):
        fed.with_args((bad,))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x, y, s: (x[:20], y[:20], s), r"'x' has shape \(20, 2\), expected \(24, 2\)"),
        (lambda x, y, s: (x, y, torch.ones(3).double()), r"'scale' has shape \(3,\), expected \(2,\)"),
        (lambda x, y, s: (x.long(), y, s), "'x' is torch.int64, expected torch.float64"),
        (lambda x, y, s: (x, y, 1.0), r"'scale' was tensor.* and is 1.0: only arrays may have new values"),
        (lambda x, y, s: ({"a": x}, y, s), r"expected the arguments \['x', 'y', 'scale'\], received"),
        (lambda x, y, s: (x, y), "but received 2 arguments by position"),
        (lambda x, y, s: (x, y + 0.5, s), "'y'"),  # outside of the likelihood's support
    ],
)
def test_data_that_do_not_fit_are_refused(change, says):
    fed = federation()
    with pytest.raises(pf.errors.DataError, match=says):
        fed.with_args(change(*data(1)))


def test_nothing_is_rounded_without_a_word():
    fed = federation(data(0, torch.float32))
    with pytest.raises(pf.errors.DataError, match=r"'x' is torch.float64, expected torch.float32"):
        fed.with_args(data(1))


def test_values_that_are_not_finite_are_named():
    fed = federation()
    x, y, scale = data(1)
    client = next(k for k, rows in enumerate(fed.client_rows) if 5 in rows)
    x[5, 1] = torch.inf
    with pytest.raises(pf.errors.DataError, match=rf"client {client}, argument 'x'\[5, 1\] is infinite"):
        fed.with_args((x, y, scale))


def test_a_model_with_data_of_its_own_is_refused():
    own = values(0)

    def closure():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(own)) as index:
            pyro.sample("y", dist.Normal(mu, 1.0), obs=own[index])

    fed = pf.Federation(closure, plate="data", num_clients=2)
    with pytest.raises(pf.errors.DataError, match="indexes its own data"):
        fed.with_args()


def nested(y, group):
    """Groups whose scale is latent, and rows with effects of their own."""
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        a = pyro.sample("a", dist.Normal(0.0, tau))
    with pyro.plate("data", len(y)):
        e = pyro.sample("e", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(a[group] + e, 1.0), obs=y)


def grouped(seed=0):
    group = torch.arange(4).repeat(5)
    return pf.Federation(nested, (values(seed, 20), group), plate="data", num_clients=4, shard=["y", "group"]), group


def test_forms_that_were_asked_for_before_are_made_of_the_new_data():
    """Whatever a federation keeps: its joint and its non-centred form, and those of each other."""
    fed, group = grouped()
    kept = (fed.joint, fed.noncentred, fed.joint.noncentred, fed.noncentred.joint)
    other = fed.with_args((values(1, 20), group))
    for form in (other, other.joint, other.noncentred, other.joint.noncentred, other.noncentred.joint):
        assert torch.equal(form.problem.rows[0], values(1, 20))
    fresh = grouped()[0]
    for one, form in zip(
        kept, (fresh.joint, fresh.noncentred, fresh.joint.noncentred, fresh.noncentred.joint), strict=True
    ):
        assert type(one.problem) is type(form.problem)


@pytest.mark.parametrize("path", ["joint", "noncentred", "joint.noncentred"])
def test_a_form_without_a_client_has_that_form(path):
    from operator import attrgetter

    form = attrgetter(path)(grouped()[0])
    rest = form.without("1")
    assert (
        type(rest.problem) is type(form.problem)
        and rest.problem.dim == attrgetter(path)(grouped()[0].without("1")).problem.dim
    )


@pytest.mark.filterwarnings("ignore")  # of chains so short
def test_nuts_of_a_noncentred_federation_with_rows_latents_is_noncentred(monkeypatch):
    seen = []
    step = pf.NUTS.local_step

    def noted(self, problem, *rest):
        seen.append(type(problem).__name__)
        return step(self, problem, *rest)

    monkeypatch.setattr(pf.NUTS, "local_step", noted)
    fed = grouped()[0]
    fed.joint  # noqa: B018  what is kept must not be taken for the other form's
    idata = pf.run(pf.NUTS(num_samples=20, warmup_steps=20, num_chains=2), fed.noncentred, **QUIET, **UNAUDITED)
    assert set(seen) == {"NonCentredJoint"} and idata.posterior["e"].shape == (2, 20, 20)

"""Each client's influence, and how well the others predict it, against closed forms and against runs without it."""

import functools
import math
import re

import conjugate
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.analysis.criticism.influence import influence_by_weights
from pyro_fed.audit.influence import apart_by_sites, who_stands_apart
from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.results.record_dataset import kept_sites

QUIET = {"progress": False, "compile": "trace", "audit": False, "log_likelihood": False}


def without(x, y, fed, k):
    """Exact mean and covariance of the posterior of all clients but one."""
    keep = torch.cat([rows for j, rows in enumerate(fed.client_rows) if j != k])
    return conjugate.exact(x[keep], y[keep])


def log_evidence(x, y):
    """log p(y) of the linear model."""
    cover = conjugate.NOISE_SD**2 * torch.eye(len(y), dtype=y.dtype) + conjugate.PRIOR_SD**2 * x @ x.T
    return float(dist.MultivariateNormal(torch.zeros_like(y), cover).log_prob(y))


@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.infer.PVI(), pf.FedLaplace()], ids=lambda a: type(a).__name__)
def test_a_site_taken_out_leaves_the_posterior_of_the_others(algorithm):
    fed, (x, y) = conjugate.federation(), conjugate.data()
    idata = pf.run(algorithm, fed, **QUIET)
    mean, cover = conjugate.exact(x, y)
    found = pf.influence(idata)
    assert found["by"].values.tolist() == ["sites"] * 4
    for k in range(4):
        other_mean, other_cover = without(x, y, fed, k)
        shift = (mean - other_mean) / other_cover.diagonal().sqrt()
        ratio = (cover.diagonal() / other_cover.diagonal()).sqrt()
        kl = torch.distributions.kl_divergence(
            dist.MultivariateNormal(mean, cover), dist.MultivariateNormal(other_mean, other_cover)
        )
        np.testing.assert_allclose(found["shift"].values[k], shift, atol=1e-4)
        np.testing.assert_allclose(found["sd_ratio"].values[k], ratio, rtol=1e-4)
        assert float(found["influence"][k]) == pytest.approx(math.sqrt(2 * kl), abs=1e-4)
    assert list(found["parameter"].values) == ["w[0]", "w[1]", "w[2]"]
    assert found["shift"].to_pandas().shape == (4, 3)


def test_parameters_are_called_by_their_labels():
    """As in ArviZ's tables; a scale's name and a spread of labels over two dimensions too."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(x.new_zeros(2, 2), 1.0).to_event(2))
        s = pyro.sample("s", dist.HalfNormal(x.new_ones(())))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, s).to_event(1), obs=y)

    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x + torch.randn(40, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = {"dims": {"w": ["covariate", "outcome"]}, "coords": {"covariate": ["age at entry", "sex"]}}
    fed = pf.Federation(model, (x, y), plate="data", num_clients=2, **labels)
    idata = pf.run(pf.FedEP(), fed, **QUIET | {"audit": True})
    expected = ["w[age at entry, 0]", "w[age at entry, 1]", "w[sex, 0]", "w[sex, 1]", "s"]
    assert pf.influence(idata)["parameter"].values.tolist() == expected
    assert [label for label in idata["audit"]["parameter"].values if "unconstrained" not in label] == expected


def test_disagreement_is_in_sds_of_chance():
    """A client whose mean is d SDs of the difference off, in one direction, disagrees by d."""
    from pyro_fed.audit.influence import by_sites
    from pyro_fed.ops.gaussian import STRUCTURES

    for structure in ("full", "diag"):
        kind = STRUCTURES[structure]
        for distance in (0.5, 3.0, 8.0, 60.0):
            precision = torch.tensor([[4.0], [1.0]], dtype=torch.float64)  # others and the client
            spread = (1 / precision).sum().sqrt()  # of the difference of their means
            eta = precision * torch.tensor([[0.0], [distance * float(spread)]], dtype=torch.float64)
            shaped = precision.unsqueeze(-1) if structure == "full" else precision
            q = kind(shaped.sum(0), eta.sum(0))
            found = by_sites(q, kind(shaped[1:], eta[1:]))
            assert found.disagreement[0] == pytest.approx(distance, rel=1e-6)


def cohort(clients, dim, structure, seed=0):
    """The posterior under N(0, 1), and honest sites: means around zero that differ by what their precisions tell."""
    from pyro_fed.ops.gaussian import STRUCTURES

    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(clients, 3 * dim, dim, generator=generator, dtype=torch.float64)
    precision = rows.mT @ rows
    if structure == "diag":
        precision = precision.diagonal(dim1=1, dim2=2)
    noise = torch.randn(clients, 3 * dim, 1, generator=generator, dtype=torch.float64)
    eta = (rows.mT @ noise)[..., 0]
    prior = torch.eye(dim, dtype=torch.float64) if structure == "full" else torch.ones(dim, dtype=torch.float64)
    kind = STRUCTURES[structure]
    return kind(prior + precision.sum(0), eta.sum(0)), kind(precision, eta)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_clients_that_are_judged_together_have_the_figures_of_each_alone(structure, monkeypatch):
    from pyro_fed.audit import influence

    q, sites = cohort(7, 3, structure)
    whole = influence.by_sites(q, sites)
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", 18)  # two at once
    found = influence.by_sites(q, sites)
    for name in ("disagreement", "opposed", "influence"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-9)
    for k in range(7):
        alone = influence.by_sites(q, type(sites)(sites.precision[k : k + 1], sites.eta[k : k + 1]))
        np.testing.assert_allclose(alone.disagreement[0], whole.disagreement[k], rtol=1e-9)
        np.testing.assert_allclose(alone.opposed[0], whole.opposed[k], rtol=1e-9)


def test_of_many_clients_that_stand_apart_ten_are_described_and_the_rest_counted():
    from pyro_fed.audit.influence import apart_by_sites
    from pyro_fed.codes.sentences import MAX_DESCRIBED

    q, sites = cohort(400, 2, "full")
    liars = torch.arange(0, 400, 13)  # each 40 of its own SDs away, one way or the other
    shift = torch.linalg.cholesky(sites.precision[liars]) @ torch.tensor([40.0, 0.0], dtype=torch.float64)
    shift[::2] *= -1
    eta = sites.eta.index_add(0, liars, shift)
    q = type(q)(q.precision, q.eta + shift.sum(0))
    names = [f"clinic {k}" for k in range(400)]
    said = apart_by_sites(q, type(sites)(sites.precision, eta), names, ["a", "b"]).text
    assert said.count("disagrees with the others") == MAX_DESCRIBED
    assert said.endswith(f"and {len(liars) - MAX_DESCRIBED} more clients stand apart")
    assert all(int(k) % 13 == 0 for k in re.findall(r"clinic (\d+)", said))


def test_nobody_stands_apart_from_what_is_no_distribution():
    """Laplace's sites of a density that is not curved where it is, as of a regression to the median."""
    from pyro_fed.audit.influence import apart_by_sites

    q, sites = cohort(6, 2, "full")
    improper = type(q)(q.precision - 2 * q.precision[0, 0] * torch.eye(2, dtype=torch.float64), q.eta)
    assert apart_by_sites(improper, sites, [str(k) for k in range(6)], ["a", "b"]).text == ""


def test_the_opposite_of_what_the_others_say():
    """A client at -μ is opposed by its whole distance, one as far the other way by minus that."""
    from pyro_fed.audit.influence import by_sites
    from pyro_fed.ops.gaussian import STRUCTURES

    precision = torch.tensor([[4.0, 9.0], [1.0, 2.0]], dtype=torch.float64)
    mean = torch.tensor([3.0, -2.0], dtype=torch.float64)
    for factor, sign in ((-1.0, 1), (3.0, -1)):
        eta = precision * torch.stack([mean, factor * mean])
        distance = ((mean - factor * mean).square() / (1 / precision).sum(0)).sum().sqrt()
        for structure in ("full", "diag"):
            shaped = torch.diag_embed(precision) if structure == "full" else precision
            kind = STRUCTURES[structure]
            found = by_sites(kind(shaped.sum(0), eta.sum(0)), kind(shaped[1:], eta[1:]))
            assert found.opposed[0] == pytest.approx(sign * float(distance), rel=1e-6)


def test_others_at_the_border_of_a_posterior_are_judged_or_left_out():
    """Others' precisions whose smallest eigenvalue is rounding alone: some have a factor one way and not another."""
    from pyro_fed.audit.influence import by_sites

    generator, judged = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        axes = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0]
        scale = torch.randn(6, generator=generator, dtype=torch.float64).mul(3).exp()
        others = scale[:, None] * (axes @ torch.diag(torch.tensor([1.0] * 5 + [1e-16]).double()) @ axes.T) * scale
        others = (others + others.T) / 2
        site = torch.diag(scale**2)
        q = FullGaussian(others + site, torch.ones(6, dtype=torch.float64))
        found = by_sites(q, FullGaussian(site[None], torch.zeros(1, 6, dtype=torch.float64)))
        assert np.isfinite(found.influence[0]) == np.isfinite(found.disagreement[0])
        judged += int(np.isfinite(found.disagreement[0]))
    assert 0 < judged < 100


@pytest.mark.parametrize("algorithm", [pf.FedAIS(), pf.DSVGD(num_particles=200)], ids=lambda a: type(a).__name__)
def test_draws_weighted_by_a_clients_likelihood_say_the_same(algorithm):
    fed, (x, y) = conjugate.federation(), conjugate.data()
    idata = pf.run(algorithm, fed, **QUIET, num_draws=4000)
    mean, _ = conjugate.exact(x, y)
    found = pf.influence(idata, fed)
    for k in range(4):
        other_mean, other_cover = without(x, y, fed, k)
        shift = (mean - other_mean) / other_cover.diagonal().sqrt()
        np.testing.assert_allclose(found["shift"].values[k], shift, atol=0.25)
    assert (found["pareto_k"] < 0.7).any()


def test_the_others_predict_a_client_as_the_closed_form_says():
    fed, (x, y) = conjugate.federation(), conjugate.data()
    idata = pf.run(pf.FedEP(), fed, **QUIET)
    table = pf.leave_one_client_out(idata, fed)
    assert list(table.columns) == ["rows", "elpd", "se", "elpd_rows", "pareto_k", "by"]
    for k in range(4):
        keep = torch.cat([rows for j, rows in enumerate(fed.client_rows) if j != k])
        expected = log_evidence(x, y) - log_evidence(x[keep], y[keep])
        mean, cover = conjugate.exact(x[keep], y[keep])
        mine = x[fed.client_rows[k]]
        sd = ((mine @ cover * mine).sum(1) + conjugate.NOISE_SD**2).sqrt()
        rows = float(dist.Normal(mine @ mean, sd).log_prob(y[fed.client_rows[k]]).sum())
        row = table.iloc[k]
        assert row["by"] == "weights" and row["pareto_k"] < 0.7
        assert row["elpd"] == pytest.approx(expected, abs=min(0.1, 5 * row["se"]))
        assert row["elpd_rows"] == pytest.approx(rows, abs=0.1)


def test_a_client_whose_others_cannot_be_run_afresh_is_unreliable(monkeypatch):
    def stops(*args, **options):
        raise pf.errors.DivergenceError("a log-likelihood is not a number")

    monkeypatch.setattr("pyro_fed.analysis.criticism.leave_out.LARGEST_PARETO_K", -1.0)
    fed = conjugate.federation()
    idata = pf.run(pf.FedEP(), fed, **QUIET)
    monkeypatch.setattr("pyro_fed.analysis.criticism.leave_out.run", stops)
    with pytest.warns(UserWarning, match=r"(all clients|the others of client .*) could not be run afresh"):
        table = pf.leave_one_client_out(idata, fed)
    assert (table["by"] == "unreliable").all() and table["elpd"].notna().all()


def logistic(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 2.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def trial(seed, kind, clients=10, rows=40):
    """Ten clients of which one, drawn at random, is corrupted; and its number."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * rows, 3, generator=generator, dtype=torch.float64)
    w = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    y = (torch.rand(len(x), generator=generator, dtype=torch.float64) < (x @ w).sigmoid()).double()
    bad = int(torch.randint(clients, (), generator=generator))
    data = {}
    for k in range(clients):
        xs, ys = x[k * rows : (k + 1) * rows].clone(), y[k * rows : (k + 1) * rows].clone()
        if k == bad and kind == "labels flipped":
            ys = 1 - ys
        if k == bad and kind == "units wrong":
            xs[:, 0] *= 100
        if k == bad and kind == "rows duplicated":
            xs, ys = xs.repeat(100, 1), ys.repeat(100)
        data[f"clinic {k}"] = (xs, ys)
    if kind == "rows duplicated":  # of other shapes
        return pf.Federation.from_clients(logistic, data, plate="data"), f"clinic {bad}"
    x, y = (torch.cat(parts) for parts in zip(*data.values(), strict=True))
    return clinics(clients, rows).with_args((x, y)), f"clinic {bad}"


@functools.cache
def clinics(clients, rows):
    """A federation of these shapes, whose model is checked once."""
    x = torch.randn(clients, rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = {f"clinic {k}": (part, (part.sum(1) > 0).double()) for k, part in enumerate(x)}
    return pf.Federation.from_clients(logistic, data, plate="data")


#: Seeds; a run with thousands of rows at one client takes several times as long.
TRIALS = {"labels flipped": 6, "units wrong": 6, "rows duplicated": 4, "none": 4}


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the corrupted data, and of what they make of the posterior
@pytest.mark.parametrize("kind", ["labels flipped", "units wrong", "rows duplicated"])
def test_the_corrupted_client_of_ten_is_named_in_every_trial(kind):
    named = []
    for seed in range(TRIALS[kind]):
        fed, bad = trial(seed, kind)
        found = pf.influence(pf.run(pf.FedEP(), fed, **QUIET, num_rounds=6))
        largest = str(found["client"].values[int(found["influence"].values.argmax())])
        named.append((largest == bad, found.attrs["stands_apart"].startswith(f"client {bad} moves")))
    assert named == [(True, True)] * TRIALS[kind]


def test_nobody_is_named_where_nobody_is_corrupted():
    for seed in range(5):
        fed, _ = trial(seed, "none")
        assert pf.influence(pf.run(pf.FedEP(), fed, **QUIET)).attrs["stands_apart"] == ""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(2))
def test_a_client_of_forty_times_as_many_rows_is_no_reason_to_warn(seed):
    """`influence` says who moves the answer; that so many rows do is no doubt of it, unless they count for more."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [800, 20, 20, 20, 30, 10, 20, 20]
    x = torch.randn(sum(sizes), 3, generator=generator, dtype=torch.float64)
    w = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    y = (torch.rand(len(x), generator=generator, dtype=torch.float64) < (x @ w).sigmoid()).double()
    parts = zip(x.split(sizes), y.split(sizes), strict=True)
    fed = pf.Federation.from_clients(logistic, {f"clinic {k}": part for k, part in enumerate(parts)}, plate="data")
    idata = pf.run(pf.FedEP(), fed, **{**QUIET, "audit": True})
    assert idata.attrs["stands_apart"].startswith("client clinic 0 moves")
    q, sites = kept_sites(idata.sites)
    times = torch.ones(len(sizes), dtype=torch.float64)
    times[5] = 100.0  # ten rows that count a thousand
    told = sites.power(times)
    said = apart_by_sites(
        q.product(told.quotient(sites).product_over(0)), told, fed.client_names, list("abc"), fed.row_counts
    )
    assert "client clinic 5 moves" in said.text


@pytest.mark.filterwarnings("error")
def test_of_a_hundred_clients_with_a_row_each_some_are_exceptions_and_none_is_warned_of():
    """Labels that are all but certain turn out otherwise in one of forty rows, six SDs away: five cohorts."""
    named = 0
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(100, 3, generator=generator, dtype=torch.float64)
        w = torch.tensor([1.5, -1.0, 0.5], dtype=torch.float64)
        y = (torch.rand(100, generator=generator, dtype=torch.float64) < (x @ w).sigmoid()).double()
        fed = pf.Federation(logistic, (x, y), plate="data", num_clients=100)
        named += bool(pf.run(pf.FedEP(), fed, **{**QUIET, "audit": True}).attrs["stands_apart"])
    assert named


@pytest.mark.filterwarnings("error")
def test_one_row_a_client_of_which_some_say_more_than_others_is_no_reason_to_warn():
    """Rows of a long-tailed covariate: one narrows a slope by 13 times what the median row does, and that by 3 %."""
    x = torch.tan(torch.linspace(-1.3, 1.3, 60, dtype=torch.float64))
    noise = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def line(x, y):
        slope = pyro.sample("slope", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    fed = pf.Federation(line, (x, x + noise), plate="data", num_clients=60)
    assert pf.run(pf.FedEP(), fed, **{**QUIET, "audit": True}).attrs["stands_apart"] == ""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_liar_is_seen_in_what_it_has_sent():
    """Its data and its own site are honest; its messages are not."""
    fed, _ = trial(0, "none")
    liar = pf.executors.Faulty("vectorised", probability=1.0, kinds=("opposite",), clients=(4,))
    found = pf.influence(pf.run(pf.FedEP(), fed, **QUIET, num_rounds=4, executor=liar))
    assert int(found["influence"].values.argmax()) == 4


def test_without_sites_the_clients_have_to_be_asked():
    fed, _ = trial(0, "none")
    idata = pf.run(pf.NUTS(num_samples=50, warmup_steps=50, num_chains=1), fed, **QUIET)
    with pytest.raises(pf.errors.SettingError, match=r"of NUTS, has no Gaussian sites.*pass the federation"):
        pf.influence(idata)


@pytest.mark.filterwarnings("ignore:client clinic [0-8] moves")
@pytest.mark.parametrize("kind", ["labels flipped", "rows duplicated"])
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(pf.FedAIS(), {}), (pf.P2PVI(), {"graph": pf.graph.ring(10)})],
    ids=["FedAIS", "P2PVI"],
)
def test_it_is_named_without_sites_too(algorithm, options, kind):
    fed, bad = trial(3, kind, rows=20 if kind == "labels flipped" else 6)  # a hundred times as many at one
    found = pf.influence(pf.run(algorithm, fed, **QUIET, **options), fed)
    assert found["client"].values[int(found["influence"].values.argmax())] == bad
    assert found.attrs["stands_apart"].startswith(f"client {bad} moves")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["labels flipped", "units wrong", "rows duplicated", "none"])
def test_the_corrupted_client_is_named_without_sites(kind):
    """In every trial, by the clients' scores and curvatures at the point of FedAvg; nobody where nobody is."""
    from pyro_fed.audit.client_sites import answer_and_sites

    named = []
    for seed in range(TRIALS[kind]):
        fed, bad = trial(seed, kind, rows=6 if kind == "rows duplicated" else 40)  # a hundred times as many at one
        point = torch.tensor(pf.run(pf.FedAvg(step_size=0.1), fed, **QUIET, num_rounds=10).posterior["w"].values[0])
        with torch.no_grad():
            said = who_stands_apart(answer_and_sites(fed, point), fed.client_names, ["w[0]", "w[1]", "w[2]"]).text
        named.append(said.startswith(f"client {bad} moves") if kind != "none" else said == "")
    assert all(named), named


def measured(w, y):
    """A covariate that is measured with an error; the scale s is hardly known, and its posterior long."""
    slope = pyro.sample("b", dist.Normal(0.0, 3.0))
    scale = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(w)):
        pyro.sample("y", dist.Normal(slope * w / 1.49, (scale**2 + slope**2 * 0.49 / 1.49) ** 0.5), obs=y)


def test_of_skewed_draws_no_honest_client_stands_apart():
    """Sites divided out of the draws' Gaussian, which is not their product, leave what nobody has said (the first)."""
    from pyro_fed.audit.client_sites import answer_and_sites

    named = []
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        x, e, f = torch.randn(3, 30, generator=g, dtype=torch.float64)
        w, y = x + 0.7 * e, 1.5 * x + 0.4 * f
        fed = pf.Federation(measured, (w, y), plate="data", num_clients=6, seed=seed)
        b, s = torch.meshgrid(torch.linspace(0.5, 2.5, 80), torch.linspace(-9, 1, 200), indexing="ij")
        grid = torch.stack([b.flatten(), s.flatten()], 1).double()
        sds = (grid[:, 1:].exp().square() + grid[:, :1].square() * 0.49 / 1.49).sqrt()
        log_p = dist.Normal(grid[:, :1] * w / 1.49, sds).log_prob(y).sum(1) - (2 * grid[:, 1]).exp() / 2 + grid[:, 1]
        draws = grid[torch.multinomial((log_p - log_p.max()).exp(), 4000, replacement=True, generator=g)]
        with torch.no_grad():
            named.append(who_stands_apart(answer_and_sites(fed, draws), fed.client_names, ["b", "s"]).text)
    assert named == [""] * 6


@pytest.mark.filterwarnings("ignore:this point is not the posterior's mode")  # nor could it be
def test_messages_that_stand_apart_are_told():
    fed, _ = trial(0, "none")
    liar = pf.executors.Faulty("vectorised", probability=1.0, kinds=("hundredfold",), clients=(4,))
    with pytest.warns(UserWarning, match="messages stand apart from the cohort's in most rounds: client clinic 4 by"):
        pf.run(pf.FedAvg(), fed, **QUIET | {"audit": True}, num_rounds=5, executor=liar)


def test_an_audited_run_names_it():
    fed, bad = trial(1, "labels flipped", rows=20)
    with pytest.warns(UserWarning, match=rf"client {bad} moves the mean of 'w\[.\]' by .* SDs.*: see pf\.influence"):
        idata = pf.run(pf.FedEP(), fed, **QUIET | {"audit": True})
    assert idata.attrs["stands_apart"].startswith(f"client {bad} moves")


def evidence_on_a_grid(fed):
    """log Z of any clients of a model with two parameters, by the trapezoidal rule."""
    axis = torch.linspace(-8, 8, 321, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    problem, prior, clients = fed.problem, fed.problem.log_prior(z), []
    for rows in fed.client_rows:
        held = tuple(leaf[rows] for leaf in problem.rows)
        clients.append(torch.cat([problem.pointwise_log_lik(part, held).sum(1) for part in z.split(20_000)]))
    log_lik = torch.stack(clients)

    def log_z(which):
        return float((prior + log_lik[which].sum(0)).logsumexp(0)) + 2 * math.log(float(axis[1] - axis[0]))

    return log_z


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pareto's k of refits
@pytest.mark.parametrize("path", ["weights", "refit"])
def test_leaving_out_agrees_with_exact_integrals(path, monkeypatch):
    """A model that is not conjugate, ten clients of 12 rows sorted by a covariate; no error above 0.1."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(120, 2, generator=generator, dtype=torch.float64)
    y = (torch.rand(120, generator=generator, dtype=torch.float64) < (x[:, 0] - x[:, 1]).sigmoid()).double()
    fed = pf.Federation(logistic, (x, y), plate="data", num_clients=10, partition=pf.partition.SortedBy(x[:, 0]))
    if path == "refit":
        monkeypatch.setattr("pyro_fed.analysis.criticism.leave_out.LARGEST_PARETO_K", -1.0)
        fed = fed.without(*fed.client_names[3:])
    table = pf.leave_one_client_out(pf.run(pf.FedEP(), fed, **QUIET), fed)
    assert (table["by"] == path).all()
    everyone, log_z = range(fed.num_clients), evidence_on_a_grid(fed)
    for k in everyone:
        exact = log_z(list(everyone)) - log_z([j for j in everyone if j != k])
        assert table["elpd"].iloc[k] == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize(("curvature", "rows"), [(-0.5, 20), (1.0, 0)])
def test_a_site_that_bends_the_other_way_or_has_no_rows_is_no_chance_of_few_rows(curvature, rows):
    """Six clients, one of which is far from the others by what no rows can make."""
    noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    precision = 20.0 * torch.eye(2, dtype=torch.float64).repeat(6, 1, 1)
    eta = 20.0 * (torch.tensor([1.0, -1.0], dtype=torch.float64) + 0.1 * noise)
    precision[3], eta[3] = curvature * precision[3], torch.tensor([-400.0, 300.0], dtype=torch.float64)
    sites = FullGaussian(precision, eta)
    q = FullGaussian(precision.sum(0) + torch.eye(2, dtype=torch.float64), eta.sum(0))
    counts = torch.full((6,), 20)
    counts[3] = rows
    assert apart_by_sites(q, sites, list("abcdef"), ["u", "v"], counts).text.startswith("client d moves")


def test_a_single_draw_has_no_influence_by_weights():
    """A point estimate, of federated averaging, whose clients have sent their log-likelihoods."""
    found = influence_by_weights(torch.zeros(1, 2), torch.zeros(1, 3), ["a", "b", "c"], ["x", "y"])
    assert found["by"].values.tolist() == ["none"] * 3 and found.attrs["unreliable"] == "a, b, c"
    assert found["shift"].isnull().all()

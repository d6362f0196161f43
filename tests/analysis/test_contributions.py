"""What clients bring, against the conjugate posterior: precisions of the clients add to the prior's."""

import numpy as np
import pytest
from algorithms import line, line_data

import pyro_fed as pf

pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture(scope="module")
def fed():
    return pf.Federation(line, line_data(), plate="data", num_clients=3, partition=pf.partition.Explicit(
        [list(range(3)), list(range(3, 10)), list(range(10, 23))]
    ))  # fmt: skip


def alone(fed):
    """Mean and SD of each client's posterior, and the shares of all, of the regression with unit noise and prior."""
    x, y = (part.numpy() for part in line_data())
    whole = np.linalg.inv(x.T @ x + np.eye(2))
    found = []
    for rows in fed.client_rows:
        precision = x[rows].T @ x[rows]
        covariance = np.linalg.inv(precision + np.eye(2))
        found.append((covariance @ x[rows].T @ y[rows], np.sqrt(np.diag(covariance)), np.diag(whole @ precision)))
    return (np.array(part) for part in zip(*found, strict=True))


@pytest.mark.parametrize("kind", ["sites", "draws"])
def test_shares_and_clients_alone_are_the_closed_form(fed, kind):
    algorithm = pf.FedEP() if kind == "sites" else pf.FedAIS(num_proposals=20_000)
    idata = pf.run(algorithm, fed, num_draws=4000, progress=False, audit=False)
    found = pf.contributions(idata, fed)
    mean, sd, share = alone(fed)
    # The model is Gaussian: its sites do not depend on the point, so that draws give the same up to rounding.
    np.testing.assert_allclose(found["mean"], mean, atol=1e-4)
    np.testing.assert_allclose(found["sd"], sd, atol=1e-4)
    np.testing.assert_allclose(found["share"], share, atol=1e-4)
    np.testing.assert_allclose(found["share"].sum("client") + found["prior_share"], 1.0)
    assert found["rows"].values.tolist() == [3, 7, 13]


def test_figures_show_the_contributions(fed):
    found = pf.contributions(pf.run(pf.FedEP(), fed, progress=False, audit=False), fed)
    ax = pf.plots.plot_contributions(found)
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_allclose(widths[:3], 100 * found["contribution"].values)
    assert sum(widths) == pytest.approx(100)
    (one,) = pf.plots.plot_client_forest(found, labels=["w[1]"])
    dots = next(c for c in one.collections if len(c.get_offsets()) == 3)
    np.testing.assert_allclose(dots.get_offsets()[:, 0], found["mean"].values[:, 1])
    (one,) = pf.plots.plot_client_forest(found, labels=["w[1]"], annotate=True)
    said = [text.get_text() for text in one.texts]
    mean, sd, share = (found[name].values[:, 1] for name in ("mean", "sd", "share"))
    assert said[2:8:2] == [f"{m:.2f} [{m - 1.645 * s:.2f}, {m + 1.645 * s:.2f}]" for m, s in zip(mean, sd, strict=True)]
    assert said[3:8:2] == [f"{100 * one:.0f} %" for one in share]
    with pytest.raises(pf.errors.SettingError, match=r"no parameters \['v'\]"):
        pf.plots.plot_client_forest(found, labels=["v"])
    with pytest.raises(pf.errors.SettingError, match="has no Gaussian sites"):
        pf.contributions(pf.run(pf.NUTS(num_samples=10, warmup_steps=10), fed, progress=False, audit=False))

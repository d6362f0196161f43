"""What visits to clients with wrong scores do to a chain's variance: against every order of the clients."""

from itertools import permutations

import numpy as np
import pytest

from pyro_fed.ops.langevin import longest_visit, visit_variance


def by_enumeration(time, errors):
    """Stationary mean square over sweeps in all orders, at the ends of visits.

    Δ_k of a sweep from zero, and what is left of the sweeps before, which are independent of its order, with mean zero.
    """
    keep, orders = np.exp(-time / 2), list(permutations(errors))
    within = np.zeros(len(errors))
    for order in orders:
        place = 0.0
        for k, error in enumerate(order):
            place = keep * place + (1 - keep) * error
            within[k] += place**2 / len(orders)
    n = len(errors)
    end = within[-1] / (1 - keep ** (2 * n))
    return float(np.mean([keep ** (2 * k) * end + within[k - 1] for k in range(1, n + 1)]))


@pytest.mark.parametrize("time", [0.01, 0.3, 2.0, 10.0])
@pytest.mark.parametrize("errors", [[-1.0, 1.0], [-3.0, 1.0, 2.0], [0.5, -2.0, 0.0, 4.0, -2.5]])
def test_random_sweeps_are_exact(time, errors):
    found = np.mean(np.square(errors)) * visit_variance(time, len(errors), shuffled=True)
    assert found == pytest.approx(by_enumeration(time, errors), rel=1e-10)


@pytest.mark.parametrize("time", [0.01, 1.0, 5.0])
def test_clients_drawn_anew_are_exact(time):
    """V = a² V + (1 - a)² s²."""
    keep = np.exp(-time / 2)
    assert visit_variance(time, 7, shuffled=False) == pytest.approx((1 - keep) ** 2 / (1 - keep**2), rel=1e-12)


def test_short_visits_have_the_limits_of_the_formula():
    """(n + 1) t²/24 in sweeps, t/4 else; sweeps are better always, and a single client has no error."""
    assert visit_variance(1e-3, 10, True) == pytest.approx(11 * 1e-6 / 24, rel=0.01)
    assert visit_variance(1e-3, 10, False) == pytest.approx(1e-3 / 4, rel=1e-6)
    assert visit_variance(1.0, 1, True) == visit_variance(1.0, 1, False) == 0.0
    for time in (0.01, 0.1, 1.0, 10.0):
        assert visit_variance(time, 10, True) < visit_variance(time, 10, False)


@pytest.mark.parametrize("shuffled", [True, False])
def test_the_longest_visit_uses_up_what_is_allowed(shuffled):
    found = longest_visit(0.01, 2.0, 10, shuffled, limit=1.0)
    assert 2.0 * visit_variance(found, 10, shuffled) == pytest.approx(0.01, rel=1e-6)
    assert longest_visit(0.01, 0.02, 10, shuffled, limit=1.0) == 1.0
    assert 0 < longest_visit(0.01, 1e30, 10, shuffled, limit=1.0) < 1e-11

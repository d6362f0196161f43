"""A network's rounds by some of its rows first, then by four times as many, and finally by all of them.

A network needs many rounds, each at the cost of its rows, and a few rows are enough for most of the way. So rounds by
some thousand rows are run to their end, and rounds by four times as many begin at their q: in each of D directions
the posterior of these lies some 1.7 SDs away, and has half the SD.

    q_n ∝ p_0 Π t_k       of n rows as a posterior of its own: few rows that counted as many would be learned by heart
    q_4n ≈ q_n⁴           where rounds by 4 n rows begin, with an equal share of q_4n / p_0 for every client

q_n⁴ raises the prior, too, which is a small error for a start if rows are many.
"""

from __future__ import annotations

from pyro_fed.ops.gaussian import Gaussian


def as_of_more(q: Gaussian, prior: Gaussian, times: float, num_clients: int) -> tuple[Gaussian, Gaussian]:
    """The start of rounds by `times` as many rows: q, and each client's share of its likelihood."""
    sharper = q.power(times)
    return sharper, sharper.quotient(prior).power(1.0 / num_clients)

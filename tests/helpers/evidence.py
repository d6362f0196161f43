"""Evidence of draws that no algorithm made, for checks of the audit."""

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.audit import Evidence


def evidence_of(model, args, draws, algorithm=None, seed=0):
    """Draws (S, D) as the result of an algorithm on two clients.

    Args:
        model: with plate "data".
        args: of the model.
        draws: unconstrained.
        algorithm: that they are said to come from; FedEP by default.
        seed: of the run.
    """
    fed = pf.Federation(model, args, plate="data", num_clients=min(2, len(args[0])))
    record = Record(fed.client_names, converged=True)
    return Evidence(algorithm or pf.FedEP(), fed, fed.problem, {}, draws[None], record, seed)

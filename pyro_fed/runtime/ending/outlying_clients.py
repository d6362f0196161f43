"""The check of clients: who moves the answer more than the others do, or contradicts them."""

from __future__ import annotations

from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.audit.audit import compares_clients
from pyro_fed.audit.client_sites import answer_and_sites, log_likelihoods_of
from pyro_fed.audit.influence import FEWEST_CLIENTS, StandingApart, by_the_outcome, who_stands_apart
from pyro_fed.audit.mirrored_clients import mirrored_clients
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.runtime.ending.check_inputs import CheckInputs


def outlying_client_findings(judged: CheckInputs) -> list[Finding]:
    """Clients that stand apart, as notes: the user decides what it means. The record gets a sentence on all of them."""
    record, context, problem = judged.record, judged.context, judged.problem
    labels = [problem.name_of(number) for number in range(problem.dim)]
    sites = record.sites or _asked_of_clients(judged)
    every = who_stands_apart(sites, record.client_names, labels)
    odd = who_stands_apart(sites, record.client_names, labels, context.federation.row_counts) if every.text else every
    for name, clause in _opposites(judged, sites).items():
        odd, every = (one.with_client(name, clause) for one in (odd, every))
    record.stands_apart = every.text
    found = record.messages_stand_apart()
    own = record.sites_of == type(judged.algorithm).__name__
    if context.combination is None and ((record.restless() and not every.text) or not own):
        found += record.clients_move_the_answer()
    if context.federation.holds_data and by_the_outcome(context.federation, problem):
        odd = StandingApart()  # whoever dealt out the rows by their outcome knows that clients differ
    return [*found, *([sentences.clients_stand_apart(clients=list(odd.clauses), said=odd.text)] if odd.text else [])]


def _opposites(judged: CheckInputs, sites: State) -> dict[str, str]:
    """Clients whose rows contradict the others', by name, with a clause on each."""
    context, problem = judged.context, judged.problem
    tempered = getattr(judged.algorithm, "temperature", 1.0) != 1  # sites are then not those of the likelihoods
    whole = sites and context.federation.holds_data and context.combination is None and not tempered
    if not whole or not compares_clients(problem):
        return {}

    def log_lik(client: int, points: Tensor) -> Tensor:
        return log_likelihoods_of(context.federation, client, points.to(problem.dtype))

    generator = seeding.torch_generator(context.seed, seeding.AUDIT, 8)
    found = mirrored_clients(gaussian(sites, "q_"), gaussian(sites), context.federation.row_counts, log_lik, generator)
    names = {k: context.record.client_names[k] for k in found}
    return {
        names[k]: f"the rows of client {names[k]} are e^{ratio:.1f} times as likely under the opposite of what the "
        "others say"
        for k, ratio in found.items()
    }


def _asked_of_clients(judged: CheckInputs) -> State:
    """The clients' sites at the draws, for algorithms that keep none; empty if they cannot be computed."""
    context, federation, problem = judged.context, judged.context.federation, judged.problem
    several = not judged.algorithm.pooled and federation.num_clients >= FEWEST_CLIENTS
    if not several or not federation.holds_data or context.combination is not None or not compares_clients(problem):
        return {}
    return answer_and_sites(federation, judged.draws.flatten(0, 1))

"""Peak memory of 1,000 clients of 100 rows, 100 particles in 50 dimensions: DSVGD at once and one by one.

    python -m benchmarks.speed.memory

All clients keep their local particles; a round of `CLIENTS_A_ROUND` clients is one call of the vectorised
executor. Claim: under 2 GB of resident memory, libraries included.
"""

import warnings

import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import model
from benchmarks.helpers.records import peak_gb

CLIENTS, ROWS, PARTICLES, DIM = 1000, 100, 100, 50
ROUNDS = 20
LIMIT_GB = 2.0


def main() -> None:
    """Print the peak after each stage."""
    torch.manual_seed(0)
    x = torch.randn(CLIENTS * ROWS, DIM)
    y = (x[:, 0] > 0).float()
    print(f"libraries and data: {peak_gb():.2f} GB")
    fed = pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS)
    print(f"federation of {CLIENTS} clients: {peak_gb():.2f} GB")
    warnings.filterwarnings("ignore", message="the KDE")
    algorithm = pf.papers.PaperDSVGD(num_particles=PARTICLES, local_steps=10, distill_steps=10)
    pf.run(algorithm, fed, num_rounds=ROUNDS, log_likelihood=False, progress=False)
    print(f"DSVGD, {ROUNDS} rounds: {peak_gb():.2f} GB")
    pf.run(algorithm, fed, num_rounds=1, progress=False)
    print(f"with the pointwise log-likelihood, {PARTICLES} draws x {CLIENTS * ROWS} rows: {peak_gb():.2f} GB")
    pf.run(
        AllAtOnce(num_particles=PARTICLES, local_steps=1, distill_steps=1),
        fed,
        num_rounds=1,
        schedule=pf.schedule.All(),
        log_likelihood=False,
        progress=False,
    )
    verdict = "holds" if peak_gb() < LIMIT_GB else "does NOT hold"
    print(f"all {CLIENTS} clients in one call: {peak_gb():.2f} GB; the claim of {LIMIT_GB:g} GB {verdict}")


class AllAtOnce(pf.papers.PaperDSVGD):
    """DSVGD whose server takes the mean particles of all clients: a stand-in for a fully parallel round."""

    def combine(self, shared, messages, weights):
        return super().combine(shared, {"particles": messages["particles"].mean(0, keepdim=True)}, weights[:1])


if __name__ == "__main__":
    main()

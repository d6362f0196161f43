"""Guides of every kind, fitted federated and by Pyro's SVI on the pooled data, beside exact posteriors.

    python -m benchmarks.accuracy.guides                            # all guides: a table of Markdown
    python -m benchmarks.accuracy.guides --cases '*IAF*,*banana*'   # those whose name matches
    python -m benchmarks.accuracy.guides --print                    # the table of what has been run

Five clients. `FedEP` federates a guide that is an exponential family, `FedLaplace` the Laplace guide, `SFVI` the rest,
and `P2PSFVI` two on a ring, where each of five agents has 2,000 rows of a logistic regression, sorted by label, and the
errors are the worst agent's.
Pooled is `pyro.infer.SVI` with the same guide, steps, draws a step, Adam, rates and average of the second half of its
parameters as SFVI, and in each step with the random numbers of SFVI's. SFVI makes the first half of its steps at the
server, towards FedEP's Gaussian, and P2PSFVI at the agents, towards P2PVI's, so that clients compute half as many
gradients. Flows begin at their own start, and each of their steps is a round and one of pooled SVI.

Errors of means are in SDs of the exact posterior, of SDs in logarithms, the largest of all parameters; 4,000 draws add
0.016 and 0.011. Draws of SFVI's and of the pooled guide are made with the same random numbers; those of the others with
their own. "Chance" is the largest SD of the distance of two pooled runs with random numbers of their own and the same
start: √2 standard errors of the pooled run's average, by ten batches of its parameters. The reference is exact
(conjugate), or a fine grid. KL is that of the guide to the posterior, in nats, by 4,000 draws and the grid's evidence.
Rounds include those of FedEP or P2PVI. Gradients are those of one client's rows, a draw each. Bytes are those of one
client in all rounds, seconds the CPU's for the whole run without its audit.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain
from typing import Any

from benchmarks.helpers.guide_cases import BY_NAME, Settings, measured
from benchmarks.helpers.records import Records, add_options, matches, run_missing
from benchmarks.helpers.tables import heading, row

TITLES = (
    *(
        "guide",
        "by",
        "rounds",
        "gradients",
        "kB a client",
        "s",
        "mean",
        "log SD",
        "pooled: gradients",
        "mean",
        "log SD",
    ),
    *("apart: mean", "log SD", "chance", "KL", "pooled: KL"),
)


def line(record: dict[str, Any]) -> str:
    """A row of the table."""
    by, name = record["case"].split(" / ")

    def figure(what: str) -> str:
        return f"{record[what]:.3f}" if what in record else ""

    sides = [(figure(f"{side}mean"), figure(f"{side}log_sd") or "a point") for side in ("", "pooled_")]
    mine, theirs = sides if by != "FedLaplace" else (sides[0], ("", ""))
    steps = record["steps"] * record["particles"]
    own = steps if record["rounds"] == record["steps"] else steps // 2
    gradients = (f"{own:,}" if by.endswith("SFVI") else "", f"{steps:,}" if theirs[0] else "")
    cost = (f"{record['rounds']:,}", gradients[0], f"{record['kB']:,.0f}", f"{record['cpu']:.0f}")
    apart = [figure(what) for what in ("apart", "log_sd_apart", "chance", "kl", "pooled_kl")]
    return row(name, by, *cost, *mine, gradients[1], *theirs, *apart)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "out/guides.jsonl", "guides, such as 'SFVI / *'")
    parser.add_argument("--steps", type=int, default=2000, help="steps of Adam")
    parser.add_argument("--particles", type=int, default=4, help="draws a step")
    parser.add_argument("--rate", type=float, default=0.02, help="Adam's rate")
    asked = parser.parse_args()
    records, chosen = Records(asked.out), [name for name in BY_NAME if matches(name, asked.cases)]
    print(heading(*TITLES), flush=True)
    kept = [records[name] for name in chosen if asked.print and name in records]
    wanted = [] if asked.print else chosen
    function = partial(measured, settings=Settings(asked.steps, asked.particles, asked.rate))
    new = run_missing(records, wanted, function, jobs=asked.jobs, again=asked.again, minutes=asked.minutes)
    for record in chain(kept, new):
        print(line(record), flush=True)


if __name__ == "__main__":
    main()

"""What the attack of `leakage` finds in messages that a site's policy lets out, at the fewest rows that it lets out.

    python -m benchmarks.privacy.policy [WORD ...]      # families whose names have one of the words

For each family the site has as few rows as `RULES` permit for its message; with one row less the gate refuses it, which
is checked. Then the attack of `leakage` on one round's message: how much nearer the found rows are to the true ones
than made-up rows (0 to 1, see there). A message tells of the population too, such as the covariates' correlations, and
so the found rows are nearer to any rows of that population. The second column is the same for rows of the same
distribution that have nothing to do with the message; the third, the difference, is what the message tells of the rows
that it was computed from. One round is attacked; another attack may find more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from benchmarks.privacy import leakage
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.policy import Gate, Outgoing, Policy
from pyro_fed.deployment.policy.rules import rows_share
from pyro_fed.errors import PolicyError

RULES = Policy(min_rows=50, min_cell=5, min_level=5, max_numbers_per_row=0.1, max_share=0.2)
REPEATS = 4
#: Rows that are tried for the fewest that the policy permits.
MAX_ROWS = 10_000


def permitted(seen: leakage.Seen, rows: tuple[torch.Tensor, torch.Tensor]) -> str:
    """The rule that refuses a client's message; "" if it may leave."""
    data = ClientData(rows, torch.arange(len(rows[0]))[None], torch.tensor([len(rows[0])]))
    message = Outgoing(kind="update", data=b"", tensors=seen.message, share=lambda: rows_share(seen.problem, data))
    try:
        Gate("site", RULES, rows=len(rows[0])).release(message)
    except PolicyError as error:
        return error.rule
    return ""


def fewest_rows(algorithm: Any, generator: torch.Generator) -> int:
    """The fewest rows with which a family's message may leave."""
    seen = leakage.heard(algorithm, leakage.made_up(5, generator), generator)
    numbers = sum(value.numel() for value in seen.message.values())
    count = max(RULES.min_rows, int(np.ceil(numbers / (RULES.max_numbers_per_row or np.inf))))
    less = leakage.made_up(count - 1, generator)
    if permitted(leakage.heard(algorithm, less, generator), less) == "":
        raise RuntimeError(f"{algorithm}: the gate lets out the message of {count - 1} rows, expected {count} or more")
    return count


def cell(algorithm: Any, count: int) -> tuple[float, float]:
    """What is found of the rows that a message was computed from, and of others that it was not."""
    own_shares, other_shares = [], []
    for repeat in range(REPEATS):
        generator = torch.Generator().manual_seed(100 * count + repeat)
        own = leakage.made_up(count, generator)
        seen = leakage.heard(algorithm, own, generator)
        if rule := permitted(seen, own):
            raise RuntimeError(f"{algorithm}: {rule} refuses the message of {count} rows")
        found = leakage.attacked(seen, count, leakage.flat(seen.message), None, generator)
        own_shares.append(leakage.recovered(found, own[0], generator))
        other_shares.append(leakage.recovered(found, leakage.made_up(count, generator)[0], generator))
    return float(np.mean(own_shares)), float(np.mean(other_shares))


def main(words: Iterable[str] = ()) -> dict[str, tuple[int, float, float]]:
    torch.set_num_threads(1)
    torch.set_grad_enabled(True)
    print(f"{RULES}\n{'':42s}{'fewest rows':>12s}{'own rows':>10s}{'others':>8s}{'apart':>8s}")
    found = {}
    for name, algorithm in leakage.FAMILIES.items():
        if words and not any(word in name for word in words):
            continue
        count = fewest_rows(algorithm, torch.Generator().manual_seed(0))
        own, other = cell(algorithm, count)
        found[name] = count, own, other
        print(f"{name:42s}{count:12,d}{own:10.2f}{other:8.2f}{own - other:8.2f}", flush=True)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])

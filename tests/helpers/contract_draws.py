"""The draws of every algorithm of `algorithms.ALGORITHMS` on the contract tests' federations, kept as a file.

    python tests/helpers/contract_draws.py               # compare with the file, print the largest differences
    python tests/helpers/contract_draws.py --write       # write it anew, after a change that is meant to change draws
    python tests/helpers/contract_draws.py --write MyVB  # write the draws of MyVB alone, such as a new algorithm

Two federations: lines at three clients of unequal size, and a hierarchy whose effects are integrated out. A change of
the code's form must not change a draw; `algorithm/test_contract_draws.py` holds this to 1e-12.
"""

import sys
from pathlib import Path

import numpy as np
from algorithms import ALGORITHMS
from contract import CASES as CONTRACTS
from contract import hierarchy

FILE = Path(__file__).with_name("contract_draws.npz")


def draws_of(name, make, where):
    """What a run gives, by `algorithm / federation / variable`."""
    idata = CONTRACTS[name].integrated if where is hierarchy else CONTRACTS[name].untraced
    at = f"{name} / {where.__name__}"
    found = {f"{at} / {variable}": idata.posterior[variable].values for variable in idata.posterior.data_vars}
    return found | {f"{at} / bytes_up": idata["federation"]["bytes_up"].values}


CASES = [(name, make, where) for name, make, where in ALGORITHMS]
CASES += [(name, make, hierarchy) for name, make, _ in ALGORITHMS]


def differences(found, kept):
    """The largest relative difference of each entry, infinite where a shape is another."""
    return {
        name: float(np.max(np.abs(value - kept[name]) / (1 + np.abs(kept[name])), initial=0.0, where=~np.isnan(value)))
        if name in kept and kept[name].shape == value.shape
        else float("inf")
        for name, value in found.items()
    }


def write_or_compare(write, names):
    """Compare the draws of the rows named, or of all, with the file; write them if asked to."""
    if unknown := set(names) - CONTRACTS.keys():
        raise SystemExit(f"no row {', '.join(sorted(unknown))} in helpers/algorithms.py, nor an algorithm in a door")
    kept, every = dict(np.load(FILE)), {}
    for case in CASES:
        if not names or case[0] in names:
            every |= draws_of(*case)
    away = differences(every, kept)
    for name, value in sorted(away.items(), key=lambda item: -item[1])[:10]:
        print(f"{value:.3g}  {name}" + ("  (new, or of another shape)" if np.isinf(value) else ""))
    print(f"{len(away)} entries, {sum(value == 0 for value in away.values())} equal to {FILE} bit by bit")
    if write:
        others = {key: value for key, value in kept.items() if names and key.partition(" / ")[0] not in names}
        np.savez_compressed(FILE, **others | every)
        changed = sorted({name.rpartition(" / ")[0] for name, value in away.items() if value > 1e-12})
        print(f"wrote {FILE}, {len(others | every)} entries; changed or new: {', '.join(changed) or 'none'}")
        print("commit it with the algorithm, and say in the message why draws of others have changed, if any have")


if __name__ == "__main__":
    given = sys.argv[1:]
    write_or_compare("--write" in given, [one for one in given if one != "--write"])

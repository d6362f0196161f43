"""A site's own effects as two numbers each, which leave once a person there has consented; and the page for the person.

The site draws its effects from the result's shared parameters and its own rows, see `own_effects`. Each effect leaves
as a mean and an SD, in a JSON file that passes the site's gate, so that its rules hold and its ledger has a line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pyro_fed.analysis.predicting.own_rows import own_effects
from pyro_fed.analysis.report import page
from pyro_fed.conventions.version import VERSION
from pyro_fed.deployment.policy.gate import LEDGER, Gate, Outgoing, verify
from pyro_fed.deployment.policy.report import TEMPLATES, rules_table, table
from pyro_fed.errors import DataError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of

#: The kind of the message, of `rules.KINDS`.
EFFECT = "effect"


class Effects(NamedTuple):
    """A site's own effects: the mean and SD of each by name, and the number of rows of each group by nested plate."""

    moments: dict[str, tuple[float, float]]
    rows: dict[str, int]

    @classmethod
    def of(cls, result: Any, own: Federation) -> Effects:
        """The effects of the groups of `own` rows, given a result's shared parameters; DataError for a single row's."""
        if not own.problem.arguments.nested_by_name:
            raise DataError(
                f"each element of plate '{own.problem.plate}' is one row: its latents are that row's own, and do not "
                "leave. Effects of groups are latents of a plate of groups, see ROWS of the model's file"
            )
        rows = _group_rows(own)
        if single := [group for group, count in rows.items() if count == 1]:
            raise DataError(
                f"{single[0]} has one row: its effect is that row's own, and does not leave. Leave the group out of "
                "the data, or put it together with another one"
            )
        posterior = group_of(own_effects(result, own), "posterior")
        moments: dict[str, tuple[float, float]] = {}
        for name in own.problem.layout.local:
            draws = torch.tensor(posterior[name].values).flatten(0, 1).flatten(1)
            names = [name] if draws.shape[1] == 1 else [f"{name}[{number}]" for number in range(draws.shape[1])]
            moments |= {one: (float(x.mean()), float(x.std())) for one, x in zip(names, draws.T, strict=True)}
        return cls(moments, rows)

    def message(self, site: str) -> Outgoing:
        """The message with the effects, as the site's gate judges it; the share of a row in an effect is not known."""
        numbers = {name: {"mean": mean, "sd": sd} for name, (mean, sd) in self.moments.items()}
        data = json.dumps({"site": site, "effects": numbers}, indent=1).encode() + b"\n"
        tensors = {name: torch.tensor(both) for name, both in self.moments.items()}
        return Outgoing(kind=EFFECT, data=data, tensors=tensors, to="by hand", cells=self.rows)


def _group_rows(own: Federation) -> dict[str, int]:
    """The number of rows of each group of a site in each plate nested in the groups."""
    arguments = own.problem.arguments
    leaves = dict(zip(arguments.names, arguments.leaves, strict=True))
    return {
        f"group {number} of plate '{plate}'": int(count)
        for plate, (owner, *_) in arguments.nested_by_name.items()
        for number, count in enumerate(torch.bincount(torch.as_tensor(leaves[owner]).long(), minlength=own.num_rows))
    }


def write_consent(path: Path, effects: Effects, gate: Gate, message: Outgoing) -> None:
    """Write the HTML page on what two numbers would leave, what they tell, how often, and how to withdraw."""
    ledger = None if gate.folder is None else gate.folder / LEDGER
    lines = verify(ledger) if ledger is not None and ledger.exists() else []
    earlier = [line for line in lines if line["kind"] == EFFECT and line["left"]]
    refused = gate.objection(message, 1)
    fewest = min(filter(None, effects.rows.values()), default=0)
    numbers = [[name, f"{mean:.3g}", f"{sd:.3g}"] for name, (mean, sd) in effects.moments.items()]
    words = [
        ["what leaves", "for each effect of this site a mean and an SD, as in the table above, and the site's name"],
        ["what they tell", "how far this site lies from the others on the model's scale, after what the model explains "
         "by its patients, and how sure that is. Whoever has several sites' numbers can rank them"],
        ["about patients", f"each number is a function of all rows of a group, the smallest of which has {fewest:,}. "
         "It is no patient's value. But if the numbers are sent again after one patient's row was changed or left out, "
         "their difference tells about that patient: send them once"],
        ["how often", f"once, by this command. It has sent them {len(earlier)} times before"
         + (f", last on {earlier[-1]['time'][:10]}" if earlier else "")],
        ["without consent", "nothing leaves, and the study's result is the same: it needs no site's own effect. The "
         "site can look at its effects itself (pf.own_effects)"],
        ["how to withdraw", f"before it is sent: delete the file. Later: ask the recipient to delete the file with the "
         f"SHA-256 in the site's ledger; numbers that were published cannot be called back. For good: leave '{EFFECT}' "
         "out of kinds in policy.toml"],
    ]  # fmt: skip
    before = [[line["number"], line["time"].replace("+00:00", ""), line["sha256"][:16]] for line in earlier]
    page.write_page(
        path,
        "what_left.html",
        TEMPLATES,
        title=f"May {gate.site}'s own effects leave?",
        lead="For the person who consents on behalf of the site",
        summary=f"{2 * len(numbers)} numbers would leave {gate.site}. They leave once you have agreed.",
        checked=refused is None,
        chain=f"The site's rules forbid it: {refused[1]}." if refused else "The site's rules permit it.",
        facts=None,
        tables=[
            table("The numbers", "Mean and SD of the posterior.", ["effect", "mean", "SD"], numbers),
            table("What you agree to", "", ["", "in words"], words),
            rules_table(lines),
        ],
        messages=table(
            "Sent before", "Times are UTC.", ["line", "time", "SHA-256"], before, "Nothing was sent before."
        ),
        colophon=f"Made by pyro-fed node effects, pyro_fed {VERSION}.",
    )

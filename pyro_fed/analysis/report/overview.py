"""An overview of a run, as text and in a notebook: its verdict, doubts, posterior and costs."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.analysis.numbers import readable_bytes, readable_seconds
from pyro_fed.analysis.report import terminal
from pyro_fed.conventions import html
from pyro_fed.conventions.calls import Checked
from pyro_fed.ops.arviz_versions import summary
from pyro_fed.results.inference_data import InferenceData, flag

#: Number of scalars of the posterior in the text.
ROWS = 10


@dataclass(frozen=True)
class Overview(metaclass=Checked):
    """An overview of a run in a notebook or terminal: its verdict, its doubts, the posterior and the costs.

    Args:
        idata: result of `pyro_fed.run` or `pyro_fed.fit`.

    Example:
        >>> pf.Overview(pf.fit(fed))
    """

    idata: InferenceData

    @property
    def title(self) -> str:
        """The algorithm and its clients: `FedEP on 10 clients: nothing speaks against it`."""
        attrs = self.idata.attrs
        name = attrs.get("chosen") or attrs.get("algorithm", "a result of another library")
        clients = f" on {attrs['num_clients']} clients" if "num_clients" in attrs else ""
        return f"{name}{clients}: {self._verdict()}"

    @property
    def doubts(self) -> list[str]:
        """The sentences that speak against the result."""
        return [line for line in str(self.idata.attrs.get("doubts", "")).split("\n") if line]

    def _verdict(self) -> str:
        if self.doubts:
            return f"{len(self.doubts)} reason{'s' if len(self.doubts) > 1 else ''} to doubt it"
        return "nothing speaks against it" if flag(self.idata.attrs, "audited") else "it was not audited"

    def __repr__(self) -> str:
        blocks = [self.title, *(f"  {doubt}" for doubt in self.doubts), terminal.posterior_table(self.idata, ROWS)]
        if "federation" in self.idata:
            blocks.append(terminal.cost_block(self.idata))
        return "\n".join(blocks)

    def _repr_html_(self) -> str:
        posterior = self.idata["posterior"]
        chains = self.idata.attrs.get("draws_are") == "chains"
        names = ", ".join(f"{name} {dict(value.sizes)}" for name, value in posterior.data_vars.items())
        if self.idata.attrs.get("draws_are") == "point":
            shown = html.text(f"a point: {names}")
        else:
            rows = summary(self.idata, chains=chains)
            shown = html.table(
                ["", *map(str, rows.columns)],
                [[name, *(f"{value:.3g}" for value in row)] for name, *row in rows.itertuples()],
            )
        doubts = "".join(html.text(doubt, "li") for doubt in self.doubts)
        return html.block(self.title, f"<ul>{doubts}</ul>" if doubts else "", shown, html.text(self._cost()))

    def _cost(self) -> str:
        if "federation" not in self.idata:
            return ""
        record = self.idata["federation"]
        up, down = (int(record[name].sum()) for name in ("bytes_up", "bytes_down"))
        return (
            f"{record.sizes['round']} rounds, {readable_bytes(up)} sent by the clients, {readable_bytes(down)} "
            f"received by them, {readable_seconds(float(record['seconds'].sum()))}"
        )

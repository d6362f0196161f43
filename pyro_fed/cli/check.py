"""The command ``pyro-fed check``: a site's table against the codebook, and sites' summaries beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyro_fed.cli import options
from pyro_fed.conventions.output import check_writable, replaced_file, write_file
from pyro_fed.errors import SettingError, listed

if TYPE_CHECKING:
    from pyro_fed.codebook import SiteFinding, SiteSummary, TableOne
    from pyro_fed.deployment.policy.gate import Outgoing


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--site", metavar="NAME", help="The site's name.  [default: that of the CSV file]")
@click.option(
    "--fewest", type=click.IntRange(min=2), help="Withhold counts below this number.  [default: the codebook's]"
)
@options.path_option("--out", metavar="FILE", dir_okay=False, text="The summary.  [default: SITE.json]")
@options.policy
@click.option("--compare", "compares", is_flag=True, help="Compare the summaries of several sites.")
@options.path_option(
    "--constants",
    "constants_path",
    metavar="FILE",
    dir_okay=False,
    text="With --compare: write pooled means and SDs of the columns of numbers (JSON).",
)
@options.path_option(
    "--table",
    "table_path",
    metavar="FILE",
    dir_okay=False,
    text="With --compare: write Table 1: .md, .html, .csv, or text.",
)
@options.as_json
def check(
    files: tuple[Path, ...], site: str | None, fewest: int | None, out: Path | None, policy_path: Path | None,
    compares: bool, constants_path: Path | None, table_path: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Check a site's table, or compare those of several sites.

    \b
    pyro-fed check codebook.toml albany.csv
    pyro-fed check --compare albany.json boston.json chicago.json

    The first form runs at the site. It prints what contradicts the codebook, with the lines of the file, and writes the
    site's summary: numbers of values, means, SDs and counts, none of which is about fewer rows than the codebook's
    `fewest`. The second form takes the summaries and looks for other units, exchanged levels and shifted dates.

    The exit code is 1 if anything is found. Needs the extra study: pip install 'pyro_fed[study]'.
    """  # noqa: D301
    if compares:
        if site or fewest or out or policy_path:
            raise SettingError(
                "--site, --fewest, --out and --policy apply to the check of one table, without --compare"
            )
        _compare(files, constants_path, table_path, as_json)
    else:
        if constants_path or table_path:
            raise SettingError("--constants and --table need --compare and the summaries of the sites")
        if len(files) != 2:
            raise SettingError(
                "expected a codebook and a table, as in pyro-fed check codebook.toml albany.csv; received "
                f"{len(files)} file(s). Summaries of sites are compared with --compare"
            )
        _check(*files, site or "", fewest, out, policy_path, as_json)


def _check(
    codebook: Path, rows: Path, site: str, fewest: int | None, out: Path | None, policy: Path | None, as_json: bool
) -> None:
    import pyro_fed as pf
    from pyro_fed.analysis.report import overview
    from pyro_fed.deployment.policy.gate import Gate, site_folder

    book = pf.codebook.read_codebook(codebook)
    folder = None if policy is None else site_folder(policy)
    least = Gate.open(folder, "").policy.min_cell
    checked = pf.codebook.check(book, rows, site, max(book.fewest if fewest is None else fewest, least))
    summary = checked.summary
    written = check_writable(out or Path(f"{summary.site}.json"), "--out")
    gate = Gate.open(folder, summary.site, summary.rows or 0)
    with replaced_file(written) as file:
        file.write(gate.release(_as_message(summary)))
    if as_json:
        plain = [one.finding.to_plain() | {"site": one.site, "rows": list(one.rows)} for one in checked.findings]
        click.echo(overview.as_json({"findings": plain, "summary": str(written)}))
    else:
        click.echo(overview.heading(f"{summary.site}: {rows} by {codebook}"))
        for one in checked.findings:
            click.echo(overview.field(_label(one), _at_the_site(one)))
        if not checked.findings:
            click.echo("  nothing contradicts the codebook")
        click.echo(
            f"\nWritten to {click.format_filename(written)}: what may leave this site. No figure in it is about "
            "fewer than "
            f"{summary.codebook.fewest} rows. The lines above are for this site alone."
        )
    if checked.findings:
        raise click.exceptions.Exit(1)


def _as_message(summary: SiteSummary) -> Outgoing:
    """A summary as a message that passes the site's gate: its numbers, and the counts among them as cells."""
    import torch

    from pyro_fed.deployment.policy.gate import Outgoing

    counts = summary.counts()
    moments = [value for one in {**summary.numbers, **summary.dates}.values() for value in (one.mean, one.sd)]
    others = [value for one in summary.numbers.values() for value in one.quantiles.values()]
    means = [value for one in summary.relations for value in one.means.values()]
    numbers = [float(value) for value in (*moments, *others, *means, *counts.values()) if value is not None]
    tensors = {"figures": torch.tensor(numbers, dtype=torch.float64)}
    return Outgoing(kind="table", data=summary.to_json(), tensors=tensors, to="the study", cells=counts)


def _compare(files: tuple[Path, ...], constants_path: Path | None, table_path: Path | None, as_json: bool) -> None:
    import pyro_fed as pf
    from pyro_fed.analysis.report import overview

    summaries = [pf.codebook.read_summary(path) for path in files]
    findings = pf.codebook.compare(summaries)
    if constants_path is not None:
        constants = pf.codebook.constants(summaries)
        constants.write(constants_path)
    if table_path is not None:
        _write_table(pf.codebook.table_one(summaries), table_path)
    if as_json:
        plain = [one.finding.to_plain() | {"site": one.site} for one in findings]
        click.echo(overview.as_json({"findings": plain, "sites": [one.site for one in summaries]}))
    else:
        sizes = [f"{one.site} ({one.rows if one.rows is not None else 'few'} rows)" for one in summaries]
        click.echo(overview.heading(f"Compared: {', '.join(sizes)}"))
        for one in findings:
            click.echo(overview.field(f"{one.site}, {_label(one)}", one.finding.text))
        if not findings:
            click.echo("  no differences beyond those that sites usually have")
        if constants_path is not None:
            click.echo(overview.heading("Pooled means and SDs"))
            for name, moments in constants.columns.items():
                click.echo(overview.field(name, f"{moments.mean:.6g} ({moments.sd:.6g}), {moments.n} values"))
            for name, reason in constants.left_out.items():
                click.echo(overview.field(name, f"left out: {reason}"))
            click.echo(f"\nWritten to {click.format_filename(constants_path)}; pf.codebook.read_constants reads it.")
        if table_path is not None:
            click.echo(f"\nWritten to {click.format_filename(table_path)}: Table 1.")
    if findings:
        raise click.exceptions.Exit(1)


def _label(one: SiteFinding) -> str:
    return "contradiction" if one.finding.is_doubt else "suspicion"


def _at_the_site(one: SiteFinding) -> str:
    """A finding with what only the site sees: its rows, and frequent texts."""
    where = f"{len(one.rows)} {one.called}{'s' * (len(one.rows) != 1)}: {listed(one.rows)}" if one.rows else ""
    own = "; ".join(part for part in (one.own, where) if part)
    return f"{one.finding.text}" + (f" [{own}]" if own else "")


def _write_table(table: TableOne, path: Path) -> None:
    forms = {".md": table.to_markdown, ".html": table.to_html, ".htm": table.to_html, ".csv": table.frame.to_csv}
    text = str(forms.get(path.suffix.lower(), table.to_text)())
    write_file(path, text.encode(), "--table")

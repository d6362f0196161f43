"""The commands ``pyro-fed agent``, ``certificates`` (for a rehearsal of it) and ``flower``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pyro_fed.cli import options
from pyro_fed.conventions.output import write_result


@click.command()
@options.model
@click.argument("recipe_name", metavar="[RECIPE]", default="p2p_vi")
@click.option("--name", required=True, help="This agent's name in the peers file.")
@options.agent_data
@options.peers
@options.certificates
@options.policy
@options.rounds
@options.assignments("KEY=VALUE", "gossip_tolerance=0.001")
@options.seed
@options.out
@options.checkpoint
@options.resume
@click.option("--audit/--no-audit", default=True, show_default=True, help="Check the result; the same at all agents.")
@click.option(
    "--ask",
    "questions",
    metavar="NAME",
    multiple=True,
    help="Compute an estimand in ESTIMANDS of the model's file, loo, influence or leave_one_client_out; the same at "
    "all agents.",
)
@click.option("--listen", metavar="HOST:PORT", help="Address to listen at; default: the agent's in the peers file.")
@click.option("--patience", type=float, help="Seconds to wait for a neighbour in a round; default: 60.")
@click.option(
    "--patience-all",
    type=float,
    help="Seconds to wait for a neighbour without which the run cannot continue; default: 600.",
)
@options.verbose
@options.quiet
def agent(
    model: str, recipe_name: str, name: str, rows_path: Path, peers_path: Path, folder: Path,
    policy_path: Path | None, rounds: int | None,
    assignments: tuple[str, ...], seed: int, out: Path | None, checkpoint: Path | None, resume: bool, audit: bool,
    questions: tuple[str, ...], listen: str | None, patience: float | None, patience_all: float | None,
    verbose: bool, quiet: bool,
) -> None:  # fmt: skip
    """Run one agent of a RECIPE without a server on a MODEL, with rows of its own.

    The agent talks only to its neighbours, over TLS with certificates on both sides. MODEL, RECIPE, --seed, --rounds
    and the peers file must be the same at every agent; if they are not, the agents report what differs.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise gRPC prints a line for every connection that ends
    with options.needs_extra("agents"):
        from pyro_fed.deployment.agents.agent import Agent, run_agent
        from pyro_fed.deployment.agents.certificates import Identity
    from pyro_fed.analysis.report import overview
    from pyro_fed.deployment.agents.peers import LinkSettings, load_peers
    from pyro_fed.deployment.policy import approval
    from pyro_fed.deployment.review import named_digest, site_entries, study_review, write_review
    from pyro_fed.deployment.rows import load_rows
    from pyro_fed.recipes import library, recipe
    from pyro_fed.recipes.values import parse_assignment

    peers = load_peers(peers_path)
    peers.number(name)
    out = options.result_file(out, name)
    assigned = dict(parse_assignment(text) for text in assignments)

    def facts_of_order() -> list[approval.Facts]:
        chosen = recipe.load(recipe_name)
        run = {**chosen.run, **({"num_rounds": rounds} if rounds is not None else {})}
        return [approval.recipe_facts(chosen, chosen.build(assigned, where="--set"), run)]

    gate = None if policy_path is None else approval.approved_gate(policy_path, name, model, facts_of_order)
    if gate is not None and gate.approved_folder is not None:
        model = str(approval.copied_model(gate.approved_folder))
    module = library.load_model(model, with_data=False)  # which may import the recipe's algorithm
    chosen = recipe.load(recipe_name)
    waits: dict[str, Any] = {"patience": patience, "patience_all": patience_all}
    settings = replace(LinkSettings(), **{name: wait for name, wait in waits.items() if wait is not None})
    idata = run_agent(
        Agent(
            model=module.model,
            plate=module.PLATE,
            nested=getattr(module, "ROWS", None),
            rows=load_rows(rows_path, module.model),
            identity=Identity.load(folder, name),
            peers=peers,
            algorithm=chosen.build(assigned, where="--set"),
            num_rounds=rounds if rounds is not None else chosen.run.get("num_rounds"),
            seed=seed,
            settings=settings,
            listen=listen,
            checkpoint=checkpoint,
            resume=resume,
            progress=not quiet,
            gate=gate,
            audit=audit,
            questions=questions,
            module=module,
        )
    )
    if out is not None:
        write_result(idata, out)
        review = study_review(
            out,
            model=named_digest(library.find_model(model)),
            recipe=named_digest(library.find_recipe(recipe_name)),
            options={"seed": seed, "rounds": rounds, "set": assigned, "audit": audit},
            sites=site_entries(idata),
            agent=name,
            questions=list(questions),
            policy="" if gate is None else gate.policy.digest,
            approval="" if gate is None else gate.approval,
        )
        write_review(review, out)
    click.echo(overview.posterior_table(idata))
    click.echo(overview.doubts_block(idata))
    if out is not None:
        click.echo(f"\nWritten to {out}; read it by arviz.from_netcdf({str(out)!r}).")


@click.command()
@options.folder
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Days for which the certificates are valid.",
)
def certificates(folder: Path, names: tuple[str, ...], days: int) -> None:
    """Write an authority and a certificate for each agent NAME to DIR, for a rehearsal of `pyro-fed agent`.

    A deployment uses certificates of its own institution. Keep ca.key away from the agents' machines.
    """
    with options.needs_extra("agents"):
        from pyro_fed.deployment.agents.certificates import write_certificates

    for path in write_certificates(folder, names, days):
        click.echo(str(path))


@click.group()
def flower() -> None:
    """Apps for Flower, whose clients keep their data, and their signatures."""


@flower.command()
@options.folder
@click.option("--model", required=True, help="A model's name or the path of a .py file.")
@click.option("--recipe", "recipe_name", required=True, help="A recipe's name or the path of a .toml file.")
@options.clients(default=2, text="Clients to wait for.")
def new(folder: Path, model: str, recipe_name: str, clients: int) -> None:
    """Write an app to DIR that runs a RECIPE on a MODEL; edit `load_rows` in its client_app.py."""
    with options.needs_extra("flower"):
        from pyro_fed.deployment.flower.apps import write_app

    written = write_app(folder, model, recipe_name, clients)
    click.echo(
        f"Written to {written}. Flower runs a copy of it from another folder: load_data() and load_rows must name "
        "files "
        "by absolute paths.\n"
        "Try a simulation, in which load_rows in its client_app.py distributes what the model's load_data() reads:\n"
        f"  flwr run {written} --stream --federation-config 'num-supernodes={clients}'\n"
        "Then replace load_rows by code that reads a client's own rows."
    )


@flower.command()
@click.argument("fab", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@options.path_option(
    "--key", required=True, exists=True, dir_okay=False, text="Your private key: ssh-keygen -t ed25519."
)
@click.option("--name", required=True, help="Your name in the nodes' file of trusted entities.")
def sign(fab: Path, key: Path, name: str) -> None:
    """Sign an app, a FAB of `flwr build`. It may then run at nodes that trust your key: read its code first."""
    with options.needs_extra("flower"):
        from pyro_fed.deployment.flower.apps import sign_app

    click.echo(f"Written to {sign_app(fab, key, name)}: put it beside {fab.name} into the server's folder of apps.")


@flower.command()
@options.folder
@click.option("--port", default=9096, show_default=True, help="Port of 127.0.0.1 at which the SuperLink asks.")
def hub(folder: Path, port: int) -> None:
    """Serve signed apps in DIR to a SuperLink on this machine, until the command is stopped.

    Set FLWR_SUPERGRID_API_URL=http://127.0.0.1:PORT in the SuperLink's environment.
    """
    with options.needs_extra("flower"):
        from pyro_fed.deployment.flower.apps import serve_apps

    server = serve_apps(folder, port)
    click.echo(f"Apps of {folder} at http://127.0.0.1:{server.server_port}")
    server.serve_forever()

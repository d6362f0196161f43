"""Flower's ServerApp: the round loop of `pyro_fed.run`, with the clients that have joined."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pyro_fed.algorithm.privacy import Private
from pyro_fed.conventions.output import write_result
from pyro_fed.conventions.progress import Progress
from pyro_fed.deployment.flower.configuration import Configuration, check_options, read_configuration
from pyro_fed.deployment.flower.executor import Flower
from pyro_fed.deployment.flower.joining import Roll, wait_for_clients
from pyro_fed.deployment.flower.secure import SecAgg, check_secure
from pyro_fed.deployment.remote.clients import run_at_clients
from pyro_fed.deployment.remote.questions import LOO, check_questions, with_answer, with_loo
from pyro_fed.deployment.remote.remote_federation import RemoteFederation
from pyro_fed.deployment.review import named_digest, site_entries, study_review, write_review
from pyro_fed.errors import SettingError, StoppedError
from pyro_fed.policy import Setup, chain_of, resolve_for_run, stages_of
from pyro_fed.recipes import library
from pyro_fed.recipes import recipe as recipes
from pyro_fed.recipes.library import labels_in, load_model
from pyro_fed.results.inference_data import check_savable
from pyro_fed.runtime.checkpoint import Checkpoint, latest, state_files
from pyro_fed.runtime.run import check_folders, check_numbers, check_seconds
from pyro_fed.runtime.start import is_result, read_start

#: The log that Flower shows the operator, and streams to the user who has started the run.
LOG = logging.getLogger("flwr")
#: Ending of the file for the result of a run that was stopped.
STOPPED = ".stopped.nc"


def server_app(
    model: str | Path,
    recipe: str | Path,
    template: Any = None,
    secure_aggregation: SecAgg | None = None,
    **options: Any,
) -> ServerApp:
    """Flower's ServerApp, which runs a recipe and writes its result.

    The run's configuration (see `pyro_fed.deployment.flower.configuration`) must have `num-clients`, the number of
    clients to wait for. It may also have `rounds`, `num-draws`, `seed`, `timeout` and `wait` in seconds, `compile`,
    `min-clients`, `schedule`, `graph`, `combination`, `secure-aggregation`, `checkpoint`, `resume`, `start`, `audit`,
    `loo`, `influence`, `leave-one-client-out`, `estimands`, and `out`, the file for the result. These replace the app's
    and the recipe's values.

    Args:
        model: the model's file, or its name in the library.
        recipe: the recipe's file, or its name in the library.
        template: the model's positional arguments with one made-up row, if a row of ones does not suit the model.
        secure_aggregation: sums by Flower's SecAgg+ in place of the clients' messages; see `SecAgg`.
        **options: arguments of `pyro_fed.run`, such as `min_clients=3` or `combination=pf.Private(...)`; values of the
            run's configuration replace them.

    Raises:
        SettingError: `run` has no such argument, or a deployment sets it itself.

    Example:
        >>> app = server_app("model.py", "recipe.toml", min_clients=3, checkpoint="/var/lib/pyro_fed/trial")
    """
    own = check_options(options)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = read_configuration(context.run_config, own, secure_aggregation)
        out, start = Path(settings.out).absolute(), _start_digest(settings.options.get("start"))
        try:
            result, roll = _serve(grid, model, recipe, settings, template)
        except StoppedError as error:
            if error.result is not None:
                kept = out.with_name(out.stem + STOPPED)
                write_result(error.result, kept)
                LOG.error("The run was stopped; its result so far is in %s", kept)
            raise
        write_result(result, out)
        _write_review(result, out, model, recipe, settings, roll, start)
        LOG.info("Written to %s; read it by arviz.from_netcdf(%r)", out, str(out))

    return app


def serve(grid: Grid, model: str | Path, recipe: str | Path, settings: Configuration, template: Any = None) -> Any:
    """The result of a recipe run with the clients that join, without the groups that need rows; and the answers."""
    return _serve(grid, model, recipe, settings, template)[0]


def _serve(
    grid: Grid, model: str | Path, recipe: str | Path, settings: Configuration, template: Any
) -> tuple[Any, Roll]:
    """The result of `serve`, and the clients."""
    module, chosen = load_model(model, with_data=False), recipes.load(recipe)
    settings.run_options(chosen, settings.num_clients)  # its errors are raised before the wait
    options, checkpoint = settings.options, settings.options.get("checkpoint")
    _check_before_the_wait(settings)
    known = Roll.from_checkpoint(Path(checkpoint)) if checkpoint and options.get("resume") else None
    roll = wait_for_clients(
        grid, settings.num_clients, options.get("min_clients"), settings.wait, settings.timeout, known
    )
    federation = RemoteFederation(module.model, module.PLATE, roll.clients, template, **labels_in(module))
    check_savable(federation.problem)
    algorithm, options = settings.run_options(chosen, len(roll.clients))
    if settings.secure is not None:
        if options.get("combination") is not None:
            raise SettingError(
                f"{options['combination']} looks at single clients' messages, which secure aggregation hides from the "
                "server: choose one of the two"
            )
        for stage in stages_of(algorithm, federation.problem, options.get("graph")):
            named = resolve_for_run(stage.algorithm, federation.problem, Setup(options.get("graph"))).algorithm
            check_secure(chain_of(named, federation.problem))
    _check_sums_of_single_clients(settings, options.get("combination"))
    check_questions(federation, module, settings.estimands, settings.loo)
    executor = Flower(grid, roll, settings.timeout, checkpoint is not None, settings.secure)
    LOG.info("%s with %d clients: %s", type(algorithm).__name__, len(roll.clients), roll)
    if settings.secure is not None:
        LOG.info("Secure aggregation: numbers are rounded to %.2g", settings.secure.resolution(len(roll.clients)))
    if checkpoint:
        roll.keep(Path(checkpoint))
        LOG.info("The state after every round is kept in %s", Path(checkpoint).absolute())
    result = run_at_clients(algorithm, federation, executor, {"compile": "trace", "progress": say, **options})
    before = set(result.attrs)
    if settings.loo is not None:
        result = with_loo(result, federation, Flower(grid, roll, settings.timeout), settings.loo)
    for name in (*settings.about_clients, *settings.estimands):
        result = with_answer(result, federation, Flower(grid, roll, settings.timeout), module, name)
    for name in sorted(set(result.attrs) - before):
        LOG.error("%s: %s", name.replace("_", " "), result.attrs[name])
    return result, roll


def _start_digest(start: str | None) -> str | None:
    """Name and SHA-256 of the file from which a run starts, a result or the latest state of a checkpoint."""
    if start is None or not Path(start).exists():  # which `run` reports
        return None
    path = Path(start)
    files = [path] if path.is_file() else state_files(path)
    return named_digest(files[-1]) if files else None


def _write_review(
    result: Any,
    out: Path,
    model: str | Path,
    recipe: str | Path,
    settings: Configuration,
    roll: Roll,
    start: str | None,
) -> None:
    """Write what a reviewer asks beside the result; each site's own ledger has its rules and what left in detail."""
    options = {**settings.options, **settings.specs, "seed": int(result.attrs["seed"])}
    questions = [*([] if settings.loo is None else [LOO]), *settings.about_clients, *settings.estimands]
    sites = site_entries(result)
    for client in roll.clients:
        rules = roll.rules.get(client.name, set())
        own = {name: sorted({one[at] for one in rules}) for at, name in enumerate(("policy", "approval"))}
        sites[client.name] = {"rows": client.num_rows, **sites[client.name], **own}
    review = study_review(
        out,
        model=named_digest(library.find_model(model)),
        recipe=named_digest(library.find_recipe(recipe)),
        options=options,
        sites=sites,
        questions=questions,
        start=start,
        secure_aggregation=None if settings.secure is None else str(settings.secure),
    )
    LOG.info("For a reviewer: %s", write_review(review, out))


def _check_sums_of_single_clients(settings: Configuration, combination: Any) -> None:
    """Refuse questions to which clients answer with their own sums, where secure aggregation or privacy hides these."""
    names = [*([] if settings.loo is None else [LOO]), *settings.about_clients]
    names += ["estimands"] if settings.estimands else []
    if names and (settings.secure is not None or isinstance(combination, Private)):
        hidden = (
            "secure aggregation hides"
            if settings.secure is not None
            else f"{combination} counts the loss of privacy by"
        )
        raise SettingError(
            f"{names[0]} shows the server each client's own sums over its rows, without noise, and {hidden} what "
            "clients send: choose one of the two"
        )


def _check_before_the_wait(settings: Configuration) -> None:
    """Refuse before the wait what `run` would refuse once all clients have joined."""
    options, checkpoint = settings.options, settings.options.get("checkpoint")
    rounds, draws = (options.get(name) for name in ("num_rounds", "num_draws"))
    check_numbers(
        1 if rounds is None else rounds,
        1 if draws is None else draws,
        options.get("seed", 0),
        options.get("min_clients"),
        settings.num_clients,
        options.get("num_threads", 1),
    )
    check_seconds(options.get("max_seconds"))
    check_folders(start=options.get("start"))
    if options.get("start") is not None:
        found = read_start(options["start"])
        if not is_result(found):
            latest(Path(found))
    if checkpoint:
        Checkpoint(Path(checkpoint), {}, options.get("resume", False)).close()
    elif options.get("resume"):
        raise SettingError("resume = true needs checkpoint, the folder that holds the state of the run")


def say(progress: Progress) -> None:
    """Log a line after every round."""
    with suppress(ValueError):  # a stream that is closed while the run ends
        LOG.info("%s%s", progress, " (ended)" if progress.finished else "")

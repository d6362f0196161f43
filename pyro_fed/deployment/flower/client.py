"""Flower's ClientApp. Its work is done by `site`, which is imported with the first message: torch takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from pyro_fed.deployment.flower.leaving import Leaving
from pyro_fed.deployment.flower.mod import asks_for_a_sum, handed_on

if TYPE_CHECKING:
    from pyro_fed.deployment.flower.site import Site
    from pyro_fed.deployment.remote.site import LoadRows


def client_app(
    model: str | Path,
    recipe: str | Path | Sequence[str | Path],
    load_rows: LoadRows,
    secure: bool = False,
    questions: bool = True,
) -> ClientApp:
    """Flower's ClientApp for a model and a recipe.

    It is a part of an app, which comes from whoever starts a run. So `secure` and `questions` bind at a hospital whose
    node runs only apps that the hospital has signed (`--trusted-entities`, `pyro-fed flower sign`), and elsewhere an
    honest operator alone.

    Where the node's configuration has `policy="/path/policy.toml"`, every reply is judged by these rules before it
    leaves, and the site's ledger beside that file has a line for each. If the site has approved a model and recipes
    (`pyro-fed node approve`), the app's are compared with them before the model is imported, and the site's own copies
    are run.

    An order of the server that is not one of this recipe, or does not fit this client's rows, is refused before it is
    unpacked. Of an exception, whoever raises it, the server gets the client's name, the exception's class, and file and
    line of the user's code; its text, which may have values of rows in it, goes to the client's own log.

    Args:
        model: the model's file, or its name in the library.
        recipe: the recipe's file, or its name in the library; or several, among which the server chooses.
        load_rows: a function of the model's module and Flower's `node_config` that returns the model's positional
            arguments, with this client's rows.
        secure: only answer in secure aggregation, in which the server gets masked numbers and their sum.
        questions: also answer questions besides the recipe: for the audit and `influence` the summed log-likelihood of
            its rows, at no more than 4000 draws a message; for `loo` sums of leave-one-out.

    Example:
        >>> app = client_app("model.py", "recipe.toml", lambda model, node_config: read_rows(node_config["name"]))
    """
    given = [recipe] if isinstance(recipe, str | Path) else list(recipe)
    made: list[Site] = []

    def site() -> Site:
        if not made:
            from pyro_fed.deployment.flower.site import Site

            made.append(Site(model, given, load_rows, questions, secure=secure))
        return made[0]

    app = ClientApp(mods=[Leaving(site), handed_on])

    @app.query()
    def describe(message: Message, context: Context) -> Message:
        from pyro_fed.density.compiling.compiler import threads
        from pyro_fed.deployment.flower.wire import SETTINGS

        with threads(1):
            return Message(RecordDict({SETTINGS: site().describe(context)}), reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        import torch

        from pyro_fed.density.compiling.compiler import threads

        with threads(1), torch.no_grad():
            return Message(site().work(message.content, context, asks_for_a_sum(message)), reply_to=message)

    return app

"""Checks of single methods: pure functions between flat dictionaries of tensors, of fixed shapes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.federation.federation import Federation
from pyro_fed.testing import problems
from pyro_fed.testing.case import NUM_FORM_ROUNDS, Case, Observation, require

#: Name of an entry of a message → its shape for one client, and its dtype.
Form = dict[str, tuple[tuple[int, ...], torch.dtype]]
FORM = "A message's form follows from the model and the settings, not from the rows or the round: pad what differs"


def check_inputs_are_unchanged(algorithm: Algorithm, case: Case) -> None:
    """No method changes a tensor among its arguments."""
    observation = case.observation
    require(
        not observation.changed,
        "arguments that are as before after a call",
        "; ".join(f"`{method}` changed its argument {where}" for method, where in observation.changed.items()),
        "Return a new dictionary of new tensors: {**shared, 'point': shared['point'] + step}, and no +=",
    )
    observation.ended()


def check_no_hidden_randomness(algorithm: Algorithm, case: Case) -> None:
    """Equal arguments give equal results to the bit, and no method draws from torch's global generator."""
    observation = case.observation
    require(
        not observation.global_draws and not observation.unrepeatable,
        "methods that draw from the generator or the noise that they are given, and from nothing else",
        "; ".join(
            [f"`{name}` drew from torch's global generator" for name in sorted(observation.global_draws)]
            + [f"`{name}` gave another result for equal arguments" for name in sorted(observation.unrepeatable)]
        ),
        "Draw a client's random numbers in `draw_noise`, the server's from the `generator` of `init` and `sample`",
    )
    observation.ended()


def check_order_of_messages(algorithm: Algorithm, case: Case) -> None:
    """`combine` returns the same state for any order of the messages."""
    require(
        not case.observation.ordered,
        "a state that does not depend on the order of the messages",
        f"another {', '.join(map(repr, sorted(case.observation.ordered)))} with the messages in the opposite order",
        "Combine messages by what is symmetric in the clients: a sum weighted by `weights`, a product, a median",
    )
    case.observation.ended()


def check_states_are_tensors(algorithm: Algorithm, case: Case) -> None:
    """States are flat dictionaries of tensors, and keep their names and dtypes from round to round."""
    observation = case.observation
    for call in observation.calls:
        if call.method == "init":
            parts = {"server's state": call.result[0], "clients' states": call.result[1]}
        elif call.method == "local_step":
            parts = dict(zip(("messages", "clients' states", "figures"), call.result, strict=True))
        elif call.method in ("download", "combine", "prepare", "refine", "settle"):
            parts = {"result": call.result}
        else:
            continue
        for what, state in parts.items():
            _check_flat(call.method, what, state)
    for first, then in _server_states(observation):
        whole = {**first, **then} if isinstance(algorithm, OnGraph) else then  # agents' other entries are unchanged
        differences = _form_differences(first, whole)
        require(
            not differences,
            "`combine` to keep the names and dtypes of the server's state",
            differences,
            "Return every entry of `shared`, in its dtype: new tensors as shared['point'].new_zeros(...), no float64 "
            "constants, no .float()",
        )
    for call in observation.of("local_step"):
        differences = _form_differences(call.args[2], {**call.args[2], **call.result[1]})
        require(
            not differences,
            "`local_step` to keep the dtypes of a client's state, and to add no names",
            differences,
            "Give every entry of a client's state in `init`, in the dtype that it has later",
        )
    observation.ended()


def check_leading_axes(algorithm: Algorithm, case: Case) -> None:
    """Clients' states, messages and figures have the clients on their first axis."""
    observation = case.observation
    for call in observation.of("init"):
        _check_leading_axis("init", "clients' states", call.result[1], call.args[1])
    for call in observation.of("download"):
        _check_leading_axis("download", "result", call.result, len(call.args[1]))
    for call in observation.of("local_step"):
        count = len(call.args[3].num_rows)
        for what, state in zip(("messages", "clients' states", "figures"), call.result, strict=True):
            _check_leading_axis("local_step", what, state, count)
    observation.ended()


def check_messages_have_one_form(algorithm: Algorithm, case: Case) -> None:
    """Messages are finite, and those of all clients and rounds have the same names, shapes and dtypes."""
    form = _check_messages(case.observation, "the clients")
    if case.given is None and not algorithm.pooled:  # pooled data never travel
        one_row_form = _check_messages(case.observed_one_row, "three clients of one row")
        require(
            form == one_row_form,
            f"messages of clients of 3, 7 and 13 rows to have the form of those of clients of one row, {one_row_form}",
            f"{form}",
            FORM,
        )


def check_figures(algorithm: Algorithm, case: Case) -> None:
    """`monitor` returns numbers by name, with a finite last `change`; `converged` returns True, False or None."""
    observation = case.observation
    for call in observation.of("monitor"):
        no_numbers = {name: value for name, value in call.result.items() if not isinstance(value, float | int)}
        require(
            not no_numbers,
            "`monitor` to give a float for each name",
            ", ".join(f"{name} = {value!r}" for name, value in no_numbers.items()),
            "Convert tensors by float(...)",
        )
    last = observation.of("monitor")[-1].result if observation.of("monitor") else {}
    require(
        math.isfinite(last.get("change", 0.0)),
        "a finite `change` in the last round",
        f"{last.get('change')}",
        "Leave `change` out of a round that has none",
    )
    for call in observation.of("converged"):
        require(
            call.result is None or isinstance(call.result, bool),
            "`converged` to give True, False or None",
            repr(call.result),
            "Convert it by bool(...)",
        )
    observation.ended()


def check_draws(algorithm: Algorithm, case: Case) -> None:
    """`sample` returns finite draws (chain, draw, D) in the problem's dtype."""
    observation = case.observation
    (problem,) = {id(call.args[0]): call.args[0] for call in observation.of("init")}.values()
    for call in observation.of("sample"):
        draws, num_draws = cast(Tensor, call.result), call.args[1]
        shape = tuple(draws.shape)
        require(
            draws.dim() == 3 and shape[2] == problem.dim and min(shape) >= 1,
            f"draws of shape (chain, draw, {problem.dim})",
            f"{shape}",
            "A point is shared['point'].expand(1, 1, -1), independent draws have one chain",
        )
        require(
            draws.dtype == problem.dtype and bool(draws.isfinite().all()),
            f"finite draws of dtype {problem.dtype}",
            f"{int((~draws.isfinite()).sum())} that are not finite, of dtype {draws.dtype}",
            "Draw in the dtype of the state",
        )
        require(
            algorithm.draws_are != "independent" or shape[1] == num_draws,
            f"{num_draws} draws a chain, as asked for",
            f"{shape[1]}",
            "Give `num_draws` draws, or say by `draws_are` that they are 'particles', 'chains' or a 'point'",
        )
    observation.ended()


def check_empty_client(algorithm: Algorithm, case: Case) -> None:
    """A client without rows sends finite messages, and the answer is finite."""
    _check_small(
        case,
        problems.with_empty_client(),
        "clients of 3, 0 and 4 rows",
        "A sum over no rows is zero: do not divide by `data.num_rows` without clamp_min(1)",
    )


def check_one_row_clients(algorithm: Algorithm, case: Case) -> None:
    """The algorithm works with clients of one row."""
    cure = "A client's rows alone may leave parameters undetermined: use the cavity or the prior"
    _check_finite(case.observed_one_row, "three clients of one row", cure)


def check_one_client(algorithm: Algorithm, case: Case) -> None:
    """The algorithm works with a single client."""
    _check_small(
        case, problems.one_client(), "a single client", "Everything has a leading axis over clients, also of one"
    )


def check_single_precision(algorithm: Algorithm, case: Case) -> None:
    """With data in float32 messages and draws are finite; the server may compute in float64."""
    cure = "Make tensors in `problem.dtype`, as by new_zeros(...) of one that is there"
    _check_small(case, problems.single_precision(), "data in float32", cure)


def _check_small(case: Case, federation: Federation, what: str, cure: str) -> None:
    _check_finite(
        case.observe(federation, num_rounds=min(NUM_FORM_ROUNDS, case.rounds), executor="vectorised"), what, cure
    )


def _check_finite(observation: Observation, what: str, cure: str) -> None:
    """Raise a ContractError if messages or draws are not finite."""
    _check_messages(observation, what, cure)
    for call in observation.of("sample"):
        require(bool(call.result.isfinite().all()), f"finite draws with {what}", "draws that are not finite", cure)


def _check_messages(observation: Observation, what: str, cure: str = "") -> Form:
    """The form of all messages; raises a ContractError if they are not finite or have several forms."""
    forms: Form = {}
    for call in observation.of("local_step"):
        for name, value in call.result[0].items():
            require(
                not value.is_floating_point() or bool(value.isfinite().all()),
                f"finite messages of {what}",
                f"{int((~value.isfinite()).sum())} numbers of {name!r} that are not finite",
                cure or "Let a client that cannot answer raise an error, or send what changes nothing",
            )
    for call in observation.of("local_step"):
        messages: dict[str, Tensor] = call.result[0]
        form = {name: (tuple(value.shape[1:]), value.dtype) for name, value in messages.items()}
        require(not forms or form == forms, f"messages of one form from {what}: {forms}", f"{form}", FORM)
        forms = form
    observation.ended()
    return forms


def _check_flat(method: str, what: str, state: Any) -> None:
    fits = isinstance(state, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    require(
        fits,
        f"`{method}` to give a flat dictionary of tensors by name ({what})",
        _kinds(state),
        "Put numbers into tensors, and nested states under names of their own",
    )


def _kinds(state: Any) -> str:
    if not isinstance(state, dict):
        return type(state).__name__
    return ", ".join(
        f"{name!r}: {type(value).__name__}" for name, value in state.items() if not isinstance(value, Tensor)
    )


def _check_leading_axis(method: str, what: str, state: dict[str, Tensor], count: int) -> None:
    wrong_shapes = {name: tuple(value.shape) for name, value in state.items() if value.shape[:1] != (count,)}
    require(
        not wrong_shapes,
        f"`{method}` to give {what} with {count} clients on the first axis",
        ", ".join(f"{name!r} of shape {shape}" for name, shape in wrong_shapes.items()),
        "One entry for each client: `init` (K, ...), `local_step` and `download` (C, ...)",
    )


def _server_states(observation: Observation) -> Iterable[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """The server's state at the start, with each later one."""
    first = next((call.result[0] for call in observation.of("init")), None)
    if first is not None:
        yield from ((first, call.result) for call in observation.of("combine"))


def _form_differences(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    """Entries that are missing, are new, or have another form."""
    differences = [f"{name!r} is gone" for name in before.keys() - after.keys()]
    for name, value in after.items():
        if name in before and value.dtype != before[name].dtype:
            differences.append(f"{name!r} was {before[name].dtype} and is {value.dtype}")
    return ", ".join(sorted(differences))

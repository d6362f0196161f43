"""`pf.testing`: a correct algorithm passes, and each planted fault is found by the check that is named for it."""

import functools
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch.func import grad, hessian

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm, Batch
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.testing.problems import line, line_data
from pyro_fed.testing.suite import _place


@dataclass(frozen=True, kw_only=True)
class Newton(Algorithm):
    """Newton's method to the mode, and the Gaussian of the curvature there: exact for a Gaussian posterior."""

    step_size: float = 0.9

    def __post_init__(self):
        check_positive(self, "step_size")

    def default_rounds(self, num_clients):
        return 30

    def init(self, problem, num_clients, generator, start):
        point = problem.init(1, generator)[0]
        zero = torch.zeros_like(point)
        server = {"point": point, "slope": zero, "precision": torch.eye(len(point), dtype=point.dtype)}
        return server, {"visits": point.new_zeros(num_clients)}

    def prepare(self, problem, shared):
        at = shared["point"]
        return {**shared, "slope": grad(problem.log_prior)(at), "precision": -hessian(problem.log_prior)(at)}

    def download(self, shared, clients):
        return {"point": shared["point"].expand(len(clients), -1)}

    def local_step(self, problem, shared, local, data, noise):
        derivatives = problem.mapped(self.derivatives, (0, Batch(0, 0)))
        slope, curvature = derivatives(shared["point"], data.full_batch())
        return {"slope": slope, "precision": -curvature}, {"visits": local["visits"] + 1}, {}

    def derivatives(self, problem, point, batch):
        return grad(lambda z: problem.log_lik(z, batch))(point), hessian(lambda z: problem.log_lik(z, batch))(point)

    def combine(self, shared, messages, weights):
        slope, precision = (shared[name] + messages[name].sum(0) for name in ("slope", "precision"))
        step = self.step_size * torch.linalg.solve(precision, slope)
        return {"point": shared["point"] + step, "slope": slope, "precision": precision}

    def monitor(self, before, after):
        return {"change": float((after["point"] - before["point"]).norm())}

    def converged(self, figures):
        return figures[-1]["change"] < 1e-9

    def sample(self, shared, num_draws, generator):
        white = torch.randn(num_draws, len(shared["point"]), generator=generator, dtype=shared["point"].dtype)
        root = torch.linalg.cholesky(torch.linalg.inv(shared["precision"]))
        return (shared["point"] + white @ root.T).unsqueeze(0)


class MutatesState(Newton):
    def combine(self, shared, messages, weights):
        after = super().combine(shared, messages, weights)
        shared["point"].copy_(after["point"])
        return {**after, "point": shared["point"]}


class GlobalRandomness(Newton):
    def local_step(self, problem, shared, local, data, noise):
        messages, *rest = super().local_step(problem, shared, local, data, noise)
        return {**messages, "slope": messages["slope"] * (1 + 1e-3 * torch.randn(1))}, *rest


class RestoredRandomness(Newton):
    """Leaves torch's generator as it was, so that it draws the same again from the same state of it."""

    def local_step(self, problem, shared, local, data, noise):
        messages, *rest = super().local_step(problem, shared, local, data, noise)
        with torch.random.fork_rng(devices=[]):
            return {**messages, "slope": messages["slope"] * (1 + 1e-3 * torch.randn(1))}, *rest


class HiddenState(Newton):
    """Not the same in the second call as in the first, though nothing is drawn."""

    calls: ClassVar[list] = []

    def local_step(self, problem, shared, local, data, noise):
        self.calls.append(1)
        messages, *rest = super().local_step(problem, shared, local, data, noise)
        return {**messages, "slope": messages["slope"] / len(self.calls)}, *rest


class FirstClientCountsTwice(Newton):
    def combine(self, shared, messages, weights):
        return super().combine(
            shared, {**messages, "slope": torch.cat([messages["slope"], messages["slope"][:1]])}, weights
        )


class NarrowDraws(Newton):
    def sample(self, shared, num_draws, generator):
        return super().sample({**shared, "precision": shared["precision"] / 0.87**2}, num_draws, generator)


class MessagesOfRows(Newton):
    def local_step(self, problem, shared, local, data, noise):
        messages, *rest = super().local_step(problem, shared, local, data, noise)
        return {**messages, "weight": data.full_batch().weight}, *rest


class NaNWithoutRows(Newton):
    def local_step(self, problem, shared, local, data, noise):
        messages, *rest = super().local_step(problem, shared, local, data, noise)
        rows = data.num_rows.unsqueeze(-1).to(messages["slope"])
        return {**messages, "slope": messages["slope"] / rows * rows}, *rest


class Unchecked(Newton):
    def __post_init__(self):
        pass


class IgnoredSetting(Newton):
    """A setting that is checked, and then forgotten."""

    momentum: float = 0.9

    def __post_init__(self):
        check_positive(self, "step_size", "momentum")


class CountsOutsideTheState(Newton):
    """Begins anew in `init`, so that a whole run is the same each time."""

    rounds: ClassVar[list] = []

    def init(self, problem, num_clients, generator, start):
        self.rounds.clear()
        return super().init(problem, num_clients, generator, start)

    def monitor(self, before, after):
        self.rounds.append(1)
        return super().monitor(before, after)

    def download(self, shared, clients):
        return {"point": super().download(shared, clients)["point"] + 1e-3 * len(self.rounds)}


class NarrowState(Newton):
    def combine(self, shared, messages, weights):
        after = super().combine(shared, messages, weights)
        return {**after, "point": after["point"].float().double(), "slope": after["slope"].float()}


class FlatDraws(Newton):
    def sample(self, shared, num_draws, generator):
        return super().sample(shared, num_draws, generator)[0]


class NestedState(Newton):
    def init(self, problem, num_clients, generator, start):
        server, local = super().init(problem, num_clients, generator, start)
        return {**server, "more": {"count": torch.zeros(())}}, local


class NoClientsAxis(Newton):
    def init(self, problem, num_clients, generator, start):
        server, local = super().init(problem, num_clients, generator, start)
        return server, {"visits": local["visits"][:1]}


class TensorFigures(Newton):
    def monitor(self, before, after):
        return {"change": (after["point"] - before["point"]).norm()}

    def converged(self, figures):
        return None


class SeedUnused(Newton):
    def init(self, problem, num_clients, generator, start):
        server, local = super().init(problem, num_clients, generator, start)
        return {**server, "point": torch.zeros_like(server["point"])}, local

    def sample(self, shared, num_draws, generator):
        return super().sample(shared, num_draws, torch.Generator().manual_seed(0))


class LargestOfClients(Newton):
    """A step that depends on who else is in the call."""

    def local_step(self, problem, shared, local, data, noise):
        messages, *rest = super().local_step(problem, shared, local, data, noise)
        return {**messages, "slope": messages["slope"] - 0.1 * messages["slope"].amax(0)}, *rest


class KeepsTooMuch(pf.FedEP):
    """The clients keep twice what the server took of their messages."""

    start: str = "prior"

    def settle(self, told, local):
        kept = super().settle(told, local)
        return {**kept, "precision": 2 * kept["precision"]}


class ForgottenCapability(Algorithm):
    """`feedback` and `settle` without `SiteKeeping`."""

    default_rounds, init, download = Newton.default_rounds, Newton.init, Newton.download
    prepare, local_step, derivatives = Newton.prepare, Newton.local_step, Newton.derivatives
    combine, sample, step_size = Newton.combine, Newton.sample, 0.9

    def feedback(self, after, clients):
        return {}, {}

    def settle(self, told, local):
        return local


class ContributionsOfItself(Newton):
    """How far clients move the answer, on the algorithm in place of its contributions."""

    def client_shift_sds(self, shared, ledger, sent):
        return sent.messages["slope"].norm(dim=-1)


#: Fault → the check that is to find it.
FAULTS = {
    MutatesState: "check_inputs_are_unchanged",
    GlobalRandomness: "check_no_hidden_randomness",
    RestoredRandomness: "check_no_hidden_randomness",
    HiddenState: "check_no_hidden_randomness",
    FirstClientCountsTwice: "check_order_of_messages",
    NarrowDraws: "check_conjugate_posterior",
    MessagesOfRows: "check_messages_have_one_form",
    NaNWithoutRows: "check_empty_client",
    Unchecked: "check_settings_are_checked",
    IgnoredSetting: "check_settings_have_effect",
    CountsOutsideTheState: "check_resume",
    NarrowState: "check_states_are_tensors",
    FlatDraws: "check_draws",
    NestedState: "check_states_are_tensors",
    NoClientsAxis: "check_leading_axes",
    TensorFigures: "check_figures",
    SeedUnused: "check_seed",
    LargestOfClients: "check_executors_agree",
    KeepsTooMuch: "check_unused_messages",
    ForgottenCapability: "check_capabilities_are_taken_up",
    ContributionsOfItself: "check_capabilities_are_taken_up",
}
#: Those that no other check can see.
ALONE = {NarrowDraws, Unchecked, IgnoredSetting, NaNWithoutRows, SeedUnused}


@functools.cache
def frozen(kind):
    return dataclass(frozen=True, kw_only=True)(kind)()


@pf.testing.parametrize_with_checks([Newton(), Newton(step_size=0.5)])
def test_a_correct_algorithm_passes(algorithm, check):
    check(algorithm)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_found(kind):
    found = failures(frozen(kind), None if kind in ALONE else FAULTS[kind])
    assert FAULTS[kind] in found
    assert kind not in ALONE or list(found) == [FAULTS[kind]], found
    assert "xpected" in found[FAULTS[kind]] or kind in {ForgottenCapability, ContributionsOfItself}


def failures(algorithm, only=None):
    """Name of a check → what it says; of all checks, or of one."""
    found = {}
    for name, check in pf.testing.checks(algorithm):
        if only is not None and name != only:
            continue
        try:
            check(algorithm)
        except pf.errors.ContractError as error:
            assert str(error).startswith(f"{name}: ")
            found[name] = str(error)
    return found


def test_one_error_lists_all_that_failed():
    @dataclass(frozen=True, kw_only=True)
    class Two(Unchecked, NarrowDraws):
        pass

    with pytest.raises(pf.errors.ContractError) as caught:
        pf.testing.check_algorithm(Two())
    first, *lines = str(caught.value).splitlines()
    assert first == f"Two() fails 2 of {len(dict(pf.testing.checks(Two())))} checks:"
    assert [line.split(":")[0] for line in lines] == ["- check_settings_are_checked", "- check_conjugate_posterior"]
    assert "received no such error from Two(step_size=nan), Two(step_size='no number')" in lines[0]
    assert "-13 %" in lines[1]


def test_what_a_check_says_stands_before_the_errors_that_follow_from_it():
    with pytest.raises(pf.errors.ContractError) as caught:
        pf.testing.check_algorithm(frozen(FlatDraws))
    _, first, *others = str(caught.value).splitlines()
    assert first.startswith("- check_draws: expected draws of shape (chain, draw, 2); received (8, 2)")
    assert others
    assert all("expected a run that ends well" in line for line in others)


def test_an_error_of_the_algorithm_is_told_with_its_line():
    @dataclass(frozen=True, kw_only=True)
    class Raises(Newton):
        def combine(self, shared, messages, weights):
            return {"point": shared["no_such_entry"]}

    found = failures(Raises(), "check_executors_agree")
    assert "KeyError: 'no_such_entry' (test_check_algorithm.py, line " in found["check_executors_agree"]


def test_an_error_in_a_module_of_the_package_is_told_with_its_line():
    with pytest.raises(KeyError) as caught:
        pf.FedAvg().combine({}, {}, torch.ones(1))
    assert re.fullmatch(r" \(fedavg\.py, line \d+, in `combine`\)", _place(caught.value, pf.FedAvg()))


@pytest.mark.parametrize("steps", [3, 9])
def test_noise_of_another_number_of_steps_is_named(steps):
    @dataclass(frozen=True, kw_only=True)
    class Jitters(Newton):
        def draw_noise(self, problem, num_rows, generator):
            return {"normal": torch.randn(steps, problem.dim, generator=generator, dtype=problem.dtype)}

        def local_step(self, problem, shared, local, data, noise):
            problem.scan(self.jitter, shared["point"], shared["point"], noise, 5)
            return super().local_step(problem, shared, local, data, noise)

        def jitter(self, problem, point, const, x):
            return point + 0 * x["normal"], ()

    said = failures(Jitters(), "check_leading_axes")["check_leading_axes"]
    assert f"inputs of 5 steps of `jitter`, (steps, C, ...); received xs['normal'] ({steps}, 1, 2)" in said


def test_a_step_that_returns_no_pair_is_named():
    @dataclass(frozen=True, kw_only=True)
    class NoPair(Newton):
        def local_step(self, problem, shared, local, data, noise):
            problem.scan(self.stay, {"a": shared["point"], "b": shared["point"]}, shared["point"], (), 2)
            return super().local_step(problem, shared, local, data, noise)

        def stay(self, problem, carry, const, x):
            return carry

    said = failures(NoPair(), "check_leading_axes")["check_leading_axes"]
    assert "expected `stay` to return (carry, out); received one dict. A step without an `out` returns" in said


def test_a_setting_that_a_branch_may_read_is_not_one_without_effect():
    @dataclass(frozen=True, kw_only=True)
    class Restarts(Newton):
        fall: float = 0.5

        def __post_init__(self):
            check_positive(self, "step_size", "fall")

        def converged(self, figures):
            return len(figures) > 10**6 and figures[-1]["change"] < self.fall

    assert not failures(Restarts(), "check_settings_have_effect")


def test_checks_that_an_algorithm_need_not_pass_are_left_out():
    pf.testing.check_algorithm(frozen(NarrowDraws), expected_failures={"check_conjugate_posterior": "narrow by design"})
    with pytest.raises(pf.errors.SettingError, match=r"there is no check 'check_sed'; did you mean .*check_seed"):
        pf.testing.check_algorithm(Newton(), expected_failures={"check_sed": ""})


def test_another_federation_and_number_of_rounds():
    federation = pf.Federation(line, line_data(12), plate="data", num_clients=2)
    pf.testing.check_algorithm(Newton(), federation=federation, num_rounds=2)


def test_pytest_is_loaded_where_it_is_asked_for():
    import subprocess
    import sys

    code = "import sys, pyro_fed as pf; pf.testing.check_algorithm; assert 'pytest' not in sys.modules"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False).returncode == 0

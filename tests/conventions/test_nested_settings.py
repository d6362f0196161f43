"""Settings of settings: names and instances, what is refused and with which cure, and how they are shown."""

import ast
import dataclasses
import inspect

import pytest
import torch

import pyro_fed as pf
from pyro_fed.conventions.nested_settings import (
    all_settings,
    changed_settings,
    explains_unknown,
    explicit_settings,
    settings_in,
    settings_line,
)
from pyro_fed.infer.averaging.optim import Optimiser
from pyro_fed.infer.ep.tilted import TiltedInference

NESTED = [pf.FedEP, pf.infer.FedSEP, pf.infer.FedPA, pf.infer.BCM, pf.infer.PVI, pf.FedAvg]


def test_the_names_are_those_of_the_classes():
    assert set(TiltedInference.kinds()) == {"newton", "laplace", "fisher", "mcmc", "identity", "ngvi", "svi", "ivon"}
    assert set(Optimiser.kinds()) == {"sgd", "adagrad", "adam"}
    assert all(kind.__name__ in dir(pf.infer.tilted) for kind in TiltedInference.kinds().values())


@pytest.mark.parametrize("name", sorted(TiltedInference.kinds()))
def test_a_name_stands_for_the_defaults(name):
    assert pf.FedEP(client=name) == pf.FedEP(client=TiltedInference.kinds()[name]())


def test_an_algorithm_may_have_defaults_of_its_own():
    assert (
        pf.infer.PVI(client="newton")
        == pf.infer.PVI()
        == pf.infer.PVI(client=pf.infer.tilted.Newton(steps=10, enough=0.1))
    )
    assert pf.FedAvg(server_optimiser="adam").server_optimiser.betas == (0.9, 0.99)
    assert pf.infer.Optimisers(server="adam").server.betas == (0.9, 0.999)


@pytest.mark.parametrize("algorithm", NESTED)
def test_the_signature_is_that_of_the_fields(algorithm):
    fields = {field.name: field.default for field in dataclasses.fields(algorithm)}
    parameters = inspect.signature(algorithm).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == fields
    assert len(fields) <= 15
    documented = inspect.getdoc(algorithm)
    assert all(f"\n    {name}: " in documented for name in fields)
    assert "Example:" in documented


@pytest.mark.parametrize("kind", [*TiltedInference.kinds().values(), *Optimiser.kinds().values(), pf.infer.StepControl])
def test_nested_settings_are_documented(kind):
    documented = inspect.getdoc(kind)
    assert all(f"\n    {field.name}: " in documented for field in dataclasses.fields(kind))
    assert "Example:" in documented


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """A base.

    Args:
        first: of the base.
        second: a list:

            - of one entry.
    """

    first: int = 1
    second: int = 2


@explains_unknown
@dataclasses.dataclass(frozen=True, kw_only=True)
class Derived(Described):
    """Derived.

    Args:
        third: its own.
        first: said anew,
            in two lines.

    Raises:
        SettingError: never.
    """

    third: int = 3


def test_help_shows_inherited_settings_as_the_nearest_class_describes_them():
    assert inspect.getdoc(Derived) == (
        "Derived.\n\nArgs:\n    first: said anew,\n        in two lines.\n"
        "    second: a list:\n\n        - of one entry.\n"
        "    third: its own.\n\nRaises:\n    SettingError: never."
    )
    undescribed = dataclasses.dataclass(frozen=True, kw_only=True)(type("Plain", (Described,), {"__doc__": "Plain."}))
    assert inspect.getdoc(explains_unknown(undescribed)) == (
        "Plain.\n\nArgs:\n    first: of the base.\n    second: a list:\n\n        - of one entry.\n\nRaises:\n"
        "    SettingError: a setting out of its range, unknown, or without effect beside the others."
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: pf.infer.SAGALD(control_variate=True),
            "^SAGALD has no setting 'control_variate': the gradients that are kept of every row are one; SGLD takes",
        ),
        (
            lambda: pf.FedEP(svi_steps=5),
            r"FedEP has no setting 'svi_steps', which is a setting of the tilted inference 'svi': "
            r"write FedEP\(client=pf.infer.tilted.SVI\(steps=5\)\)",
        ),
        (lambda: pf.FedEP(shrinkage=9.0), r"'mcmc': write FedEP\(client=pf.infer.tilted.MCMC\(shrinkage=9.0\)\)"),
        (lambda: pf.FedEP(memory=4), r"of step_control: write FedEP\(step_control=pf.infer.StepControl\(memory=4\)\)"),
        (lambda: pf.FedAvg(optimiser_momentum=0.5), r"FedAvg\(server_optimiser=pf.infer.optim.SGD\(momentum=0.5\)\)"),
        (lambda: pf.FedEP(fisher_step=5), r"did you mean FedEP\(client=pf.infer.tilted.NGVI\(fisher_steps=5\)\)"),
        (lambda: pf.FedEP(dampling=0.5), "FedEP has no setting 'dampling'; did you mean 'damping'"),
        (lambda: pf.infer.tilted.MCMC(step=5), "MCMC has no setting 'step'; did you mean 'steps'"),
        (lambda: pf.FedEP(client="mcm"), "no tilted inference is called client='mcm'; did you mean 'mcmc'"),
        (lambda: pf.FedEP(client=pf.infer.tilted.MCMC), "FedEP: client must be one of pf.infer.tilted, such as"),
        (lambda: pf.infer.Optimisers(server=3), "Optimisers: server must be one of pf.infer.optim, such as"),
        (
            lambda: pf.FedEP(optimisers="adam", damping=0.5),
            "FedEP: optimisers must be a pf.infer.Optimisers, received 'adam'",
        ),
        (lambda: pf.FedEP(step_control=None), "FedEP: step_control must be a pf.infer.StepControl, received None"),
        (lambda: pf.infer.PVI(client="mcmc"), "PVI: client must be 'newton', 'svi' or 'ivon'"),
    ],
)
def test_what_is_unknown_is_refused_with_the_cure(make, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        make()


STEPS, SGD = pf.infer.StepControl(memory=3), pf.infer.Optimisers(server="sgd")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.FedEP(client="mcmc", step_control=STEPS), "FedEP: step_control=.* has no effect: it controls only"),
        (lambda: pf.FedEP(optimisers=SGD, damping=0.5, step_control=STEPS), "the server's optimiser determines"),
        (
            lambda: pf.infer.FedSEP(optimisers=pf.infer.Optimisers(client="sgd"), damping=0.5),
            "its clients keep no state",
        ),
        (lambda: pf.infer.Optimisers(), "server or client must be an optimiser, received None"),
        (lambda: pf.infer.Optimisers(client="sgd", changes="mean"), "changes='mean' has no effect: .* set server"),
        (lambda: pf.infer.FedPA(tolerance=0.1), "FedPA has no setting 'tolerance': the clients' sites do not"),
        (lambda: pf.infer.BCM(start="laplace"), "BCM has no setting 'start': there is only one pass"),
        (lambda: pf.infer.tilted.MCMC(momentum=0.5), "MCMC: momentum=0.5 has no effect: .* sampler='sgd'"),
        (lambda: pf.FedEP(optimisers=SGD), "an optimiser needs its learning rate, damping"),
        (lambda: pf.infer.P2PFedAvg(damping=0.5), "P2PFedAvg has no setting .damping.: agents mix over the graph"),
    ],
)
def test_what_does_not_apply_is_refused(make, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        make()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (pf.infer.tilted.Newton, {"steps": 0}),
        (pf.infer.tilted.Laplace, {"steps": 0}),
        (pf.infer.tilted.Laplace, {"fractions": ()}),
        (pf.infer.tilted.MCMC, {"burn_in": 1000}),
        (pf.infer.tilted.MCMC, {"thin": 0}),
        (pf.infer.tilted.MCMC, {"sampler": "hmc"}),
        (pf.infer.tilted.MCMC, {"shrinkage": 0.0}),
        (pf.infer.tilted.MCMC, {"sampler": "sgd", "momentum": 1.0}),
        (pf.infer.tilted.Identity, {"scale": -1.0}),
        (pf.infer.tilted.NGVI, {"fisher_samples": 5}),
        (pf.infer.tilted.NGVI, {"fisher_decay": 1.1}),
        (pf.infer.tilted.SVI, {"betas": (0.9, 1.0)}),
        (pf.infer.tilted.SVI, {"batch_size": 0}),
        (pf.infer.optim.SGD, {"momentum": 1.0}),
        (pf.infer.optim.Adam, {"betas": (0.9,)}),
        (pf.infer.optim.Adagrad, {"eps": 0.0}),
        (pf.infer.StepControl, {"memory": 1}),
        (pf.infer.StepControl, {"reach": 0.0}),
    ],
)
def test_values_out_of_range_name_the_class_and_the_setting(kind, settings):
    with pytest.raises(pf.errors.SettingError, match=f"{kind.__name__}: {list(settings)[-1]} must be|must lie in"):
        kind(**settings)


def test_repr_shows_what_differs_from_the_defaults():
    assert repr(pf.infer.tilted.MCMC()) == "MCMC()"
    assert repr(pf.infer.tilted.MCMC(thin=5, sampler="sgd")) == "MCMC(thin=5, sampler='sgd')"
    assert set(changed_settings(pf.FedEP(client="mcmc", damping=0.5))) == {"client", "damping"}


def one_guide(y):
    """A guide."""


def test_whole_settings_say_every_field_and_are_read_back():
    read = ast.literal_eval(repr(all_settings(pf.FedEP(client=pf.infer.tilted.Newton(steps=2)))))
    assert list(read) == [field.name for field in dataclasses.fields(pf.FedEP)]
    assert read["client"] == {"name": "newton", "steps": 2, "enough": 0.0, "begin": "q", "few_rows": None}
    assert read["step_control"]["growth"] == 2.0


def test_functions_and_tensors_are_the_same_text_in_every_process():
    assert all_settings(pf.FedEP(guide=one_guide))["guide"] == f"{__name__}.one_guide"
    one, other = (pf.infer.Given(torch.eye(2)[None] * scale, torch.ones(1, 2)) for scale in (1.0, 2.0))
    assert (
        settings_line(one)
        == settings_line(pf.infer.Given(torch.eye(2)[None], torch.ones(1, 2)))
        != settings_line(other)
    )
    assert "0x" not in settings_line(pf.FSGLD(surrogates=one)) + settings_line(pf.FedEP(guide=one_guide))


def test_described_settings_differ_where_any_does():
    assert settings_line(pf.FedEP()) != settings_line(pf.FedEP(client=pf.infer.tilted.Newton(steps=2)))
    assert settings_line(pf.FedEP()) != settings_line(pf.FedEP(step_control=STEPS))
    assert "tolerance=0.001" in settings_line(pf.FedEP())


def test_hints_name_nested_settings():
    assert settings_in(TiltedInference | str) is TiltedInference
    assert settings_in(pf.infer.StepControl) is pf.infer.StepControl
    assert settings_in(int | None) is None


def test_a_subclass_without_the_decorator_has_given_what_differs():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(pf.P2PVI):
        pass

    assert explicit_settings(Own(damping=0.5, tolerance=1e-4)) == {"damping"}

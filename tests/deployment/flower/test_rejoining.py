"""Nodes that go and come back: clients take part by their names and with their states; runs that are resumed."""

import warnings
from importlib.util import find_spec

import numpy as np
import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.errors import CheckpointError, QuorumError, SettingError, StoppedError
from pyro_fed.infer.ep import StepControl

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]

#: From the prior, so that no phase needs all clients, and damped: the model is conjugate, and would be done at once.
FEDEP = pf.FedEP(start="prior", tolerance=1e-12, damping=0.7, step_control=StepControl(memory=None))
SETTINGS = 'start = "prior"\ntolerance = 1e-12\ndamping = 0.7\nstep_control = {memory = "none"}'
RECIPE = {"FedEP": f"[settings]\n{SETTINGS}\n[run]\nnum_rounds = 8"}
STATELESS = {"FedSEP": "[run]\nnum_rounds = 6"}


@pytest.fixture
def case(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, RECIPE)

    def serve(faults, resume_of=None, **config):
        grid = resume_of or flower.grid(model, recipes, faults)
        grid.faults = faults
        given = {"num_clients": 3, "timeout": 0.05, "compile": "off", "audit": False, **config}
        settings = flower.read_configuration({key.replace("_", "-"): value for key, value in given.items()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return flower.serve(grid, model, recipes["FedEP"], settings), grid

    return serve


def undisturbed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(
            FEDEP,
            unequal_lines(),
            num_rounds=8,
            executor="sequential",
            compile="off",
            progress=False,
            log_likelihood=False,
            audit=False,
        )


@pytest.mark.parametrize("kind", ["restart", "renumber"])
def test_a_restarted_node_goes_on_with_the_servers_copy(case, kind, tmp_path):
    """Under its own number in the same round, under a new one from the next round on: the same fixed point."""
    found, _ = case({(2, 1): kind, (3, 0): kind}, checkpoint=str(tmp_path / "kept"))
    expected = undisturbed()
    away = (~found.federation["participated"].values).sum()
    assert away == (0 if kind == "restart" else 2)  # of different clients
    if kind == "restart":
        assert np.array_equal(found.posterior["w"].values, expected.posterior["w"].values)
    # What a damped round leaves of the error: 0.3 of it, of the client that was away twice two rounds' more.
    np.testing.assert_allclose(found.posterior["w"].values, expected.posterior["w"].values, atol=10 * 0.3**6)


def test_without_a_copy_a_restarted_node_stays_away(case):
    """Its site is in q, and nobody can tell it which: taken in afresh its rows would count twice."""
    found, _ = case({(2, 1): "restart"})
    away = ~found.federation["participated"].values
    assert away[2:, 1].all() and away.sum() == 6
    assert "the server has no copy" in found.attrs["warnings"]


def test_a_node_that_is_started_anew_before_it_has_worked_is_taken_in(case):
    found, _ = case({(0, 2): "restart"})
    assert found.federation["participated"].values.all()


def test_a_node_that_stays_away_costs_no_deadline(case, tmp_path):
    """Flower says that it is gone: the run goes on with the others at once, and a checkpoint needs no word of it."""
    found, grid = case({(1, 0): "down"}, min_clients=2, checkpoint=str(tmp_path / "kept"))
    assert (~found.federation["participated"].values).sum() == 7
    assert "is not connected" in found.attrs["warnings"]
    assert len(grid.get_nodes()) == 2


def test_a_stranger_a_double_and_a_changed_client_are_not_taken_in(flower, caplog):
    from pyro_fed.deployment.flower.joining import Roll

    other = flower.GOOD.__class__(**{**flower.GOOD.__dict__, "name": "1"})
    roll = Roll([flower.GOOD, other], [10, None])
    assert roll.place(11, flower.GOOD.__class__(**{**flower.GOOD.__dict__, "name": "x"}), {10, 11}) is None
    assert roll.place(12, flower.GOOD, {10, 12}) is None
    assert roll.place(13, flower.GOOD.__class__(**{**other.__dict__, "num_rows": 4}), {10, 13}) is None
    assert roll.place(14, "did not describe itself", {10, 14}) is None
    said = [record.message for record in caplog.records]
    for sentence in ("not a client of this run", "have the same name", "another num_rows: 4", "did not describe"):
        assert any(sentence in one for one in said), said
    assert roll.unknown({10, 11, 12, 13, 14, 15}) == [15]
    assert roll.place(15, other, {10, 15}) == 1 and roll.nodes == [10, 15]


@pytest.fixture
def killed(case, tmp_path):
    """A run that has ended after two rounds, and its grid, one of whose nodes is gone."""
    folder = tmp_path / "kept"
    with pytest.raises(QuorumError):
        case(dict.fromkeys([(2, 0), (2, 1), (2, 2)], "error"), min_clients=2, checkpoint=str(folder))
    return folder


def test_a_server_is_resumed_while_a_client_is_away(case, flower, killed, tmp_path):
    model, recipes = tmp_path / "line.py", {"FedEP": tmp_path / "FedEP.toml"}
    grid = flower.grid(model, recipes)
    del grid.contexts[101]
    more = {"checkpoint": str(killed), "resume": True, "wait": 0.1}
    with pytest.raises(QuorumError, match="2 of the 3 clients of the run that is resumed"):
        case({}, grid, **more)
    with pytest.raises(SettingError, match=r"has 3 clients \(0, 1, 2\), num-clients is 4"):
        case({}, grid, num_clients=4, **more)
    found, _ = case({}, grid, min_clients=2, **more)
    took_part = found.federation["participated"].values
    assert took_part[:2].all() and not took_part[2:, 1].any() and took_part[2:, [0, 2]].all()


def test_a_resumed_run_is_that_of_an_uninterrupted_one(case, flower, killed, tmp_path):
    grid = flower.grid(tmp_path / "line.py", {"FedEP": tmp_path / "FedEP.toml"})
    found, _ = case({}, grid, min_clients=2, checkpoint=str(killed), resume=True)
    assert np.array_equal(found.posterior["w"].values, undisturbed().posterior["w"].values)


def test_a_list_of_clients_that_is_none(flower, tmp_path, monkeypatch):
    from pyro_fed.deployment.flower import joining
    from pyro_fed.deployment.flower.joining import Roll

    assert Roll.from_checkpoint(tmp_path) is None
    (tmp_path / "clients.json").write_text('[{"name": 3}]')
    with pytest.raises(CheckpointError, match="cannot be read as the list of the run's clients"):
        Roll.from_checkpoint(tmp_path)
    (tmp_path / "clients.json").write_text("[" * 1000)
    monkeypatch.setattr(joining, "MAX_CLIENTS_FILE_BYTES", 999)
    with pytest.raises(CheckpointError, match="1,000 bytes, expected at most 999"):
        Roll.from_checkpoint(tmp_path)


def test_clients_without_a_state_come_back_afresh(flower, tmp_path):
    model, recipes = flower.write_case(tmp_path, STATELESS)
    grid = flower.grid(model, recipes, {(2, 1): "restart", (3, 0): "restart"})
    settings = flower.read_configuration({"num-clients": 3, "timeout": 0.05, "compile": "off", "audit": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = flower.serve(grid, model, recipes["FedSEP"], settings)
    assert found.federation["participated"].values.all()
    assert issubclass(QuorumError, StoppedError)

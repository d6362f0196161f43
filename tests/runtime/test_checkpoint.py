"""Checkpoints: a killed run goes on to the same bits; another run's state and foreign bytes are refused."""

import functools
import gc
import os
import pickle
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyro
import pyro.distributions as dist
import pytest
import torch
from forks import ended, together
from safetensors.torch import save
from short_runs import Interrupting

import pyro_fed as pf
from pyro_fed.errors import CheckpointError, SettingError
from pyro_fed.runtime import checkpoint as checkpoint_folder
from pyro_fed.runtime.checkpoint import Lock

ROUNDS = 6


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@functools.cache
def federation(seed=0, rows=30):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator)
    return pf.Federation(model, (x, x.sum(1)), plate="data", num_clients=3)


def run(fed=None, **settings):
    options = {"num_rounds": ROUNDS, "progress": False, "compile": "off", "audit": False} | settings
    algorithm = options.pop("algorithm", None) or pf.papers.UDSVGD(num_particles=5, local_steps=3, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, fed or federation(), **options)


@dataclass(frozen=True)
class KilledAt(Interrupting):
    """The same for every round, to a checkpoint."""

    def __repr__(self):
        return "KilledAt"


NEVER = 10**6
ALGORITHMS = [
    pf.papers.UDSVGD(num_particles=5, local_steps=3, batch_size=4),
    pf.FedEP(start="prior"),
    pf.FedEP(),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["udsvgd", "fedep_prior", "fedep_warm"])
def test_resume_equals_an_uninterrupted_run(tmp_path, algorithm):
    """Stopped after each of the rounds."""
    whole = run(algorithm=algorithm, schedule=KilledAt(NEVER))
    same = [name for name in whole.federation if name != "seconds"]
    for stop in range(1, ROUNDS):
        folder = tmp_path / str(stop)
        run(algorithm=algorithm, schedule=KilledAt(stop), checkpoint=folder)
        rest = run(algorithm=algorithm, schedule=KilledAt(NEVER), checkpoint=folder, resume=True)
        assert (whole.posterior["w"].values == rest.posterior["w"].values).all()
        assert whole.federation[same].equals(rest.federation[same])


class Killed(KilledAt):
    """As a machine that loses its power in a given round."""

    def select(self, round, num_clients, rng):
        if round == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return [round % num_clients]


def killed_in_each_round(folder):
    """By processes forked from one that has run already: they find steps traced. A GPU's threads would forbid forks."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    run(schedule=KilledAt(NEVER), num_rounds=6)
    gc.freeze()  # a collection would copy every page
    for at in range(6):
        child = os.fork()
        if child == 0:
            run(schedule=Killed(at), num_rounds=6, checkpoint=folder / str(at))
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@together
def test_killed_without_warning_in_any_round_goes_on(tmp_path):
    """kill -9 from within, in each of six rounds."""
    assert ended(killed_in_each_round, tmp_path) == 0
    options = {"schedule": KilledAt(NEVER), "num_rounds": 6}
    whole = run(**options)
    for at in range(6):
        rest = run(**options, checkpoint=tmp_path / str(at), resume=True)
        assert torch.equal(torch.tensor(whole.posterior["w"].values), torch.tensor(rest.posterior["w"].values)), at


def test_a_finished_run_is_not_run_again(tmp_path):
    first = run(checkpoint=tmp_path)
    again = run(checkpoint=tmp_path, resume=True)
    assert len(again.federation["round"]) == ROUNDS
    assert (first.posterior["w"].values == again.posterior["w"].values).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, ["seed", "'0'", "'1'"]),
        ({"num_rounds": 5}, ["has had 6 rounds of UDSVGD", "number of rounds is 5"]),
        ({"fed": 5}, ["data"]),
        (
            {"algorithm": pf.papers.UDSVGD(num_particles=6, local_steps=3, batch_size=4)},
            ["algorithm", "num_particles=6"],
        ),
        ({"schedule": pf.schedule.UniformRandom()}, ["schedule", "UniformRandom"]),
    ],
    ids=["seed", "rounds", "data", "settings", "schedule"],
)
def test_another_run_is_refused_naming_both_values(tmp_path, change, words):
    run(checkpoint=tmp_path)
    if "fed" in change:  # a seed: collecting tests makes no federation
        change = change | {"fed": federation(seed=change["fed"])}
    with pytest.raises(CheckpointError) as error:
        run(checkpoint=tmp_path, resume=True, **change)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["udsvgd", "fedep_prior", "fedep_warm"])
def test_a_finished_run_is_extended(tmp_path, algorithm):
    """As a run of all rounds from the start, whose states are asked for on the way too."""
    whole = run(algorithm=algorithm)
    run(algorithm=algorithm, num_rounds=2, checkpoint=tmp_path)
    for more in (3, ROUNDS):
        rest = run(algorithm=algorithm, num_rounds=more, checkpoint=tmp_path, resume=True)
    same = [name for name in whole.federation if name != "seconds"]
    assert (whole.posterior["w"].values == rest.posterior["w"].values).all()
    assert whole.federation[same].equals(rest.federation[same])
    assert {k: v for k, v in whole.attrs.items() if k in SAID} == {k: v for k, v in rest.attrs.items() if k in SAID}


SAID = ("converged", "doubts", "num_rounds", "notes", "settings")


def test_a_private_run_is_extended_past_where_it_would_have_converged(tmp_path):
    """Its rounds are all had, whatever was seen: also those that a shorter run would have ended before."""
    private = {"algorithm": pf.FedAvg(chain_steps=3), "combination": pf.Private(norm=1.0, noise_multiplier=0.1)}
    with mock.patch.object(pf.FedAvg, "converged", lambda self, measured: True):
        run(num_rounds=2, checkpoint=tmp_path, **private)
    rest = run(num_rounds=5, checkpoint=tmp_path, resume=True, **private)
    assert len(rest.federation["round"]) == 5


def test_a_shorter_run_goes_on_from_what_a_longer_one_has_done(tmp_path):
    run(schedule=KilledAt(2), checkpoint=tmp_path)
    rest = run(schedule=KilledAt(NEVER), checkpoint=tmp_path, resume=True, num_rounds=4)
    assert (run(schedule=KilledAt(NEVER), num_rounds=4).posterior["w"].values == rest.posterior["w"].values).all()


def test_all_that_differs_is_named_and_the_model_first(tmp_path):
    """Of another model what follows from it is not told; with other data its densities of these cannot be compared."""
    run(checkpoint=tmp_path)

    def other(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    changed = {"seed": 1, "schedule": pf.schedule.UniformRandom(), "num_rounds": 50}
    with pytest.raises(CheckpointError) as error:
        run(made(other), checkpoint=tmp_path, resume=True, **changed)
    said = str(error.value)
    assert said.index("its model is") < said.index("its schedule is") < said.index("its seed is '0'")
    assert "rounds" not in said and "its data" not in said and said.count("model is") == 1
    other.__qualname__ = model.__qualname__
    with pytest.raises(CheckpointError) as error:
        run(made(other, rows=33), checkpoint=tmp_path, resume=True, **changed)
    said = str(error.value)
    assert said.index("the log prior of site 'w'") < said.index("its data is") < said.index("its seed is '0'")
    with pytest.raises(CheckpointError) as error:
        run(federation(rows=33), checkpoint=tmp_path, resume=True)
    assert "its data is" in str(error.value) and "model" not in str(error.value)


def made(of, rows=30):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    return pf.Federation(of, (x, x.sum(1)), plate="data", num_clients=3)


def test_a_state_is_never_overwritten_unasked(tmp_path):
    run(checkpoint=tmp_path)
    with pytest.raises(SettingError, match="resume=True"):
        run(checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="no state to resume from"):
        run(checkpoint=tmp_path / "empty", resume=True)
    with pytest.raises(SettingError, match="needs checkpoint="):
        run(resume=True)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


@pytest.mark.parametrize(
    "content",
    [pickle.dumps(Bomb()), b"", b"\xff" * 100, b"\x08" + b"\x00" * 7 + b"{}"],
    ids=["pickle", "empty", "huge_header", "no_text"],
)
@pytest.mark.filterwarnings("ignore:the particles are not at rest")
def test_foreign_bytes_fall_back_to_the_state_before(tmp_path, content):
    algorithm = pf.papers.PaperSVGD(num_particles=5, local_steps=3)
    whole = run(algorithm=algorithm, checkpoint=tmp_path)
    latest = sorted(tmp_path.glob("round-*"))[-1]
    latest.write_bytes(content)
    with pytest.warns(UserWarning, match="the previous one is used"):
        rest = pf.run(
            algorithm,
            federation(),
            num_rounds=ROUNDS,
            progress=False,
            compile="off",
            audit=False,
            checkpoint=tmp_path,
            resume=True,
        )
    assert (whole.posterior["w"].values == rest.posterior["w"].values).all()
    for path in tmp_path.glob("round-*"):
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match="can be read"):
        run(algorithm=algorithm, checkpoint=tmp_path, resume=True)


def changed(folder, change):
    """Change the latest state in a folder and compute its hash anew, as one who may write there can; the only one."""
    *others, path = sorted(folder.glob("round-*"))
    for other in others:
        other.unlink()
    text, tensors = checkpoint_folder._read_file(path)
    change(text, tensors)
    text["digest"] = checkpoint_folder._digest_of(tensors, text)
    path.write_bytes(save({name: value.clone().contiguous() for name, value in tensors.items()}, metadata=text))


TEXTS = [
    ("phase", "-1", "phase must be a whole number from 0 on, received -1"),
    ("phase", "true", "phase must be a whole number"),
    ("phase", "7", "is of phase 7, counted from 0, and this run has 2"),
    ("done", "-1", "done must be a whole number"),
    ("done", "1e400", "done must be a whole number"),
    ("done", "99", "has had 99 rounds, and has a record of"),
    ("marks", "[]", "marks must be texts by name"),
    ("record", "[]", "record must have a list of rounds"),
    ("record", '{"rounds": []}', "has a record of 0"),
    ("record", '{"rounds": [1, 2, 3, 4, 5, 6, 7, 8, 9], "to_plain": 1}', "went on from the state"),
]
WRONG = {
    "missing": lambda value: None,
    "scalar": lambda value: value.new_zeros(()),
    "longer": lambda value: torch.cat([value, value], -1),
    "empty": lambda value: value.new_zeros(0),
}


@pytest.mark.parametrize(("name", "value", "said"), TEXTS)
def test_a_changed_text_is_refused_though_its_hash_is_right(tmp_path, name, value, said):
    run(algorithm=pf.FedEP(), num_rounds=2, checkpoint=tmp_path)
    changed(tmp_path, lambda text, tensors: text.__setitem__(name, value))
    with pytest.raises(CheckpointError, match=said):
        run(algorithm=pf.FedEP(), checkpoint=tmp_path, resume=True)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("tensor", ["shared.eta", "shared.precision", "local.precision"])
def test_changed_tensors_are_refused_though_their_hash_is_right(tmp_path, tensor, wrong):
    """Where rounds are left, where none is, and where another run is to start from it, which takes the sites alone."""
    cases = [{"num_rounds": 4}, {"num_rounds": 2}, *([{}] if tensor.startswith("local") else [])]
    for number, options in enumerate(cases):
        folder = tmp_path / str(number)
        run(algorithm=pf.FedEP(), num_rounds=2, checkpoint=folder)

        def change(text, tensors):
            value = WRONG[wrong](tensors.pop(tensor))
            if value is not None:
                tensors[tensor] = value

        changed(folder, change)
        taken_up = {"checkpoint": folder, "resume": True} if options else {"start": folder}
        with pytest.raises(CheckpointError, match=r"went on from the state|expected an entry for each of 3 clients"):
            run(algorithm=pf.FedEP(), **options, **taken_up)


def test_states_are_their_owners_alone_and_no_link_is_followed(tmp_path):
    """Links at the names of the state that is written next, of what it is written to first, and of the lock."""
    folder, victim = tmp_path / "state", tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    for name in ("round-00000003.safetensors.writing", "round-00000003.writing"):
        (folder / name).symlink_to(victim)
    run(checkpoint=folder)
    states = sorted(folder.glob("round-*.safetensors"))
    assert victim.read_text() == "precious" and states and not any(path.is_symlink() for path in states)
    assert {path.stat().st_mode & 0o777 for path in states} == {0o600}


@pytest.mark.parametrize("place", [Path.symlink_to, Path.hardlink_to])
def test_a_lock_that_leads_elsewhere_is_refused(tmp_path, place):
    folder, victim = tmp_path / "state", tmp_path / "victim"
    victim.write_text("precious")
    folder.mkdir()
    place(folder / "lock", victim)
    with pytest.raises(CheckpointError, match="nothing can be written to"):
        run(checkpoint=folder)
    assert victim.read_text() == "precious"


def test_a_full_disk_leaves_the_previous_state(tmp_path, monkeypatch):
    import pyro_fed.conventions.output as module

    written = []

    def replace(source, target):
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(target)
        source.rename(target)

    monkeypatch.setattr(module.os, "replace", replace)
    with pytest.raises(CheckpointError, match="previous state is kept"):
        run(checkpoint=tmp_path)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.writing"))
    rest = run(checkpoint=tmp_path, resume=True)
    assert (rest.posterior["w"].values == run().posterior["w"].values).all()


def test_two_runs_never_share_a_folder(tmp_path):
    """The second names the first, in this process and in another, and its folder is free again once it has ended."""
    seen = []

    def evaluate(idata):
        with pytest.raises(CheckpointError, match=rf"is in use by process {os.getpid()} on "):
            run(checkpoint=tmp_path, resume=True)
        seen.append(1)
        return {}

    run(checkpoint=tmp_path, evaluate=evaluate, evaluate_every=ROUNDS)
    assert seen == [1]
    run(checkpoint=tmp_path, resume=True)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".safetensors"] * 2


def locked_and_killed(folder):
    Lock(folder)
    os.kill(os.getpid(), signal.SIGKILL)


@together
def test_a_folder_is_free_after_a_run_that_failed_or_was_killed(tmp_path):
    with pytest.raises(SettingError):
        run(checkpoint=tmp_path, evaluate=lambda idata: "no figures")
    assert ended(locked_and_killed, tmp_path) == -signal.SIGKILL
    assert (tmp_path / "lock").exists()
    run(checkpoint=tmp_path, resume=True)


def test_a_file_is_no_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(SettingError, match="expected a folder"):
            run(checkpoint=path)


def test_an_earlier_state_that_cannot_be_deleted_costs_nothing(tmp_path, monkeypatch, caplog):
    import pyro_fed.runtime.checkpoint as module

    def kept(path, missing_ok=False):
        if path.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.Path, "unlink", kept)
    found = run(checkpoint=tmp_path)
    monkeypatch.undo()
    assert (found.posterior["w"].values == run().posterior["w"].values).all()
    assert "an earlier state could not be deleted" in caplog.text

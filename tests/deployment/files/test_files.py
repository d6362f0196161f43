"""A study by files: the simulation's draws to the bit; files that are late, doubled, changed, unsigned or missing."""

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from files_case import MODEL, SITES, Case, recipe_text, same_draws, simulated

import pyro_fed as pf
from pyro_fed.cli.main import main
from pyro_fed.deployment.files import init_study
from pyro_fed.deployment.files.study import Study
from pyro_fed.errors import CheckpointError, PolicyError, ProtocolError, QuorumError, SettingError
from pyro_fed.recipes.library import load_model

pytestmark = pytest.mark.skipif(find_spec("cryptography") is None, reason="needs cryptography")

AVERAGING = recipe_text("FedAvg", "num_rounds = 2")
VI = recipe_text("PVI", "num_rounds = 2", order="synchronous", start="prior")
FAMILIES = {
    "FedEP": recipe_text("FedEP", "num_rounds = 2"),  # after the federated Laplace approximation
    "FedLaplace": recipe_text("FedLaplace"),
    "FedAvg": recipe_text("FedAvg", "num_rounds = 2"),
    "DSVGD": recipe_text("DSVGD", "num_rounds = 2", num_particles=6, local_steps=3, start="prior"),
    "FSGLD": recipe_text(
        "FSGLD", "num_rounds = 2", num_chains=2, local_steps=5, burn_in=0, batch_size=2, surrogates="laplace"
    )
    + '[settings.step]\nname = "fixed"\nsize = 0.01\n',
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_simulations_draws_to_the_bit(family, tmp_path):
    """An exchange for the descriptions, and one for each round, those of phases before the algorithm among them."""
    case = Case(tmp_path, FAMILIES[family])
    found, exchanges = case.finish()
    assert same_draws(found, simulated(case))
    assert exchanges == 1 + found.federation.sizes["round"]


NESTED = """
import pyro
import pyro.distributions as dist

PLATE = "hospital"
ROWS = {"patient": "whose"}


def model(noise, whose, y, count, size):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.LogNormal(0.0, 0.5))
    with pyro.plate("hospital", count):
        a = pyro.sample("a", dist.Normal(mu, tau))
    with pyro.plate("patient", len(y)):
        pyro.sample("y", dist.Normal(a[whose] + size[whose], noise), obs=y)
"""


def test_groups_keep_their_effects_at_their_site(tmp_path):
    """A hierarchical model whose groups have rows of their own; each site integrates its groups' effects out."""
    rng, rows = np.random.default_rng(0), []
    for groups in (2, 1, 3):
        whose = np.repeat(np.arange(groups), groups + 1)
        noise, y = rng.uniform(0.5, 1.5, len(whose)), 2 * rng.normal(size=len(whose))
        rows.append((noise, whose, y, groups, rng.normal(size=groups)))
    case = Case(tmp_path, VI, rows, NESTED)
    found, _ = case.finish()
    module = load_model(case.study / "model.py", with_data=False)
    fed = pf.Federation.from_clients(module.model, rows, plate="hospital", rows=module.ROWS)
    assert same_draws(found, simulated(case, fed))
    assert "a" not in found.posterior


def test_a_study_begins_at_the_result_of_an_earlier_one(tmp_path):
    """An interim look, and the study to its end: north has more patients then, and groups of its own keep none out."""
    rng = np.random.default_rng(3)

    def rows(groups, size):
        whose = np.repeat(np.arange(groups), size)
        return rng.uniform(0.5, 1.5, len(whose)), whose, rng.normal(size=len(whose)), groups, rng.normal(size=groups)

    interim = [rows(2, 3), rows(1, 4), rows(3, 2)]
    final = [rows(3, 5), interim[1], rows(3, 4)]
    folders = [tmp_path / name for name in ("interim", "final")]
    for folder in folders:
        folder.mkdir()
    first = Case(folders[0], VI, interim, NESTED)
    first.finish()
    case = Case(folders[1], VI, final, NESTED, start=first.study / "result.nc")
    begin, interim_result = case.study / "start.nc", (first.study / "result.nc").read_bytes()
    begin.write_bytes(interim_result + b"\0")
    with pytest.raises(CheckpointError, match=r"start\.nc is not the file with which the study was begun"):
        case.combine()
    begin.write_bytes(interim_result)
    found, _ = case.finish()
    module = load_model(case.study / "model.py", with_data=False)
    fed = pf.Federation.from_clients(
        module.model, dict(zip(SITES, final, strict=True)), plate="hospital", rows=module.ROWS
    )
    assert same_draws(found, simulated(case, fed, start=first.study / "result.nc"))
    assert not same_draws(found, simulated(case, fed))  # of two rounds: where it begins matters
    with pytest.raises(CheckpointError, match=r"is no file: --start takes the result\.nc"):
        Case(tmp_path, VI, final, NESTED, start=tmp_path / "nowhere.nc")
    with pytest.raises(SettingError, match="DSVGD has no sites"):  # before any site is asked
        init_study(tmp_path / "other", case.study / "model.py", "dsvgd", SITES, start=first.study / "result.nc")


def test_the_models_file_names_dimensions_and_entries(tmp_path):
    """`DIMS` and `COORDS` label the result, its sites and the tables, as `dims` and `coords` of a federation do."""
    labels = '\nDIMS = {"w": ["feature"]}\nCOORDS = {"feature": ["level", "age"]}\n'
    case = Case(tmp_path, FAMILIES["FedLaplace"], model=MODEL + labels)
    found, _ = case.finish()
    assert found.posterior["w"].dims[-1] == "feature" and found.posterior["feature"].values.tolist() == ["level", "age"]
    assert found.sites["parameter"].values.tolist() == ["w[level]", "w[age]"]
    assert same_draws(found, simulated(case))


def test_stages_of_a_plan_go_by_files(tmp_path):
    """A stage's missing answers end the command, and are no failure of the stage."""
    case = Case(tmp_path, 'algorithm = "pyro_fed.infer:Auto"\n', num_rounds=2)
    found, exchanges = case.finish()
    assert found.attrs["chosen"] == "FedEP" and exchanges == 1 + 2
    assert same_draws(found, simulated(case, algorithm=case.chosen.build({"max_rounds": 2})))


def test_the_checks_take_one_exchange_more(tmp_path):
    case = Case(tmp_path, recipe_text("FedLaplace"), audit=True)
    found, exchanges = case.finish()
    assert exchanges == 1 + found.federation.sizes["round"] + 1
    assert "lp" in found.sample_stats and found.attrs["doubts"] == ""


@pytest.fixture
def case(tmp_path):
    """Two rounds of variational inference, with states at the sites."""
    return Case(tmp_path, VI)


def expected(case):
    return simulated(case)


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_answers_one_by_one_late_doubled_and_of_another_round(case):
    """A site answers a day later; another mails its answer twice; and one its first answer once more."""
    asked = case.begun()
    north, south, west = asked.requests
    first = case.answer(north)
    found = case.combine(first)
    assert found.waiting == ["south", "west"] and found.exchange == 1
    assert [path.name for path in found.requests] == [south.name, west.name]
    found = case.combine(first, case.answer(south))
    assert "answer-north-001.study: the answer of north to exchange 1 is here already" in found.answers_taken[0]
    assert not found.refused and found.waiting == ["west"]
    found = case.combine(case.answer(west))
    assert found.exchange == 2
    again = case.combine(first, case.answered("north", 0))
    assert not again.refused and [text[-15:] for text in again.answers_taken] == ["is here already"] * 2
    result, _ = case.finish(again)
    assert same_draws(result, expected(case))


def test_an_answer_to_another_request_is_refused(case):
    """A site that began anew in another folder, with the request of another exchange: neither is taken."""
    case.begun()
    mailed = case.answered("north", 0)
    kept = mailed.read_bytes()
    (case.study / "answers" / mailed.name).unlink()
    (case.study / "exchanges" / "000.closed.json").unlink()
    text = kept.replace(b'"exchange": 0', b'"exchange": 1')
    mailed.write_bytes(text)
    (refused,) = case.combine(mailed).refused
    assert "the signature is not that of north over this content" in refused
    mailed.write_bytes(kept)
    assert not case.combine(mailed).refused


@pytest.mark.parametrize("where", ["header", "body", "signature"])
def test_a_changed_file_is_refused_by_both_sides(case, where):
    asked = case.begun()
    places = {"header": lambda data: data.index(b"exchange"), "body": lambda data: data.rindex(b"signature") - 9}
    at = places.get(where, lambda data: len(data) - 20)
    answer = case.answer(asked.requests[0])
    good = answer.read_bytes()
    flipped(answer, at(good))
    (refused,) = case.combine(answer).refused
    assert "answer-north-001.study" in refused
    request = case.outbox("south", 1)
    kept = request.read_bytes()
    flipped(request, at(kept))
    with pytest.raises(ProtocolError, match=r"round-001-request-south\.study"):
        case.answer(request)
    request.write_bytes(kept)
    answer.write_bytes(good)
    found = case.combine(answer)
    assert not found.refused and found.waiting == ["south", "west"]


def test_a_file_without_signature_is_refused_by_both_sides(case):
    asked = case.begun()
    answer = case.answer(asked.requests[0])
    data = answer.read_bytes()
    answer.write_bytes(data[: data.rindex(b"\nsignature")])
    (refused,) = case.combine(answer).refused
    assert refused.startswith("answer-north-001.study: it has no signature")
    request = case.outbox("south", 1)
    request.write_bytes(request.read_bytes()[: -len(b"\nsignature ") - 89])
    with pytest.raises(ProtocolError, match="it has no signature"):
        case.answer(request)


def test_files_of_strangers_are_refused(case, tmp_path):
    """Another coordinator's request; an answer signed by another site's key; the answer of another study."""
    asked = case.begun()
    (tmp_path / "other").mkdir()
    other = Case(tmp_path / "other", VI)
    theirs = other.begun()
    with pytest.raises(ProtocolError, match="it is of study"):
        case.answer(theirs.requests[0])
    answer = case.answer(asked.requests[0])
    shutil.copy(case.folder / "south" / "study" / "site.key", case.folder / "north" / "study" / "site.key")
    (case.folder / "north" / "study" / "answers" / answer.name).unlink()
    (refused,) = case.combine(case.answer(asked.requests[0])).refused
    assert "the signature is not that of north" in refused
    (refused,) = case.combine(other.answer(theirs.requests[0])).refused
    assert "it is of study" in refused


def test_a_site_answers_only_the_coordinator_that_it_knows(case):
    request = case.combine().requests[0]
    with pytest.raises(ProtocolError, match=r"signed by the key SHA256:.*do not answer it"):
        case.answer(request, coordinator="SHA256:other")
    with pytest.raises(SettingError, match="with what the coordinator reads out, and pass it as --coordinator"):
        case.answer(request, coordinator=None)
    assert not (case.folder / "north" / "study").exists()


def test_a_site_answers_each_exchange_once(case):
    """The same request gets the same file; an old one, or a request for another site, none."""
    found = case.begun()
    (case.folder / "north" / "study" / "answers" / "answer-north-001.study.writing").touch()  # of a killed command
    first = case.answer(found.requests[0]).read_bytes()
    assert case.answer(found.requests[0]).read_bytes() == first
    with pytest.raises(ProtocolError, match="it is for site south, but this site is north"):
        case.answer(found.requests[1], folder=case.folder / "north" / "study")
    found = case.combine(*map(case.answer, found.requests))
    case.answer(found.requests[0])
    (case.folder / "north" / "study" / "answers" / "answer-north-001.study").unlink()
    with pytest.raises(
        ProtocolError, match=r"exchange 1 is over: this site has answered exchange 2. It is an old file"
    ):
        case.answer(case.outbox("north", 1))


class WestSilent(pf.executors.Sequential):
    """A simulation in which west does not reply in round 1."""

    def execute(self, work):
        if work.round != 1:
            return super().execute(work)
        part = super().execute(work.part(torch.arange(2)))
        return pf.executors.Reply(part.messages, part.info, {2: "is silent"})


def test_the_study_goes_on_without_a_site_that_comes_back(tmp_path):
    """West misses the second round: as in a simulation in which its reply of that round is lost."""
    case = Case(tmp_path, VI.replace("num_rounds = 2", "num_rounds = 3"), min_clients=2)
    found = case.combine(*map(case.answer, case.begun().requests))
    north, south, west = found.requests
    case.combine(case.answer(north))
    with pytest.raises(QuorumError, match="1 of 3 replied, need 2"):
        case.combine(go_on=True)
    found = case.combine(case.answer(south), go_on=True)
    assert found.exchange == 3 and found.waiting == list(SITES)
    late = case.answer(west)
    (refused,) = case.combine(late).refused
    assert "too late: exchange 2 was closed without west, which takes part again in exchange 3" in refused
    result, _ = case.finish(found)
    assert same_draws(result, simulated(case, executor=WestSilent(), min_clients=2))
    assert list(result.federation["participated"].values[1]) == [True, True, False]
    assert list(result.federation["participated"].values[2]) == [True, True, True]


def test_an_algorithm_that_needs_every_site_waits(tmp_path):
    case = Case(tmp_path, recipe_text("FedLaplace"))
    with pytest.raises(SettingError, match="without the description of north, south, west its rows are unknown"):
        case.combine(go_on=True)
    found = case.begun()
    with pytest.raises(SettingError, match="exchange 1 cannot go on without south, west: FedLaplace needs every site"):
        case.combine(case.answer(found.requests[0]), go_on=True)
    result, _ = case.finish(case.combine(*map(case.answer, found.requests)))
    assert same_draws(result, simulated(case))


def test_an_answer_whose_content_is_none_is_put_aside(case, monkeypatch):
    """A site that signs something else than a reply is named, and can answer again."""
    from pyro_fed.deployment.files import site

    asked = case.begun()
    with monkeypatch.context() as patch:
        patch.setattr(site, "body_of", lambda message: b"no reply")
        answer = case.answer(asked.requests[0])
    found = case.combine(answer)
    assert "answer-north-001.study: it is no answer to its request" in found.refused[0]
    assert "north" in found.waiting and (case.study / "refused" / answer.name).exists()
    shutil.rmtree(case.folder / "north" / "study" / "answers")
    (case.folder / "north" / "study" / "answers").mkdir()
    found = case.combine(*map(case.answer, asked.requests))
    assert found.exchange == 2


def test_rules_of_the_site_hold_back_an_answer(case):
    """The site's policy judges the bytes that would leave, and its ledger has a line on each."""
    from pyro_fed.deployment.policy import verify

    own = case.folder / "north" / "study"
    own.mkdir()
    (own / "policy.toml").write_text("min_rows = 4\n")  # north has 3
    request = case.combine().requests[0]
    with pytest.raises(PolicyError, match=r"its description does not leave: .* \(min_rows of policy.toml\)"):
        case.answer(request)
    assert not case.answered("north", 0).exists()
    (own / "policy.toml").write_text("min_rows = 3\n")
    case.answer(request)
    assert [line["left"] for line in verify(own / "what_left.jsonl")] == [False, True]


def test_a_person_is_shown_what_would_leave_and_asked(case):
    shown = []

    def confirm(text, question):
        shown.append((text, question))
        return len(shown) % 3 != 2

    request = case.combine().requests[0]
    with pytest.raises(SettingError, match="not answered; nothing has left"):
        case.answer(request, coordinator=None, confirm=confirm)
    assert not case.answered("north", 0).exists()
    text, question = shown[0]
    assert "id " in text and "model (code that runs here)" in text and case.fingerprint in text
    assert question == "Have you compared the key, and read the model and the recipe?"
    assert '"num_rows": 3' in shown[1][0] and shown[1][1] == "May this leave north?"
    case.answer(request, confirm=confirm)
    found = case.begun()
    case.answer(found.requests[0], confirm=confirm)
    assert "Asked: the site's part of round 1 of PVI" in shown[-1][0]
    assert "numbers, computed from 3 rows" in shown[-1][0]


class Killed(BaseException):
    """The end of a process."""


def test_a_command_that_is_killed_at_any_write_is_given_again(tmp_path, monkeypatch):
    """Every write is cut short once, before it or after it: the result is that of an uninterrupted study."""
    from pyro_fed.conventions import output

    case = Case(tmp_path, AVERAGING)
    shutil.rmtree(case.study)
    killed, replace = set(), output.os.replace

    def cut(source, target):
        name = str(target).replace(".writing", "")
        first = name not in killed
        killed.add(name)
        if first and len(killed) % 2:
            raise Killed
        replace(source, target)
        if first:
            raise Killed

    monkeypatch.setattr(output.os, "replace", cut)

    def until_it_lives(command):
        while True:
            try:
                return command()
            except Killed:
                pass

    def begun():
        return case.init() if not case.study.exists() else None

    until_it_lives(begun)
    with Study.opened(case.study) as study:
        case.fingerprint = study.fingerprint
    found = until_it_lives(case.combine)
    while found.result is None:
        answers = [until_it_lives(lambda request=request: case.answer(request)) for request in found.requests]
        found = until_it_lives(lambda answers=answers: case.combine(*answers))
    assert len(killed) > 40
    assert same_draws(case.finish(found)[0], simulated(case))


def test_a_study_whose_files_were_changed_says_so(case):
    found = case.begun()
    case.combine(*map(case.answer, found.requests))
    for name in ("recipe.toml", "model.py"):
        path = case.study / name
        kept = path.read_text()
        path.write_text(f"{kept}\n# changed\n")
        with pytest.raises(CheckpointError, match=rf"{name} is not the file with which the study was begun"):
            case.combine()
        path.write_text(kept)
    path = case.study / "study.json"
    kept = path.read_text()
    path.write_text(json.dumps({name: one for name, one in json.loads(kept).items() if name != "files"}))
    with pytest.raises(CheckpointError, match="lacks files: another version of pyro_fed has begun this study"):
        case.combine()
    path.write_text(kept.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(CheckpointError, match="asks north, south, west another question in exchange 1"):
        case.combine()
    path.write_text(kept)
    answer = case.study / "answers" / "answer-north-001.study"
    flipped(answer, 10)
    with pytest.raises(CheckpointError, match="is not the answer with which exchange 1 was closed"):
        case.combine()
    flipped(answer, 10)
    assert case.combine().exchange == 2


def test_the_command_line(tmp_path):
    """The whole of a study by commands: what is said, and exit codes."""
    case = Case(tmp_path, AVERAGING)
    shutil.rmtree(case.study)

    def command(*words, code=0, **more):
        done = CliRunner().invoke(main, list(map(str, words)), **more)
        assert done.exit_code == code, done.output
        return done.output

    words = ["--model", tmp_path / "line.py", "--recipe", tmp_path / "recipe.toml", "--sites", ",".join(SITES)]
    said = command("study", "init", case.study, *words, "--no-audit")
    assert "This recipe needs 1 exchange for the descriptions, then 2 for FedAvg" in said
    key = next(word for word in said.split() if word.startswith("SHA256:"))
    for exchange in range(3):
        for site in SITES:
            own = ["--folder", tmp_path / site / "study", "--out", case.mail, "--yes"]
            first = ["--data", tmp_path / site / "rows.npz", "--coordinator", key]
            said = command("study", "answer", case.outbox(site, exchange), *own, *(first if exchange == 0 else []))
            assert "Mail it to the coordinator" in said
        said = command("study", "combine", case.study, *(case.answered(site, exchange) for site in SITES))
    assert "Written to" in said and "read it by arviz.from_netcdf" in said
    assert "answer of exchange 2, site west" in command("study", "show", case.answered("west", 2))
    stranger = tmp_path / "answer-west-002.study"
    stranger.write_bytes(b"hello")
    assert "Refused: answer-west-002.study: it is not a file of a study" in command(
        "study", "combine", case.study, stranger, code=2
    )


def test_rows_come_from_tables_and_functions(tmp_path):
    from pyro_fed.deployment.rows import load_rows
    from pyro_fed.errors import DataError

    (tmp_path / "rows.csv").write_text("y,x\n1,0.5\n0,2\n")
    x, y = load_rows(tmp_path / "rows.csv", lambda x, y: None)
    assert x.tolist() == [0.5, 2.0] and y.tolist() == [1, 0]
    (table,) = load_rows(tmp_path / "rows.csv", lambda patients: None)
    assert list(table.columns) == ["y", "x"]
    with pytest.raises(DataError, match=r"--data .* has columns .* the model's arguments are \['a', 'x'\]"):
        load_rows(tmp_path / "rows.csv", lambda a, x: None, option="--data")
    (tmp_path / "load.py").write_text("def load_rows(model, config):\n    return model.ROWS, config['name']\n")
    module = type("Module", (), {"ROWS": [1.0]})
    assert load_rows(tmp_path / "load.py", lambda x, y: None, module, {"name": "north"}) == ([1.0], "north")


def test_a_template_says_how_many_mails_there_will_be(tmp_path):
    """Of a recipe that starts from another algorithm, which depends on the model."""
    case = Case(tmp_path, recipe_text("FedEP", "num_rounds = 3"))
    np.savez(tmp_path / "one.npz", x=np.ones((1, 2)), y=np.ones(1))
    shutil.rmtree(case.study)
    case.options["template"] = tmp_path / "one.npz"
    needs = case.init().content["needs"]
    assert needs.startswith("1 exchange for the descriptions, then at most 100 for FedLaplace, which stops")
    assert needs.endswith(", then at most 3 for FedEP, which stops when it has converged")
    found, exchanges = case.finish()
    assert same_draws(found, simulated(case)) and exchanges <= 1 + 3 + 3

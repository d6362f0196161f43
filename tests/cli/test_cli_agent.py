"""`pyro-fed agent` and `certificates`: what they refuse before anything is waited for."""

import numpy as np
import pytest
from click.testing import CliRunner

from pyro_fed.cli.main import main

PEERS = 'graph = "complete"\n[agents.north]\naddress = "127.0.0.1:1"\n[agents.south]\naddress = "127.0.0.1:2"\n'


def call(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("agent")
    assert call("certificates", place, "north", "south").exit_code == 0
    (place / "peers.toml").write_text(PEERS)
    np.savez(place / "rows.npz", x=np.ones((3, 31)), y=np.ones(3))
    np.savez(place / "other.npz", x=np.ones((3, 31)), z=np.ones(3))
    return place


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--name": "east"}, "the peers file has no agent 'east'; it has north, south"),
        ({"--peers": "none.toml"}, "there is no such file"),
        ({"--data": "other.npz"}, "has arrays ['x', 'z'], and the model's arguments are ['x', 'y']"),
        ({"--certificates": "nowhere"}, "expected north.key, north.crt and ca.crt"),
        ({"--patience": "0"}, "LinkSettings: patience must be positive"),
        ({"--seed": "-1"}, "-1 is not in the range"),
        ({"recipe": "fedep"}, "FedEP needs a server; agents run P2PVI, P2PEP or P2PFedAvg"),
        ({"recipe": "auto"}, "Auto tries several algorithms; agents run one"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(folder, monkeypatch, changed, said):
    monkeypatch.chdir(folder)
    options = {"--name": "north", "--data": "rows.npz", "--peers": "peers.toml", "--certificates": "."} | changed
    recipe = options.pop("recipe", "p2p_vi")
    result = call(
        "agent", "logistic_regression", recipe, "--quiet", *(word for pair in options.items() for word in pair)
    )
    assert result.exit_code == 2
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.filterwarnings("default:--rows is --data now:FutureWarning")  # as for a user
def test_a_data_file_may_be_given_by_its_old_name(folder, monkeypatch):
    """`--rows` is read as `--data`, with a word on it, and help and errors know only the new name."""
    monkeypatch.chdir(folder)
    given = ("agent", "logistic_regression", "--name", "north", "--peers", "peers.toml", "--certificates", ".")
    result = call(*given, "--quiet", "--rows", "other.npz")
    assert "--rows is --data now" in result.stderr
    assert result.exit_code == 2 and "--data other.npz has arrays ['x', 'z']" in result.stderr.splitlines()[-1]
    missing = call(*given)
    assert missing.exit_code == 2 and "Missing option '--data'" in missing.stderr.splitlines()[-1]
    shown = call("agent", "--help").stdout
    assert "--data FILE" in shown and "--rows" not in shown


@pytest.mark.parametrize("name", ["", "é", "a" * 64, "a.b", "../a", "ca", "CA", "North"])
def test_certificates_have_names_that_agents_can_have(folder, name):
    result = call("certificates", folder / "new", name, "north")
    assert result.exit_code == 2
    assert "certificates: " in result.output
    assert not (folder / "new").exists()


def test_an_authority_that_cannot_be_read_is_said(folder):
    (folder / "ca.key").write_bytes(b"no key")
    result = call("certificates", folder, "west")
    assert result.exit_code == 2
    assert "cannot be read as an authority's" in result.output


def test_certificates_are_not_written_twice(folder):
    result = call("certificates", folder, "north")
    assert result.exit_code == 2
    assert "north.key exists already" in result.stderr

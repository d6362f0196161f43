"""A node that runs its own code: of an app from the network nothing is unpacked, imported or executed."""

import os
from types import SimpleNamespace

import pytest

from pyro_fed.deployment.policy import Policy, verify
from pyro_fed.deployment.policy.approval import approve
from pyro_fed.errors import SettingError

ROWS = """
import torch

def load_rows(model, node_config):
    return torch.ones(4, 2) * torch.arange(4.0)[:, None], torch.arange(4.0)
"""


@pytest.fixture
def node(flower, tmp_path):
    model, files = flower.write_case(tmp_path, {"FedEP": ""})
    place = tmp_path / "site"
    place.mkdir()
    (place / "policy.toml").write_text("approval = true")
    approve(place, model, [files["FedEP"]], Policy.read(place / "policy.toml"))
    (place / "rows.py").write_text(ROWS)
    model.unlink()  # what it runs are its copies
    return place


def commanded(place, *given, rows="rows.py"):
    from pyro_fed.deployment.flower.own_code import node_command

    folder = place / "bin"
    folder.mkdir(exist_ok=True)
    return node_command(folder, "ward-1", place / "policy.toml", place / rows, given)


def test_flowers_process_for_a_message_runs_the_sites_own_copies(flower, node, monkeypatch):
    """The app that comes with the run is bytes that no step reads; the reply has the site's rows and its ledger."""
    from flwr.supernode.runtime import run_clientapp

    from pyro_fed.deployment.flower import own_code

    command, environment = commanded(node, "--superlink", "fed.example.org:8000")
    assert command[:3] == ["flower-supernode", "--superlink", "fed.example.org:8000"]
    config = {"name": "ward-1", "policy": str(node / "policy.toml")}
    assert command[4] == f'name="ward-1" policy="{node / "policy.toml"}"'
    script = node / "bin" / "flwr-clientapp"
    assert environment["PATH"].split(os.pathsep)[0] == str(script.parent) and os.access(script, os.X_OK)
    monkeypatch.setenv(own_code.POLICY, environment[own_code.POLICY])
    monkeypatch.setenv(own_code.ROWS, environment[own_code.ROWS])

    context = flower.LocalGrid(None).contexts[101]
    message = flower.Message(flower.RecordDict({"settings": flower.ConfigRecord({})}), 101, "query")
    message.metadata.__dict__["_message_id"] = "m"
    context.node_config.clear()
    context.node_config.update(config)
    pushed, hostile = [], SimpleNamespace(content=b"not even a zip", hash_str="0" * 64)
    run = SimpleNamespace(run_id=1, fab_id="a/b", fab_version="1.0.0")
    found = {
        "pull_task_input": lambda *_: (message, context, run, hostile),
        "push_message": lambda _, reply, context: pushed.append(reply),
        "install_from_fab": run_clientapp.install_from_fab,  # put back at the end
        "get_load_client_app_fn": run_clientapp.get_load_client_app_fn,
    }
    for name, value in found.items():
        monkeypatch.setattr(run_clientapp, name, value)
    ended = []
    monkeypatch.setattr(run_clientapp, "flwr_exit", lambda **given: ended.append(given["code"]))
    monkeypatch.setattr("sys.argv", ["flwr-clientapp", "--insecure", "--token", "t"])
    for name in ("register_signal_handlers", "HeartbeatSender", "event"):  # what the process does besides
        monkeypatch.setattr(run_clientapp, name, _Nothing)
    own_code.main()
    (reply,) = pushed
    assert not reply.has_error(), reply.error
    assert '"num_rows": 4' in str(reply.content)
    assert [line["kind"] for line in verify(node / "what_left.jsonl")] == ["description"]


class _Nothing:
    """Stands for what a process of Flower does besides: it does nothing."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: None


@pytest.mark.parametrize(
    ("given", "rows", "words"),
    [
        (["--node-config", "a=1"], "rows.py", "--node-config: pyro-fed node flower does not take"),
        (["--allow-runtime-dependency-installation"], "rows.py", "does not take this argument"),
        ([], "none.py", "expected a Python file with load_rows"),
    ],
)
def test_what_a_node_of_its_own_code_does_not_take(node, given, rows, words):
    with pytest.raises(SettingError, match=words):
        commanded(node, *given, rows=rows)


def test_a_node_of_its_own_code_needs_an_approval(node):
    (node / "approved" / "approval.json").unlink()
    with pytest.raises(SettingError, match="pyro-fed node approve MODEL RECIPE"):
        commanded(node)

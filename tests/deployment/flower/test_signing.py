"""Signed apps: Flower's own code checks the signatures, which a SuperLink has fetched by its own question."""

import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from pyro_fed.cli.main import main
from pyro_fed.errors import ProtocolError, SettingError

pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),  # of Flower's own build
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A reviewer's private key file and, as its hospital's node has it, the public one by name; another's too."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    folder = tmp_path_factory.mktemp("keys")
    trusted = {}
    kinds = {"north": ed25519.Ed25519PrivateKey.generate(), "other": ed25519.Ed25519PrivateKey.generate()}
    for name, key in (kinds | {"curve": ec.generate_private_key(ec.SECP384R1())}).items():
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(private)
        public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        trusted[name] = public.decode()
    return SimpleNamespace(folder=folder, trusted=trusted)


@pytest.fixture
def apps(tmp_path):
    """A folder with an app, `trial.fab`, as `flwr build` makes it."""
    from flwr.cli.build import build_fab_from_disk

    made = CliRunner().invoke(
        main, ["flower", "new", str(tmp_path / "signed-app"), "--model", "linear_regression", "--recipe", "fedep"]
    )
    assert made.exit_code == 0, made.output
    folder = tmp_path / "apps"
    folder.mkdir()
    (folder / "trial.fab").write_bytes(build_fab_from_disk(tmp_path / "signed-app"))
    return folder


def signed(apps, keys, name="north", key="north"):
    """Flower's record of the app and its signatures, as a SuperLink fetches it from the hub."""
    from flwr.supercore.fab import Fab
    from flwr.superlink.servicer.control import control_handlers

    from pyro_fed.deployment.flower.apps import serve_apps

    arguments = ["flower", "sign", str(apps / "trial.fab"), "--key", str(keys.folder / key), "--name", name]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    server = serve_apps(apps, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_handlers, "FLWR_SUPERGRID_API_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("NO_PROXY", "127.0.0.1")
        try:
            content, verifications, _ = control_handlers._get_remote_fab(None, "@pyro-fed/signed-app==1.0.0")
            latest, *_ = control_handlers._get_remote_fab(None, "@pyro-fed/signed-app")
            with pytest.raises(Exception, match="Failed to request FAB download link"):
                control_handlers._get_remote_fab(None, "@pyro-fed/signed-app==9.9.9")
            with pytest.raises(Exception, match="Failed to request FAB download link"):
                control_handlers._get_remote_fab(None, "@pyro-fed/other")
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    assert content == latest == (apps / "trial.fab").read_bytes()
    return Fab("", content, verifications)


def taken_by_a_node(fab, trusted):
    """Whether a SuperNode gives an app to its own process, and what it answers if not."""
    from flwr.app import Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode import start_client_internal as node

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    class Taken(Exception):
        pass

    def taken(*given):
        raise Taken

    said = []
    message = Message(RecordDict(), 1, "query")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "_insert_message", lambda reply, *rest: said.append(reply.error.reason))
        patch.setattr(node, "get_fused_config_from_fab", taken)
        state = SimpleNamespace(get_run=lambda number: None)
        run = SimpleNamespace(fab_hash="")
        try:
            node._pull_and_store_message(
                state, None, {}, lambda: (message, None), lambda number: run, lambda *_: fab, None, None, trusted
            )
        except Taken:
            return True, said
    return False, said


def test_a_node_runs_what_its_own_hospital_has_signed(apps, keys):
    fab = signed(apps, keys)
    assert taken_by_a_node(fab, {"north": keys.trusted["north"]}) == (True, [])


def test_a_node_runs_no_app_that_is_unsigned_changed_or_signed_by_somebody_else(apps, keys):
    """What `flwr run FOLDER` sends has no signatures, whatever is in the app."""
    fab, trusted = signed(apps, keys), {"north": keys.trusted["north"]}
    refused = (False, ["The FAB could not be verified."])
    from dataclasses import replace

    assert taken_by_a_node(replace(fab, verifications={}), trusted) == refused
    assert taken_by_a_node(replace(fab, content=fab.content + b" "), trusted) == refused
    assert taken_by_a_node(fab, {"other": keys.trusted["other"]}) == refused
    assert taken_by_a_node(fab, {"north": keys.trusted["other"]}) == refused
    (apps / "trial.fab.north.signature").unlink()
    assert taken_by_a_node(signed(apps, keys, "north", "other"), trusted) == refused
    assert taken_by_a_node(replace(fab, verifications={}), None) == (True, [])  # as a node without the option does


@pytest.mark.parametrize(
    ("key", "words"), [("curve", "expected an Ed25519 key"), ("public", "OpenSSH's format"), ("open", "mode 0600")]
)
def test_keys_that_cannot_sign(apps, keys, tmp_path, key, words):
    from pyro_fed.deployment.flower.apps import sign_app

    path = keys.folder / "curve"
    if key != "curve":
        path = tmp_path / key
        path.touch(mode=0o600 if key == "public" else 0o644)
        path.write_text(keys.trusted["north"] if key == "public" else (keys.folder / "north").read_text())
    with pytest.raises(SettingError, match=words):
        sign_app(apps / "trial.fab", path, "north")
    assert not list(apps.glob("*.signature"))


def test_what_is_no_app_and_no_name_is_not_signed(apps, keys):
    from pyro_fed.deployment.flower.apps import serve_apps, sign_app

    with pytest.raises(ProtocolError, match="a client id"):
        sign_app(apps / "trial.fab", keys.folder / "north", "../north")
    (apps / "text.fab").write_text("no zip")
    with pytest.raises(SettingError, match="expected an app"):
        sign_app(apps / "text.fab", keys.folder / "north", "north")
    with pytest.raises(SettingError, match="expected an app"):
        serve_apps(apps, 0)
    with pytest.raises(SettingError, match="expected a folder"):
        serve_apps(Path("nowhere"), 0)

"""Signed apps: what a hospital signs, and how a SuperLink hands the signatures on to the nodes.

`flwr run FOLDER` sends an app without signatures, and Flower's own way to sign one (`flwr app review`) needs Flower's
platform. A SuperLink asks that platform for the apps that `flwr run @PUBLISHER/NAME==VERSION` names, at the address in
`FLWR_SUPERGRID_API_URL`. `serve_apps` answers these questions from a folder of apps (.fab files, of `flwr build`) and
of their signatures, which `sign_app` has made. Signatures are those of `flwr app review`: Ed25519, over eight bytes
with the time in seconds and the SHA-256 of the app's bytes. Nobody trusts this server: nodes check the signatures, with
the keys of their own `--trusted-entities`.

    trial.fab                       an app
    trial.fab.north.signature       {"public_key_id": "north", "signature": base64url, "signed_at": seconds}
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from flwr.common.config import get_fab_config, get_metadata_from_config
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign

from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.names import check_client_id
from pyro_fed.deployment.signing_keys import load_signing_key
from pyro_fed.errors import SettingError

#: Where the server listens: the SuperLink is on the same machine.
HERE = "127.0.0.1"
#: The path of a SuperLink's question for an app; the most bytes of such a question.
QUESTION, MAX_QUESTION = "/hub/fetch-fab", 10_000


def sign_app(fab: Path, key: Path, signer: str) -> Path:
    """Sign an app, after its code was read.

    Args:
        fab: the app, a file of `flwr build`. It is a zip archive, whose code `unzip` shows.
        key: the signer's private key, in OpenSSH's format: `ssh-keygen -t ed25519 -N "" -f reviewer`.
        signer: the signer's name in the nodes' file of trusted entities.

    Returns:
        The signature's file, beside the app's.

    Raises:
        SettingError: the app or the key cannot be read, the key is of another kind, or others can read its file.
        ProtocolError: the signer's name is not plain.

    Example:
        >>> sign_app(Path("trial.fab"), Path("reviewer"), "north")
    """
    check_client_id(signer)
    content, private = fab.read_bytes(), load_signing_key(key)
    _app_and_version(fab)
    signed_at = int(time.time())
    signature = private.sign(create_message_to_sign(hashlib.sha256(content).digest(), signed_at))
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    path = fab.with_name(f"{fab.name}.{signer}.signature")
    path.write_text(json.dumps({"public_key_id": signer, "signature": text, "signed_at": signed_at}), encoding="utf-8")
    return path


def serve_apps(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the apps in a folder with their signatures, for a SuperLink on the same machine.

    Args:
        folder: .fab files, and .signature files beside them; read anew for each question.
        port: of the address 127.0.0.1; 0 takes a free one.

    Returns:
        The server, which `serve_forever` starts.

    Raises:
        SettingError: there is no such folder, or a .fab file in it is not an app.

    Example:
        >>> serve_apps(Path("apps"), port=9096).serve_forever()
    """
    if not folder.is_dir():
        raise SettingError(f"{folder}: expected a folder of .fab files with their signatures")
    _apps(folder)

    class Hub(BaseHTTPRequestHandler):
        """Answers of one folder."""

        def do_POST(self) -> None:
            """Answer with the place of an app, and its signatures."""
            size = self.headers.get("Content-Length", "")
            question: Any = None
            if self.path == QUESTION and re.fullmatch(r"\d{1,9}", size) and int(size) <= MAX_QUESTION:
                try:
                    question = json.loads(self.rfile.read(int(size)))
                except (ValueError, RecursionError):
                    question = None
            if not isinstance(question, dict):
                self.send_error(400)
                return
            name, version = str(question.get("app_id")), question.get("app_version")
            apps = {held: path for path, (app, held) in _apps(folder).items() if app == name}
            latest = max(apps, key=_version_key, default="")
            fab = apps.get(latest if version is None else str(version))
            if fab is None:
                self._send(404, {"detail": {"available_app_versions": sorted(apps, key=_version_key)}})
                return
            listening = cast_checked(self.server, ThreadingHTTPServer).server_port
            address = f"http://{HERE}:{listening}/{fab.name}"
            self._send(200, {"fab_url": address, "verifications": _signatures(fab)})

        def do_GET(self) -> None:
            """Answer with an app's bytes."""
            fab = next((path for path in _apps(folder) if f"/{path.name}" == self.path), None)
            if fab is None:
                self.send_error(404)
                return
            self._write(200, "application/octet-stream", fab.read_bytes())

        def _send(self, code: int, answer: object) -> None:
            self._write(code, "application/json", json.dumps(answer).encode())

        def _write(self, code: int, kind: str, data: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return ThreadingHTTPServer((HERE, port), Hub)


def _apps(folder: Path) -> dict[Path, tuple[str, str]]:
    """The apps in a folder, each with its name and version."""
    return {path: _app_and_version(path) for path in sorted(folder.glob("*.fab"))}


def _app_and_version(fab: Path) -> tuple[str, str]:
    """An app's name, as `flwr run` has it, and its version; SettingError if the file is not an app."""
    try:
        name, version = get_metadata_from_config(get_fab_config(fab.read_bytes()))
    except Exception as error:  # of zip files, of TOML, of missing keys
        raise SettingError(f"{fab}: expected an app, a file of `flwr build`: {error}") from error
    return f"@{name}", version


def _version_key(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _signatures(fab: Path) -> list[dict[str, Any]]:
    """The signatures beside an app."""
    found = sorted(fab.parent.glob(f"{fab.name}.*.signature"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]

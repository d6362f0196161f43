"""The state of a run on disk: the folder and its files, which run a state belongs to, and who writes there now."""

from pyro_fed.runtime.checkpoint.fingerprint import fingerprint, require_model, require_run
from pyro_fed.runtime.checkpoint.folder import Checkpoint, Saved, latest

__all__ = ["Checkpoint", "Saved", "fingerprint", "latest", "require_model", "require_run"]

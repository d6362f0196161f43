"""What a reviewer asks of a deployment's result, a JSON file: versions, hashes, options, sites, and what left them."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pyro_fed.conventions.output import write_file
from pyro_fed.ops.arviz_versions import group_of


def digest_of(data: bytes) -> str:
    """SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def named_digest(path: Path) -> str:
    """A file's name and the SHA-256 of its bytes."""
    return f"{path.name} {digest_of(path.read_bytes())}"


def study_review(
    result: Path,
    *,
    model: str,
    recipe: str,
    options: Mapping[str, Any],
    sites: Mapping[str, Mapping[str, Any]],
    **more: Any,
) -> dict[str, Any]:
    """What a result rests on.

    Args:
        result: its file.
        model: name and hash of the model's file, see `named_digest`.
        recipe: the same of the recipe's.
        options: what the run was given beside them, the seed among it.
        sites: what is known of each site, by name.
        **more: entries of this kind of deployment.
    """
    return {
        "model": model,
        "recipe": recipe,
        "options": dict(options),
        "python": f"{sys.version.split()[0]} on {platform.platform()}",
        "versions": {one.name: one.version for one in sorted(distributions(), key=lambda one: one.name.lower())},
        "sites": {name: dict(one) for name, one in sites.items()},
        **more,
        "result": digest_of(result.read_bytes()),
    }


def site_entries(result: Any) -> dict[str, dict[str, Any]]:
    """The rounds in which each client took part, and the bytes that it got and that left it, by a result's record."""
    record = group_of(result, "federation")
    each = {name: record.sel(client=name) for name in map(str, record["client"].values)}
    return {
        name: {
            "rounds": int(one["participated"].sum()),
            "bytes_received": int(one["bytes_down"].sum()),
            "bytes_left": int(one["bytes_up"].sum()),
        }
        for name, one in each.items()
    }


def write_review(review: Mapping[str, Any], result: Path) -> Path:
    """Write what a reviewer asks beside a result's file, as NAME.review.json; values without JSON form as text."""
    text = json.dumps(review, indent=1, default=str)
    return write_file(result.with_suffix(".review.json"), text.encode() + b"\n")

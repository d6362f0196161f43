"""Results that are written to a temporary folder first: what is lost where something fails on the way."""

import shutil
import tempfile

import pytest

from pyro_fed.conventions.output import kept_elsewhere
from pyro_fed.errors import SettingError


def test_an_earlier_result_is_whole_until_the_new_one_is(tmp_path, monkeypatch):
    """The disk fills up while it is copied."""
    out = tmp_path / "result.nc"
    out.write_text("earlier")

    def full(source, target):
        target.write(b"ha")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(SettingError, match="kept in"), kept_elsewhere(out) as place:
        place.write_text("later")
    assert out.read_text() == "earlier" and [path.name for path in tmp_path.iterdir()] == ["result.nc"]


def test_what_a_link_leads_to_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    out = tmp_path / "result.nc"
    out.symlink_to(tmp_path / "there" / "result.nc")
    with kept_elsewhere(out) as place:
        place.write_text("later")
    assert out.is_symlink() and (tmp_path / "there" / "result.nc").read_text() == "later"


def test_nothing_stays_where_the_result_could_not_be_written_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="no result"), kept_elsewhere(tmp_path / "result.nc"):
        raise ValueError("no result")
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_is_its_owners_alone_and_an_earlier_ones_mode_stays(tmp_path):
    out = tmp_path / "result.nc"
    for expected in (0o600, 0o640):
        with kept_elsewhere(out) as place:
            place.write_text("a result")
        assert out.stat().st_mode & 0o777 == expected
        out.chmod(0o640)


def test_a_link_that_is_placed_where_a_file_is_written_first_is_not_followed(tmp_path):
    """The checkpoints, the list of clients, results and tables are all written by this."""
    victim, out = tmp_path / "victim", tmp_path / "result.nc"
    victim.write_text("precious")
    (tmp_path / "result.nc.writing").symlink_to(victim)
    with kept_elsewhere(out) as place:
        place.write_text("a result")
    assert victim.read_text() == "precious" and out.read_text() == "a result" and not out.is_symlink()

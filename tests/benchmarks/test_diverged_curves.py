"""A run that diverges in a benchmark of curves: its rounds are kept, and tables say how many have none."""

import numpy as np
import pytest
import xarray as xr
from late import late

import pyro_fed as pf

curves = late("benchmarks.helpers.curves")


def test_a_diverged_run_keeps_its_rounds_and_the_table_counts_it(monkeypatch, capsys):
    record = xr.Dataset(
        {"accuracy": ("round", [0.5, 0.75]), "reason": ("round", ["", "x"])}, coords={"round": np.arange(2)}
    )

    def diverges(*_, **__):
        error = pf.errors.DivergenceError("not finite", round=2)
        error.result = {"federation": record}
        raise error

    monkeypatch.setattr(pf, "run", diverges)
    found = curves.by_round(pf.FedAvg(), None, None, 4)["accuracy"].values
    np.testing.assert_array_equal(found, [0.5, 0.75, np.nan, np.nan])
    curves.print_table(
        "a table", {"FedAvg": np.stack([found, [0.5, 0.75, 0.8, 0.9]])}, curves.at_rounds(range(1, 5), (1, 4))
    )
    said = capsys.readouterr().out
    assert "FedAvg diverges in round 3" in said and "1 of 2 diverged" in said and "0.50 ± 0.00" in said


def test_a_run_without_a_result_is_an_error(monkeypatch):
    def diverges(*_, **__):
        raise pf.errors.DivergenceError("not finite", round=0)

    monkeypatch.setattr(pf, "run", diverges)
    with pytest.raises(pf.errors.DivergenceError):
        curves.by_round(pf.FedAvg(), None, None, 4)

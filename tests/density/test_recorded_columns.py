"""Columns of text in the graph of a model: what is recorded depends on the rows that it is run on."""

import pytest
import torch

from pyro_fed.density.compiling.tracing import to_graph
from pyro_fed.density.rows.labelled import Labels, labelled

LEVEL = torch.tensor([0.5, 1.5, 2.5])
USES = {
    "equal": lambda column: column == "b",
    "unequal": lambda column: column != "b",
    "isin": lambda column: column.isin(["a", "c"]),
    "map": lambda column: column.map({"a": 1.0, "b": 2.0, "c": 4.0}),
    "lookup": lambda column: LEVEL[column],
    "ordered": lambda column: column >= "b",
    "codes": lambda column: column.cat.codes + 1,
    "a part of it": lambda column: column[1:] == "c",
    "another form": lambda column: LEVEL[column.reshape(2, 2)],
}


@pytest.mark.parametrize("use", USES)
def test_what_is_recorded_of_a_column_is_computed_from_the_rows_at_hand(use):
    def of_codes(codes):
        return [USES[use](labelled(codes, Labels("abc", ordered=True), "stage"))]

    recorded, other = to_graph(of_codes, [torch.tensor([0, 1, 2, 1])]), torch.tensor([2, 0, 1, 1])
    (found,), (expected,) = recorded(other), of_codes(other)
    assert torch.equal(found, expected)
    assert not torch.equal(found, of_codes(torch.tensor([0, 1, 2, 1]))[0])

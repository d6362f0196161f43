"""How the rows of pooled data go to clients.

    import numpy as np
    parts = Dirichlet(0.3, by=y).split(len(y), 10, np.random.default_rng(0))

Every partition is a frozen dataclass with one method, `split`; `pyro_fed.federation.partition.base` has its
guarantees and the errors of all partitions. `by` is one value a row (array, tensor or sequence);
None means the labels handed to `split`, which a Federation takes from its last row-sharded argument.

| partition | a client holds | command line |
| --- | --- | --- |
| `IID()` | a random, equal part | `iid` |
| `Dirichlet(alpha)` | its own mix of labels, Dirichlet-distributed | `dirichlet:0.3` |
| `QuantitySkew(alpha)` | a random part of Dirichlet-distributed size | `quantity:0.5` |
| `LabelShards(c)` | rows of c labels alone | `shards:2` |
| `MajorityShare(share)` | mostly rows of its home label | `majority:0.8` |
| `FeatureSkew(feature)` | the pooled mix of labels, and its own range of a feature | |
| `ByGroup(by)` | the rows of one value, or of several whole ones | `group`, `group:COLUMN` |
| `SortedBy(by)` | a contiguous block of the sorted rows | `sorted`, `sorted:COLUMN` |
| `Explicit(indices)` | the rows listed | |
"""

from pyro_fed.conventions.doors import public_dir
from pyro_fed.federation.partition.base import Partition
from pyro_fed.federation.partition.kinds import (
    IID,
    ByGroup,
    Dirichlet,
    Explicit,
    FeatureSkew,
    LabelShards,
    MajorityShare,
    QuantitySkew,
    SortedBy,
    parse,
)
from pyro_fed.federation.partition.on_disk import rows_on_disk

__all__ = [
    "IID",
    "ByGroup",
    "Dirichlet",
    "Explicit",
    "FeatureSkew",
    "LabelShards",
    "MajorityShare",
    "Partition",
    "QuantitySkew",
    "SortedBy",
    "parse",
    "rows_on_disk",
]
__dir__ = public_dir(__all__)

"""One consensus step: every agent's weighted mean of what it receives, as one sparse product.

Source: Wang et al., *Peer-to-peer variational federated learning over arbitrary graphs*, Eq. (4) and (8).

    new_i = Σ_j W_ij value_j
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor


def mix(weights: sparse.csr_array, values: Tensor) -> Tensor:
    """W (C, C), or some rows of it (R, C), times the agents' values (C, ...): the work grows with the links."""
    shape = (weights.shape[0], *values.shape[1:])
    flat = values.reshape(len(values), -1)
    if flat.device.type == "cpu":
        mixed = torch.from_numpy(weights.astype(flat.numpy().dtype, copy=False) @ flat.numpy())
        return mixed.reshape(shape)
    entries = weights.tocoo()
    where = torch.from_numpy(np.stack([entries.row, entries.col])).to(flat.device)
    data = torch.from_numpy(entries.data).to(flat)
    received: Tensor = torch.sparse.mm(torch.sparse_coo_tensor(where, data, weights.shape), flat)
    return received.reshape(shape)

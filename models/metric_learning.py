"""Bayesian metric learning from pairs: which of them are alike.

    gamma_k ~ N(0, 1),    mu ~ N(0, 1)
    d_i = sum_k gamma_k (v_k . (x_i - x_i'))²          squared distance of pair i under A = sum_k gamma_k v_k v_k'
    y_i ~ Bernoulli(sigmoid(mu - d_i))                 1: the same class, 0: different classes

v_k are the leading eigenvectors of the data's second-moment matrix. As in the source, gamma may be negative.
Source: el Mekkaoui et al., Federated stochastic gradient Langevin dynamics, Section 5.2, after Yang et al. (2007).
The source writes 1 / (1 + exp(y (d - mu))) with y one or zero, which for zero is 1/2 whatever the pair; meant is the
label in {-1, 1}, which is the above.

Data: pairs of scikit-learn's digits (1,797 real images of 8 by 8 pixels, 10 classes), in place of isolet, which is
not bundled. Pairs of one shard come from two classes of its own, five shards in all, as the source's shards share no
class; a pair's covariates are its squared projections, and `shard` says where it belongs.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
CLASSES_PER_SHARD = 2


def model(projections, y=None):
    """Args: projections, (v_k . (x - x'))² of each pair (rows, K); y, 1. for alike, 0. for different (rows,)."""
    gamma = pyro.sample("gamma", dist.Normal(projections.new_zeros(projections.shape[1]), 1.0).to_event(1))
    mu = pyro.sample("mu", dist.Normal(projections.new_zeros(()), 1.0))
    with pyro.plate("data", len(projections)):
        pyro.sample("y", dist.Bernoulli(logits=mu - projections @ gamma), obs=y)


def load_data(seed=0, num_train=10_000, num_test=1_000, num_vectors=10):
    """(projections, y) for training and test: half of the pairs alike, shards one after the other."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0)
    labels = torch.tensor(labels)
    vectors = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, :num_vectors]
    generator = torch.Generator().manual_seed(seed)
    train, test = (_pairs(x @ vectors, labels, number, generator) for number in (num_train, num_test))
    scale = train[0].mean(0)
    return tuple(((p / scale).float(), y.float()) for p, y in (train, test))


def shards(num_rows):
    """(rows,) the shard of each row of `load_data`'s arguments."""
    count = 10 // CLASSES_PER_SHARD
    return torch.arange(count).repeat_interleave(num_rows // count)


def _pairs(projected, labels, number, generator):
    """Squared differences of `number` pairs and whether they are alike."""
    rows, alike = [], []
    each = number // (10 // CLASSES_PER_SHARD) // 2
    for first in range(0, 10, CLASSES_PER_SHARD):
        a, b = ((labels == first + i).nonzero().flatten() for i in range(CLASSES_PER_SHARD))
        same = torch.cat([_draw(c, c, each // 2 + (c is a) * (each % 2), generator) for c in (a, b)])
        rows += [same, _draw(a, b, each, generator)]
        alike += [torch.ones(each), torch.zeros(each)]
    pairs = torch.cat(rows)
    return (projected[pairs[:, 0]] - projected[pairs[:, 1]]).square(), torch.cat(alike)


def _draw(left, right, number, generator):
    """Row numbers of `number` pairs, the second different from the first: (number, 2)."""
    i = torch.randint(len(left), (number,), generator=generator)
    j = torch.randint(len(right) - 1, (number,), generator=generator)
    shift = (j >= i) & torch.tensor(left is right)
    return torch.stack([left[i], right[j + shift]], 1)

"""Classification data of the two papers that need no download: those defined by a formula, and scikit-learn's.

    twonorm    20 unit normals with means ±2/√20 in every coordinate, by class
    ringnorm   N(0, 4 I) against N(2/√20, I), in 20 dimensions
    waveform   mixtures of two of three triangular waves at 21 points, with unit noise: the first mixture or not
    kin8nm     UCI's robot arm (from the folder that PYRO_FED_DATA names): the distance above its median or not

(Breiman 1996; Breiman et al. 1984; in Table 2 of Kassab and Simeone with these sizes.) Covertype and MNIST, which
need a download, are represented by these and by scikit-learn's digits. A linear rule is right on kin8nm about as often
as on Covertype, three times in four, and its two classes are as wide as each other.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from models.bnn_regression import load_uci

#: Arguments of a model for the training rows, and for the test rows.
Split = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def twonorm(seed: int, rows: int = 7400) -> Split:
    """Two unit normals; the best accuracy possible is 97.7 %, by a linear rule."""
    y, noise = _in_turn(rows, 2), _noise(seed, rows, 20)
    return _split(noise + (2 * y[:, None] - 1) * 2 / 20**0.5, y.float())


def ringnorm(seed: int, rows: int = 7400) -> Split:
    """A narrow normal at the side of a wide one, which no linear rule separates well."""
    y, noise = _in_turn(rows, 2), _noise(seed, rows, 20)
    return _split(torch.where(y[:, None] > 0, noise + 2 / 20**0.5, 2 * noise), y.float())


def waveform(seed: int, rows: int = 5086) -> Split:
    """Three kinds of noisy waves, one against the other two."""
    kind, noise = _in_turn(rows, 3), _noise(seed, rows, 22)
    points = torch.arange(1.0, 22.0)
    waves = torch.stack([(6 - (points - centre).abs()).clamp_min(0) for centre in (11, 15, 7)])
    first, second = waves[torch.tensor([0, 0, 1])[kind]], waves[torch.tensor([1, 2, 2])[kind]]
    share = torch.special.ndtr(noise[:, :1])  # uniform on [0, 1]
    return _split(share * first + (1 - share) * second + noise[:, 1:], (kind == 0).float())


def kin8nm(seed: int) -> Split:
    """Standardised covariates of 8,192 positions of the arm; the seed puts the rows of each class in order."""
    x, y = (torch.tensor(a, dtype=torch.float32) for a in load_uci("kin8nm"))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    x, far = ((x - x.mean(0)) / x.std(0))[order], (y > y.median())[order]
    in_turn = torch.stack([(~far).nonzero()[:, 0], far.nonzero()[:, 0]], 1).flatten()
    return _split(x[in_turn], far[in_turn].float())


def digits(seed: int, classes: int = 10, test_size: float = 0.2) -> Split:
    """scikit-learn's digits 0 .. classes - 1, pixels in [0.01, 1] as in the papers, the same mix in both parts."""
    x, y = load_digits(return_X_y=True)
    x, y = 0.99 / 16 * x[y < classes] + 0.01, y[y < classes]
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=test_size, random_state=seed, stratify=y)
    train, test = (
        (torch.tensor(a, dtype=torch.float32), torch.tensor(b)) for a, b in ((x_train, y_train), (x_test, y_test))
    )
    return train, test


def _in_turn(rows: int, classes: int) -> Tensor:
    """Classes in turn: with the same counts for all seeds clients keep their sizes, and compiled steps fit."""
    return torch.arange(rows) % classes


def _noise(seed: int, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def _split(x: Tensor, y: Tensor) -> Split:
    """80 % for training, with a column of ones for the intercept."""
    x, cut = torch.cat([x, torch.ones(len(x), 1)], 1), int(0.8 * len(x))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])

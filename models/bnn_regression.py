"""Bayesian neural network for regression: one hidden ReLU layer, Gaussian noise of unknown precision.

    gamma ~ Gamma(1, 0.1)                                precision of the noise
    w1, b1, w2, b2 ~ N(0, 1/lambda) each, lambda = e     fixed precision of the weights
    y_i ~ N(relu(x_i w1 + b1) · w2 + b2, 1/gamma)

Source: Kassab and Simeone, Federated generalized Bayesian learning via distributed Stein variational
gradient descent, Section 7 (lambda = e; 50 hidden units; data split 90 % / 10 % and standardised, Appendix
C.1). It takes the rest from Hernández-Lobato and Adams (2015), and its code from Liu and Wang (2016): the
prior of gamma is that of Liu and Wang's SVGD experiments, since the paper states none.

Data: scikit-learn's diabetes (442 rows, 10 covariates, real) by default; the papers' UCI sets are read from
$PYRO_FED_DATA/uci/NAME.npz with arrays `x` (rows, covariates) and `y` (rows,). Targets are standardised: an
RMSE is in units of the training targets' SD.
"""

import math
import os
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
WEIGHT_SD = math.exp(-0.5)
UCI = ("concrete", "energy", "kin8nm", "naval-propulsion-plant", "power-plant", "wine-quality-red", "yacht")


def model(x, y=None, *, hidden=50):
    """Args: x, covariates (rows, columns); y, standardised target (rows,); hidden, number of units."""
    shape, rate = x.new_tensor([1.0, 0.1])
    gamma = pyro.sample("gamma", dist.Gamma(shape, rate))
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(x.shape[1], hidden), WEIGHT_SD).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(hidden), WEIGHT_SD).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(hidden), WEIGHT_SD).to_event(1))
    b2 = pyro.sample("b2", dist.Normal(x.new_zeros(()), WEIGHT_SD))
    mean = torch.relu(x @ w1 + b1) @ w2 + b2
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, gamma.rsqrt()), obs=y)


def load_data(seed=0, name="diabetes", test_size=0.1):
    """Standardised (x, y) for training and test, split by seed; name is "diabetes" or one of UCI."""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = load_diabetes(return_X_y=True, scaled=False) if name == "diabetes" else load_uci(name)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=test_size, random_state=seed)
    x_scaler, y_scaler = StandardScaler().fit(x_train), StandardScaler().fit(y_train[:, None])

    def prepare(x, y):
        x, y = x_scaler.transform(x), y_scaler.transform(y[:, None])[:, 0]
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)

    return prepare(x_train, y_train), prepare(x_test, y_test)


def load_uci(name):
    """Raw (x, y) of a UCI set, from the folder that the environment variable PYRO_FED_DATA names."""
    if name not in UCI:
        raise ValueError(f"data set {name!r} is not known; take diabetes or one of {', '.join(UCI)}")
    root = os.environ.get("PYRO_FED_DATA")
    path = Path(root or "$PYRO_FED_DATA") / "uci" / f"{name}.npz"
    if not root or not path.is_file():
        state = "is not set" if not root else f"is {root!r}"
        raise FileNotFoundError(
            f"{path} is not there: the environment variable PYRO_FED_DATA {state}; set it to the folder that "
            "holds uci/, or take name='diabetes', which needs no file"
        )
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["x"], arrays["y"]

"""Bayesian linear regression with known noise: the conjugate model with correlated parameters.

    w ~ N(0, I),    y_i | w ~ N(x_i · w, 0.7²)

The posterior is Gaussian in closed form (`exact_posterior`). Source: Bishop, Pattern Recognition and
Machine Learning, Eq. 3.49-3.51. Data: scikit-learn's diabetes (442 patients, 10 covariates, real, some
strongly correlated), standardised by the training mean and SD, with an intercept in the last column.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
PRIOR_SD = 1.0
NOISE_SD = 0.7


def model(x, y=None):
    """Args: x, covariates and intercept column (rows, columns); y, standardised target (rows,)."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), PRIOR_SD).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE_SD), obs=y)


def load_data(seed=0, test_size=0.1):
    """Standardised (x, y) for training and test, the split drawn by seed."""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = load_diabetes(return_X_y=True, scaled=False)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=test_size, random_state=seed)
    x_scaler, y_scaler = StandardScaler().fit(x_train), StandardScaler().fit(y_train[:, None])

    def prepare(x, y):
        x = torch.tensor(x_scaler.transform(x), dtype=torch.float32)
        y = torch.tensor(y_scaler.transform(y[:, None])[:, 0], dtype=torch.float32)
        return torch.cat([x, torch.ones(len(x), 1)], dim=1), y

    return prepare(x_train, y_train), prepare(x_test, y_test)


def exact_posterior(train):
    """Posterior mean (columns,) and covariance (columns, columns) of w in float64, given train = (x, y)."""
    x, y = (argument.double() for argument in train)
    precision = x.T @ x / NOISE_SD**2 + torch.eye(x.shape[1], dtype=x.dtype) / PRIOR_SD**2
    covariance = torch.linalg.inv(precision)
    return covariance @ (x.T @ y) / NOISE_SD**2, covariance

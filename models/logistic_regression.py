"""Bayesian logistic regression with a hierarchical prior, as in the papers on (D)SVGD.

    xi ~ Gamma(1, 0.01),    w | xi ~ N(0, I / xi),    y_i | w ~ Bernoulli(sigmoid(x_i · w))

Source: Kassab and Simeone, Federated generalized Bayesian learning via distributed Stein variational
gradient descent, Section 7, after Gershman et al. (2012). The paper's labels are {-1, 1}, here {0, 1}; the
likelihood is the same. On unconstrained space the parameters are the paper's [w, log xi].

Data: scikit-learn's breast cancer (569 tumours, 30 covariates, real), split 80 % / 20 % as in the paper's
Table 2, standardised by the training mean and SD, with an intercept in the last column. It is the larger
Wisconsin diagnostic set, not the paper's "Breast Cancer" (263 rows of 9 covariates, not bundled).
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"


def model(x, y=None):
    """Args: x, covariates and intercept column (rows, columns); y, labels 0. or 1. (rows,)."""
    shape, rate = x.new_tensor([1.0, 0.01])
    xi = pyro.sample("xi", dist.Gamma(shape, rate))
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), xi.rsqrt()).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def load_data(seed=0, test_size=0.2):
    """Standardised (x, y) for training and test, the split drawn by seed."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = load_breast_cancer(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=test_size, random_state=seed)
    scaler = StandardScaler().fit(x_train)

    def prepare(x, y):
        x = torch.tensor(scaler.transform(x), dtype=torch.float32)
        return torch.cat([x, torch.ones(len(x), 1)], dim=1), torch.tensor(y, dtype=torch.float32)

    return prepare(x_train, y_train), prepare(x_test, y_test)

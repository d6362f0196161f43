"""Bayesian multi-layer perceptron for classification: hidden layers of 18, 18 and 8 ReLU units, softmax.

    w_l, b_l ~ N(0, 1) each,    a_0 = x_i,    a_l = relu(a_(l-1) w_l + b_l),    l = 1, 2, 3
    y_i ~ Categorical(softmax(a_3 w_4 + b_4))

Source: el Mekkaoui et al., Federated stochastic gradient Langevin dynamics, Section 5.3. The paper does not state
the prior; a standard normal one is taken, or with fan_in=True, as for wide networks (Neal, 1996), one whose weights
have variance 1 / (units before), so that its draws are networks of moderate outputs.

Data: scikit-learn's breast cancer (569 tumours, 30 covariates, 2 classes, real), split 80 % / 20 % and
standardised by the training mean and SD, in place of the paper's SUSY (5 million collisions, not bundled).
"""

from itertools import pairwise

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
HIDDEN = (18, 18, 8)


def model(x, y=None, *, hidden=HIDDEN, num_classes=2, fan_in=False):
    """Args: x, covariates (rows, columns); y, classes 0 .. num_classes-1 (rows,); hidden, units of each layer.

    fan_in: see above.
    """
    sizes = (x.shape[1], *hidden, num_classes)
    activity = x
    for i, (before, after) in enumerate(pairwise(sizes), start=1):
        sd = before**-0.5 if fan_in else 1.0
        w = pyro.sample(f"w{i}", dist.Normal(x.new_zeros(before, after), sd).to_event(2))
        b = pyro.sample(f"b{i}", dist.Normal(x.new_zeros(after), 1.0).to_event(1))
        activity = activity @ w + b
        if i <= len(hidden):
            activity = torch.relu(activity)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=activity), obs=y)


def load_data(seed=0, test_size=0.2):
    """Standardised (x, y) for training and test, the split drawn by seed."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    x, y = load_breast_cancer(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=test_size, random_state=seed)
    scaler = StandardScaler().fit(x_train)

    def prepare(x, y):
        return torch.tensor(scaler.transform(x), dtype=torch.float32), torch.tensor(y, dtype=torch.int64)

    return prepare(x_train, y_train), prepare(x_test, y_test)

"""Bayesian neural network for classification: one hidden ReLU layer, softmax over the classes.

    w1, b1, w2, b2 ~ N(0, 1/lambda) each, lambda = e     fixed precision of the weights
    y_i ~ Categorical(softmax(relu(x_i w1 + b1) w2 + b2))

Source: Kassab and Simeone, Federated generalized Bayesian learning via distributed Stein variational
gradient descent, Section 7 and Appendix C.1. The paper has 100 hidden units for MNIST; the default here is
50 for the smaller images.

Data: scikit-learn's digits (1,797 real images of 8 by 8 pixels from 0 to 16, 10 classes), split 86 % / 14 %
as in the paper's Table 2. Pixels are scaled to [0.01, 1] as in the paper: times 0.99 / maximum, plus 0.01.
"""

import math

import pyro
import pyro.distributions as dist
import torch

PLATE = "data"
WEIGHT_SD = math.exp(-0.5)
MAX_PIXEL = 16


def model(x, y=None, *, hidden=50, num_classes=10):
    """Args: x, pixels (rows, pixels); y, classes 0 .. num_classes-1 (rows,); hidden, number of units."""
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(x.shape[1], hidden), WEIGHT_SD).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(hidden), WEIGHT_SD).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(hidden, num_classes), WEIGHT_SD).to_event(2))
    b2 = pyro.sample("b2", dist.Normal(x.new_zeros(num_classes), WEIGHT_SD).to_event(1))
    logits = torch.relu(x @ w1 + b1) @ w2 + b2
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def load_data(seed=0, test_size=0.14):
    """(pixels, classes) for training and test, the split (same mix of classes in both) drawn by seed."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        x * (0.99 / MAX_PIXEL) + 0.01, y, test_size=test_size, random_state=seed, stratify=y
    )

    def prepare(x, y):
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)

    return prepare(x_train, y_train), prepare(x_test, y_test)

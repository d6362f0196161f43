"""Handwritten digits by a small convolutional network.

    y_i ~ Categorical(softmax(linear(pool(relu(conv(x_i))))))

eight filters of 3 × 3, the largest of each 2 × 2, then a linear layer: 8 · 9 + 8 + 72 · 10 + 10 = 810 weights. All
~ N(0, 1 / number of inputs), biases ~ N(0, 1).

Source: LeCun et al. (1998), Gradient-based learning applied to document recognition.

Data: 1,797 digits of 8 × 8 pixels (scikit-learn), 86 % / 14 %.
"""

import pyro
import pyro.distributions as dist
import torch
from torch.nn import functional

PLATE = "data"
FILTERS = 8


def model(x, y=None, num_classes=10):
    """Args: x, images in [0, 1] (rows, 8, 8); y, int (rows,)."""
    kernel = pyro.sample("kernel", dist.Normal(x.new_zeros(FILTERS, 1, 3, 3), 1 / 3).to_event(4))
    bias = pyro.sample("bias", dist.Normal(x.new_zeros(FILTERS), 1.0).to_event(1))
    inputs = FILTERS * ((x.shape[-2] - 2) // 2) * ((x.shape[-1] - 2) // 2)
    weight = pyro.sample("weight", dist.Normal(x.new_zeros(inputs, num_classes), inputs**-0.5).to_event(2))
    level = pyro.sample("level", dist.Normal(x.new_zeros(num_classes), 1.0).to_event(1))
    maps = functional.max_pool2d(functional.conv2d(x[:, None], kernel, bias).relu(), 2)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=maps.flatten(1) @ weight + level), obs=y)


def load_data(seed=0):
    """((x, y) to train on, (x, y) to test), float32 and int64."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[250:], order[:250]
    return (x[train], y[train]), (x[test], y[test])

"""The shipped models without latents inside their plates, imported."""

import importlib

FLAT = (
    "gaussian_mean",
    "linear_regression",
    "logistic_regression",
    "bnn_regression",
    "bnn_classification",
    "mlp_classification",
    "metric_learning",
    "gaussian_mixture_1d",
    "gaussian_mixture_2d",
)


def imported(names):
    """The models' modules by name."""
    return {name: importlib.import_module(f"models.{name}") for name in names}

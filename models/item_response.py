"""A questionnaire: which persons solve which items, by the two-parameter logistic model of item response theory.

    y_pi ~ Bernoulli(sigmoid(discrimination_i (ability_p - difficulty_i))),    ability_p ~ N(0, 1)

difficulty_i ~ N(0, 1.5^2), discrimination_i ~ LogNormal(0, 0.5). Persons are the rows: an ability never leaves its
client.

Source: Birnbaum (1968), Some latent trait models; Lord and Novick, Statistical theories of mental test scores.

Data: simulated from the model, 200 persons and 8 items.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "person"


def model(y):
    """Args: y, 1. where the person solved the item (persons, items)."""
    items = y.shape[1]
    difficulty = pyro.sample("difficulty", dist.Normal(y.new_zeros(items), 1.5).to_event(1))
    discrimination = pyro.sample("discrimination", dist.LogNormal(y.new_zeros(items), 0.5).to_event(1))
    with pyro.plate("person", len(y)):
        ability = pyro.sample("ability", dist.Normal(y.new_tensor(0.0), 1.0))
        logits = discrimination * (ability[..., None] - difficulty)
        pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def load_data(seed=0, persons=200, items=8):
    """Simulated answers (y,), float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    difficulty = torch.linspace(-1.5, 1.5, items)
    discrimination = 0.6 + 1.4 * torch.rand(items, generator=generator)
    ability = torch.randn(persons, 1, generator=generator)
    chance = (discrimination * (ability - difficulty)).sigmoid()
    return ((torch.rand(persons, items, generator=generator) < chance).float(),), None

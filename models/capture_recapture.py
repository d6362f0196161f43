"""Birds that are ringed and seen again: the Cormack-Jolly-Seber model of survival.

    P(alive in year t + 1 | alive in t) = survival,    P(seen in t | alive in t) = detection

given a bird's first capture in year f. Summed over when it died: with l the last year in which it was seen, its history
has the probability

    survival^(l - f) Π_{t = f+1..l} detection^y_t (1 - detection)^(1 - y_t) never_l,
    never_T = 1,    never_t = 1 - survival + survival (1 - detection) never_{t+1}

where never_t is that of not being seen after t. survival, detection ~ Beta(1, 1), by sex.

Source: Lebreton et al. (1992), Modeling survival and testing biological hypotheses using marked animals.

Data: simulated from the model, 200 birds over 8 years, with survival (0.7, 0.6) and detection (0.5, 0.6) of females and
males.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "bird"
SURVIVAL, DETECTION = (0.7, 0.6), (0.5, 0.6)


def model(seen, male):
    """Args: seen, 1. in years in which the bird was caught, at least once (birds, years); male, int (birds,)."""
    ones = seen.new_ones(2)
    survival = pyro.sample("survival", dist.Beta(ones, 1.0).to_event(1))
    detection = pyro.sample("detection", dist.Beta(ones, 1.0).to_event(1))
    years = seen.shape[1]
    year = torch.arange(years, device=seen.device)
    first = seen.argmax(-1)
    last = years - 1 - seen.flip(-1).argmax(-1)
    never = [torch.ones_like(survival)]
    for _ in range(years - 1):
        never.insert(0, 1 - survival + survival * (1 - detection) * never[0])
    never = torch.stack(never, -1)  # (sexes, years)
    alive = ((year > first[:, None]) & (year <= last[:, None])).to(seen)
    s, p = survival[male][..., None], detection[male][..., None]
    yearly = alive * (s.log() + seen * p.log() + (1 - seen) * (1 - p).log())
    with pyro.plate("bird", len(seen)):
        pyro.factor("history", yearly.sum(-1) + never[male, last].log())


def load_data(seed=0, birds=200, years=8):
    """(seen, male) of simulated birds, float32 and int64; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    male = (torch.rand(birds, generator=generator) < 0.5).long()
    first = torch.randint(years - 1, (birds,), generator=generator)
    alive, seen = torch.zeros(birds, dtype=torch.bool), []
    for year in range(years):
        survives = torch.rand(birds, generator=generator) < torch.tensor(SURVIVAL)[male]
        alive = (alive & survives) | (first == year)
        caught = torch.rand(birds, generator=generator) < torch.tensor(DETECTION)[male]
        seen.append((alive & caught) | (first == year))
    return (torch.stack(seen, -1).float(), male), None

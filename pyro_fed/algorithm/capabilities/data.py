"""What an algorithm sees of the data, and where it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class Pooled:
    """Works on the pooled data, as those of a single client.

    Class attributes:
        joint: works on the joint density of all latents; others see the rows' own latents integrated out.
    """

    joint: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Tempered:
    """Its clients' rows come with their likelihood raised to one over the temperature, as in generalised Bayes.

    What works on rows otherwise than as `ClientData` gives them takes a temperature of its own.

    Args:
        temperature: α; 1 is Bayes.
    """

    temperature: float = 1.0


class OnCPU:
    """Its steps are computed on the CPU whatever the federation's device.

    Pyro's own samplers and guides draw random numbers within the step, from torch's global generator: on a device they
    would be others, and would change the state of that device's generator.
    """

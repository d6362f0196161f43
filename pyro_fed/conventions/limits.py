"""Limits of wrong answers and of chance, the same for every check, criterion and comparison."""

from __future__ import annotations

from typing import NamedTuple

#: A mean that is off by more than this many of the posterior's SDs matters, and an SD by more than this factor.
MATTERS, SD_MATTERS = 0.25, 1.25
#: An error of this many SDs, or of this many nats of the log density, does not matter: it moves a mean by less.
NEGLIGIBLE = 0.1
#: An estimate that is this many standard errors from a value differs from it.
STANDARD_ERRORS = 3.0
#: Chance that a test of a result speaks against a right one, over all its parameters together.
FALSE_ALARM_CHANCE = 0.01
#: Fewer draws than this, or weighted draws worth fewer, do not describe a distribution.
MIN_DRAWS = 10
#: Fewer independent draws than this, or weighted points worth fewer, do not show a distribution's means and SDs: the
#: effective number that Vehtari et al. (2021), *Rank-normalization, folding, and localization*, recommend.
MIN_EFFECTIVE_DRAWS = 400
#: A share of a distribution's mass that is outside of some 95 % interval and may be left out; a larger one may not.
NEGLIGIBLE_MASS = 0.025
#: Part of the limits from which on an error is near them: a mean 0.2 SDs off, an SD of 0.84 or 1.2 times the right one.
NEAR_LIMIT_SHARE = 0.8

#: The log-likelihoods of all rows that differ by no more nats are the same.
SAME_NATS = 0.05

#: Units in the last place by which sums and log densities may err through rounding.
ROUNDING_UNITS = 64
#: The same of one log density's sum over rows, which is computed twice.
SUM_ROUNDING_UNITS = 4
#: Values in float64 are the same up to this share of their size, half of its digits.
SAME_SHARE = 2.0**-26


class Limits(NamedTuple):
    """The limits of an answer's errors: of a mean, in the posterior's SDs, and of an SD, as a factor either way."""

    mean_error: float = MATTERS
    sd_factor: float = SD_MATTERS


#: What is wrong beyond these is an error; a finer aim is a wish.
WRONG = Limits()

"""Every form is accepted with Pyro's own density, or refused with words that lead to one that is."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from form import outcome
from forms import FORMS


def test_there_are_at_least_a_hundred_forms_with_names_of_their_own():
    assert len({form.name for form in FORMS}) == len(FORMS) >= 100


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_a_form_is_accepted_and_right_or_refused_and_cured(form):
    result, said = outcome(form)
    assert result != "open", said

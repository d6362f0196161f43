"""Modules that take long to import, imported when a test first uses them: collecting all tests should cost little.

az, stats = late("arviz"), late("scipy.stats")
"""

import importlib


class late:
    """A module that is imported when one of its names is first looked up.

    Args:
        name: of the module, with dots.
    """

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self._name), attribute)

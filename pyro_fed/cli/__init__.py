"""The shell: ``pyro-fed run``, ``check``, ``bench``, ``compare``, ``doctor``, ``flower``, ``list`` and ``show``.

Its one public name is the group of commands, `pyro_fed.cli.main.main`; flags stand in `options`, once for all commands.
"""

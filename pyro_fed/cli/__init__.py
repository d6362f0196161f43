"""The shell: ``pyro-fed run``, ``compare``, ``flower``, ``list`` and ``show``."""

"""Pure tensor functions behind the algorithms: no Pyro, no state, no data-dependent Python branch.

Everything here takes and returns tensors (or frozen dataclasses of tensors), so that ``torch.func.vmap``
runs it over clients and ``make_fx`` traces it. Modules: ``kernels``, ``balanced`` and ``stein`` (SVGD, KSD),
``kde``, ``gaussian`` and ``gaussian_structures``, ``backtrack`` and ``points`` (natural parameters), ``langevin``,
``step_sizes``.
"""

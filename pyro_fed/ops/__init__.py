"""Pure tensor functions behind the algorithms: no Pyro, no state, no data-dependent Python branch.

The caches of `matrices` and `batched` hold functions of their arguments: no answer depends on them.

Everything here takes and returns tensors (or frozen dataclasses of tensors), so that ``torch.func.vmap``
runs it over clients and ``make_fx`` traces it.

    kernel_base, kernels, stein                     SVGD and its discrepancies
    gaussian, backtrack, anderson                   natural parameters
    points, langevin, step_sizes                    expectations, chains
    hamiltonian                                     trajectories
    annealing, importance                           weights
    student, adaptive_importance                    proposals with long tails
    matrices, entries                               linear algebra
    newton_ascent                                   climbs to modes
    whitening                                       coordinates in which a Gaussian is standard
    batched, memory                                 maps over batches, and how large these may be
    small_counts                                    counts that are withheld
    arviz_versions                                  what ArviZ computes of arrays, in NumPy
"""

"""Pure tensor functions behind the algorithms: no Pyro, no state, no data-dependent Python branch.

The caches of `cholesky` and `batched` hold functions of their arguments: no answer depends on them.

Everything here takes and returns tensors (or frozen dataclasses of tensors), so that ``torch.func.vmap``
runs it over clients and ``make_fx`` traces it.

    pairwise, kernel_base, kernels, balanced, stein, kde                    SVGD and its discrepancies
    natural, gaussian, gaussian_structures, backtrack, anderson, mixing     natural parameters
    points, langevin, visits, step_sizes, annealing, importance             expectations, chains, weights
    student, student_mixtures, adaptive_importance                          proposals with long tails
    cholesky, tiny, matrices, entries                                       linear algebra
    whitening                                                               coordinates in which a Gaussian is standard
    batched, moments                                                        maps over batches, and what they return
    arviz_versions                                                          what ArviZ computes of arrays, in NumPy
"""

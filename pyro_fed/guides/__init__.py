"""Pyro's guides as approximations that can be federated.

In this room:

    automatic               automatic Gaussian guides, by the Gaussian family that they span
    written                 a hand-written guide as a product of exponential families
    exponential_families    the families that such a guide may use
    program                 any guide, as a function of its parameters and a seed
    guide_sites             a guide's sites against the model's
    pooled_model            the pooled model as Pyro's own algorithms run it
    fitting                 a Gaussian guide fitted by Adam
    kept_draws              draws of a fitted guide, each once in a result
    param_store             Pyro's global param store, kept clean
"""

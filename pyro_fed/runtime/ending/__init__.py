"""The end of a run: its last state becomes draws, and the draws an InferenceData with its findings.

finish         draws, doubts, the audit, the result
final_state    a run without an end: its last state alone
collecting     latents inside the plate, and how well they were integrated out
by_sums        the audit of a result whose rows are elsewhere
privacy_noise  what the noise of differential privacy does to an answer
"""

from pyro_fed.runtime.ending.finish import Finish, said_of

__all__ = ["Finish", "said_of"]

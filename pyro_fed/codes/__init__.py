"""What speaks against a result, or what its user should know: findings with a code and figures, and all their texts.

finding        what a finding is; topics, severities; `doubt` and `note`, which make a sentence a kind of finding
sentences      every sentence, one function a code: the only file with texts of findings
cures          what to do about draws that are not the posterior's, of which `audit.advice` chooses
"""

"""Findings against a result, or that its user should know, with a code and figures, and all their texts.

finding        the class of findings; topics, severities; `doubt` and `note`, which make a sentence a kind of finding
sentences      every sentence, one function a code: the only file with texts of findings
cures          the cures for draws that are not the posterior's, from which `audit.moment_findings` chooses
"""

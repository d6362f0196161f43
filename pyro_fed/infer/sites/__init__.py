"""Gaussian sites, which most families share, and functions of them. Derivatives are those of `density.derivatives`.

In this room:

    gaussian_sites      what algorithms of Gaussian sites share, and their clients' contributions
    online_newton       diagonal sites from scores alone
    records             states as typed records
"""

"""Deployments: clients and agents in separate processes, each with its own rows.

    flower                clients at the nodes of Flower, with a server; programs import it as `pyro_fed.flower`
    files                 clients whose orders and answers are files, mailed by hand
    agents                agents without a server, that talk to their neighbours over TLS
    remote                what Flower and files share: orders, answers, and the executor of both
    policy                what may leave a site: its rules, the gate of all messages, and a ledger of what left
    review                what a reviewer asks of a result: versions, hashes, options, sites
    rows                  a site's rows from a file
    signing_keys          Ed25519 keys that sign files
    claimed_federation    the federation as a process knows it that has some rows of it, or none

All run the core's round loop, and the core does not import them. The command line, above both, does.
"""

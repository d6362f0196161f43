from .consensus_mc import ConsensusMC as ConsensusMC

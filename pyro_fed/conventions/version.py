"""The package's version, from its metadata, and names that `pyro_fed` itself gives until a later one."""

from __future__ import annotations

from importlib.metadata import version

#: Of the installed package.
VERSION = version("pyro_fed")

#: Public module → its names that `pyro_fed` still gives, with a DeprecationWarning.
MODULES = {
    "papers": "GVI NPV P2PFinite PMD PaperDSVGD PaperParallelDSVGD PaperSVGD UDSVGD",
    "infer": (
        "Averaging BCM BayesADMM Conducive ConsensusMC DSGLD EndOfRun FALD FedDyn FedHMC FedLap FedLapCov FedPA "
        "FedProx FedSEP Given LocalSGLD Optimisers P2PEP P2PFedAvg P2PPushSum PVI ParallelDSVGD SAGALD SFVI SGLD SVGD "
        "SVI StepControl StreamingVB SummedLangevin optim step tilted update"
    ),
    "errors": (
        "CheckpointError ContractError DataError DivergenceError GraphError InterruptedRun ModelError ProtocolError "
        "QuorumError SettingError TimeLimitError"
    ),
    "formula": "GLM",
    "metrics": "ksd steps waic",
    "plots": (
        "plot_chains plot_check_intervals plot_checks plot_client_forest plot_comparison plot_consensus "
        "plot_contributions plot_convergence plot_cost plot_forest plot_graph plot_influence plot_pair plot_particles "
        "plot_partition plot_reliability"
    ),
    "progress": "Progress set_progress",
    "results": "InferenceData",
}
#: Old name → the module that has it.
MOVED = {name: module for module, names in MODULES.items() for name in names.split()}
#: The version that no longer gives them.
REMOVED_IN = "0.3"

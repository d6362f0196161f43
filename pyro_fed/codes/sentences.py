"""Every sentence of a finding, by topic. A function's name is the code, its arguments are the figures.

Texts have no full stop at their end. They state what was found, so the functions have no docstrings. Arguments named
as in `finding.PLACES` are the place of the finding; `cures` are part of the text. A text may change from version to
version, a code may not.
"""
# ruff: noqa: D103

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from pyro_fed.codes.finding import Finding, Topic, doubt, note
from pyro_fed.conventions.limits import MATTERS, SD_MATTERS
from pyro_fed.errors import listed
from pyro_fed.ops.arviz_versions import MEDIANS

#: Cures of a finding, a sentence each.
Cures = Sequence[str]

#: Beginning of sentences on draws that are not the posterior's.
NOT_THE_POSTERIORS = "these draws are not the posterior's"
#: The place of the audit's estimates.
MEASURED = "as short exact chains or weights estimate. The group 'audit' has all estimates"
#: Summaries to report of a number without a variance.
QUANTILES = f"Report its median and quantiles: {MEDIANS}"
#: Beginning of the sentences that doubt an estimate by leave-one-out only, and not the posterior.
ABOUT_LOO = "its ELPD by leave-one-out (LOO)"
#: The most clients that a sentence describes one by one; further ones are counted.
MAX_DESCRIBED = 10


# -- Convergence ----------------------------------------------------------------------------------------------


@doubt(Topic.CONVERGENCE)
def not_converged(rounds: int, change: float, cures: Cures = ("run more rounds",)) -> str:
    return f"not converged after {rounds} rounds: the last change was {change:.3g}; {cures[0]}"


@doubt(Topic.CONVERGENCE)
def not_converged_and_stuck(rounds: int) -> str:
    return f"not converged after {rounds} rounds, and more rounds do not help"


@doubt(Topic.CONVERGENCE)
def stopped_by_time(stopped: str) -> str:
    return f"not converged: {stopped}"


@doubt(Topic.CONVERGENCE)
def interrupted(algorithm: str, after: str, kept: str) -> str:
    return f"{algorithm} was interrupted{after}: the result is incomplete, {kept}"


@doubt(Topic.CONVERGENCE)
def stage_cut_short(stage: str, by: str) -> str:
    return f"the run of {stage} was {by}"


# -- Algorithms' own figures ----------------------------------------------------------------------------------


@doubt(Topic.DIAGNOSTICS)
def algorithm_warning(warning: str) -> str:
    """A sentence by an algorithm itself."""
    return warning


@doubt(Topic.DIAGNOSTICS)
def sites_not_finite(clients: Sequence[str]) -> str:
    return f"in the last round the sites of clients {listed(clients)} were not finite and were not used"


@doubt(Topic.DIAGNOSTICS)
def sites_not_used(clients: Sequence[str], of_clients: int, cures: Cures) -> str:
    return (
        f"in the last round the messages of clients {listed(clients)} ({len(clients)} of {of_clients}) "
        "were not used: their tilted distributions or the updated q had NaN, or were not positive definite; their "
        f"sites are those of an earlier round. {'. '.join(cures)}"
    )


@doubt(Topic.DIAGNOSTICS)
def last_step_taken_back(cures: Cures = ("Raise num_rounds, or set start='laplace'",)) -> str:
    return (
        "the last round's step was taken back, since it lowered the evidence's lower bound or led to a likelihood "
        f"that is not finite; the result is a shorter step, which no round has checked. {cures[0]}"
    )


@doubt(Topic.DIAGNOSTICS)
def rounds_in_vain(returns: int, samplers: str) -> str:
    return (
        f"the last rounds made no progress: {returns} times a step from the best Gaussian, which is the result, "
        "lowered the evidence's lower bound by more than step_control.fall. The curvature of the density changes from "
        "point to point, as where it has steps, an edge or several modes, or in a network. More rounds do not help: "
        f"sample the posterior, by {samplers}"
    )


@doubt(Topic.DIAGNOSTICS)
def weights_still_move(rounds: int, nats: float, samplers: str) -> str:
    return (
        f"the network's weights have not converged: in the last {rounds} rounds the evidence's lower bound rose by "
        f"less than {nats:g} nats a row, so more rounds would hardly change the predictions. To infer the weights "
        f"themselves, sample the posterior, by {samplers}"
    )


@doubt(Topic.CONVERGENCE)
def steps_shortened(rounds: int, fraction: float) -> str:
    return (
        f"not converged after {rounds} rounds: steps were shortened to {fraction:.2g} of their length, since the "
        "likelihood falls, or is not finite, where they lead. The likelihood may end at an edge that depends on a "
        "latent, such as a factor that is -inf beyond it. Gradients do not show such an edge: choose a prior under "
        "which all rows are possible"
    )


@doubt(Topic.DIAGNOSTICS)
def gaussian_still_moves(sds: float, cures: Cures) -> str:
    return f"q moved by {sds:.3g} SDs in the last round and has not converged; {cures[0]}"


@doubt(Topic.CONVERGENCE)
def guide_still_moves(steps: int, sds: float, factor: float) -> str:
    return (
        f"not converged after {steps} steps: in their second half, which is averaged, the guide moved from the earlier "
        f"to the later steps by {sds:.2g} SDs in a mean and by a factor of {factor:.3g} in an SD. Raise num_steps; "
        "where that does not help, take another family, or a guide that begins nearer to the posterior"
    )


@doubt(Topic.DIAGNOSTICS)
def sites_are_not_the_quotient() -> str:
    return (
        "an optimiser moved q and the sites by different amounts: q is not the product of prior and sites any more "
        "(Guo et al., Section 2.2.3)"
    )


@doubt(Topic.DIAGNOSTICS)
def sds_still_change(percent_a_round: float) -> str:
    return (
        f"the SDs still changed by {percent_a_round:+.2g} % a round on average at the end: the run has not "
        "converged; run more rounds (num_rounds=)"
    )


@doubt(Topic.DIAGNOSTICS)
def improper_priors(sites: Sequence[str]) -> str:
    return (
        f"sites {list(sites)} have improper priors: parameters of theirs that the data do not determine, such as "
        "the weights of a pixel that is always dark, have no posterior; give them proper priors"
    )


@doubt(Topic.CONVERGENCE)
def point_not_converged(rounds: int, sds: float) -> str:
    return f"not converged after {rounds} rounds: {_point_from_mode(sds)}"


@doubt(Topic.DIAGNOSTICS)
def point_by_random_steps(rounds: int, sds: float) -> str:
    return f"found by random steps, which have no convergence criterion, in {rounds} rounds: {_point_from_mode(sds)}"


def _point_from_mode(sds: float) -> str:
    return (
        f"the point may be {sds:.2g} posterior SDs from the mode. Where the prior is weak compared with the data, "
        "reaching the mode takes many rounds: raise num_rounds, or use FedLapCov or FedLaplace"
    )


@doubt(Topic.CLIENTS)
def rows_went_in_partly(clients: Sequence[str], cures: Cures = ("use PVI",)) -> str:
    return f"clients {listed(clients)} had one turn, and only a part of its change was applied: {cures[0]}"


@doubt(Topic.CLIENTS)
def clients_had_no_turn(clients: Sequence[str]) -> str:
    return f"clients {listed(clients)} never had a turn, and the result lacks their rows"


@doubt(Topic.CLIENTS)
def some_clients_had_no_turn(missing: int, of_clients: int, cures: Cures = ("give more rounds (num_rounds)",)) -> str:
    return f"{missing} of {of_clients} clients never had a turn, and the result lacks their rows: {cures[0]}"


@doubt(Topic.CLIENTS)
def clients_have_not_answered(share: float) -> str:
    return f"{100 * share:.0f} % of the clients have answered: the result lacks the others' likelihoods"


@doubt(Topic.CLIENTS)
def rows_never_used(rows: int, cures: Cures) -> str:
    return f"{rows} rows were never used: {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def surrogates_tempered(clients: Sequence[str]) -> str:
    return (
        f"the likelihoods of clients {listed(clients)} are flat or improper in some direction (separable classes, "
        "fewer rows than parameters): their surrogates are tempered, and the variance between clients may be larger"
    )


@doubt(Topic.DIAGNOSTICS)
def no_draw_kept(end: str, cures: Cures) -> str:
    return f"no draw was kept: {end}; {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def too_few_effective_draws(effective: float, needed: float, cures: Cures) -> str:
    return f"only {effective:.3g} effective draws of the slowest coordinate (at least {needed} are wanted): {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def chains_disagree(chains: int, r_hat: float, limit: str, cures: Cures) -> str:
    return f"the {chains} chains disagree: R-hat is {r_hat:.4g} (at most {limit} is wanted); {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def chains_stood_still(why: str) -> str:
    return f"parameters of the chains did not move at all, so R-hat and the effective sample size are undefined: {why}"


@doubt(Topic.DIAGNOSTICS)
def too_few_draws_of_a_chain(draws: int, cures: Cures) -> str:
    return f"only {draws} draws of a chain are kept, too few for R-hat and effective draws: {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def funnel_is_likely(hint: str) -> str:
    """A site's scale is itself latent."""
    return hint


@doubt(Topic.DIAGNOSTICS)
def steps_widen_draws(factor: float) -> str:
    many = f"{factor:.3g} times" if math.isfinite(factor) else "any number of times"
    return (
        f"the steps are too long for this posterior: the draws' SDs are {many} those of the posterior. Give a smaller "
        "step_size (the chain then draws the rest of its noise itself), or a lower temperature"
    )


@doubt(Topic.DIAGNOSTICS)
def noise_of_clients_unmeasured(parameters: int, cures: Cures) -> str:
    return (
        f"how far the clients' own noise moves their average is not measured on a model of {parameters} "
        f"parameters, and it grows with the number of clients: {cures[0]}"
    )


@doubt(Topic.DIAGNOSTICS)
def server_steps_grow(late: float, before: float) -> str:
    return (
        f"the server's steps grow: {late:.2g} a round at the end, {before:.2g} in the middle of the run. The point "
        "is still leaving a plateau, such as one where the gradients of a network's first layers are small: run more "
        "rounds (num_rounds=)"
    )


@doubt(Topic.SETTINGS)
def published_weighting(agents: int, counted: float, again: str, start: str) -> str:
    return (
        "weighting='paper' does not end at the posterior: an agent's likelihood enters with its centrality, about "
        f"1/{agents}, {again}, so a row counts about {counted:.2g} times instead of once{start}. It is the "
        "published recursion; use weighting='exact' for the posterior"
    )


@doubt(Topic.SETTINGS)
def published_weighting_of_finitely_many() -> str:
    return (
        "weighting='paper' does not end at the posterior: a row of agent i counts v_i times, about 1 over the "
        "number of agents; use weighting='exact' for the posterior"
    )


@doubt(Topic.DIAGNOSTICS)
def candidates_miss_the_posterior(candidates: int, worth: float) -> str:
    return (
        f"the {candidates} candidates, draws of the prior, are worth {worth:.3g} draws of the posterior: raise "
        "num_candidates, or use P2PVI"
    )


@doubt(Topic.DIAGNOSTICS)
def agents_disagree(sds: float, cures: Cures = ("run more rounds or consensus steps",)) -> str:
    return f"agents disagree by up to {sds:.2g} SD after the last round: {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def agents_could_not_move(clients: Sequence[str]) -> str:
    return (
        f"in the last round the sites of agents {listed(clients)} could not move without undoing their beliefs. If "
        "that goes on, no Gaussian is near this posterior"
    )


@doubt(Topic.DIAGNOSTICS)
def tilted_points_are_few(client: str, share: float) -> str:
    return (
        f"for agent {client} {share:.1%} of the points are effective, too few for its tilted moments, and it keeps its "
        "site: raise tilted_points, or lower damping"
    )


@doubt(Topic.DIAGNOSTICS)
def step_held_back(step: float, of_step: float) -> str:
    return (
        f"the last step was held back to γ = {step:.2g} of {of_step:g}: q is not yet the "
        "posterior; run more rounds, or give more particles"
    )


@doubt(Topic.DIAGNOSTICS)
def few_particles_have_weight(share: float, particles: int) -> str:
    return (
        f"the last weights are worth {share:.1%} of the {particles} particles: take more particles, a smaller "
        "step_size or min_effective=0.3, or use DSVGD"
    )


@doubt(Topic.DIAGNOSTICS)
def components_curve_upwards(components: int, of_components: int) -> str:
    return (
        f"{components} of {of_components} components lie where the log density curves upwards, and "
        "keep their initial variance: run more rounds, or use SVI or DSVGD"
    )


@doubt(Topic.DIAGNOSTICS)
def trajectories_diverged(trajectories: float) -> str:
    return (
        f"{trajectories:.0f} trajectories diverged: the chains did not reach a part of the posterior, "
        "often a funnel; raise target_accept_prob, or give its scale a non-centred form"
    )


@doubt(Topic.DIAGNOSTICS)
def trees_saturated(share: float) -> str:
    return (
        f"{100 * share:.0f} % of the draws used the deepest tree: raise max_tree_depth, or set "
        "full_mass=True where parameters are correlated"
    )


@doubt(Topic.DIAGNOSTICS)
def chains_not_mixed(r_hat: float, limit: float) -> str:
    return (
        f"the chains have not mixed: R-hat is {r_hat:.3f}, above the limit of {limit}; raise "
        "warmup_steps and num_samples, or look for several modes"
    )


@doubt(Topic.DIAGNOSTICS)
def energies_badly_explored(bfmi: float, limit: float) -> str:
    return f"BFMI is {bfmi:.2f}, below the limit of {limit}: the tails are badly explored; reparameterise the model"


@doubt(Topic.DIAGNOSTICS)
def improper_posterior() -> str:
    """The mode is at infinity."""
    return MODE_AT_INFINITY


#: The text, for results and errors, on a mode at infinity.
MODE_AT_INFINITY = (
    "the posterior is improper, or nearly so: its mode is at infinity. The density goes on rising while its curvature "
    "vanishes, as with separable classes under a flat prior. Draws mean nothing: give the model a proper prior"
)


@doubt(Topic.DIAGNOSTICS)
def no_mode_found() -> str:
    return (
        "no mode was found: the search for one left the posterior's mass behind. Either the density rises without end "
        "towards a place without mass, as where a hierarchy's scale goes to zero (write the hierarchy non-centred, "
        "`fed.noncentred`), or its modes are much narrower than what surrounds them, as a network's. The result is an "
        "approximation at the point of the search with the most mass around it: use an algorithm that looks at more "
        "than one point"
    )


@doubt(Topic.DIAGNOSTICS)
def no_second_derivative() -> str:
    """Scores jump, so that there is no Laplace approximation."""
    return SCORES_JUMP


#: The text, for results and errors, on scores that jump.
SCORES_JUMP = (
    "scores jump, as those of an absolute value do (the rows' in a median or quantile regression, the prior's in a "
    "lasso), so second derivatives carry no information, and there is no Laplace approximation. FedEP takes its "
    "curvatures from scores there"
)


@doubt(Topic.DIAGNOSTICS)
def point_is_no_maximum() -> str:
    return (
        "the curvature at the last point is not positive definite, so it is no maximum and Laplace's approximation "
        "does not exist there: draws use the curvature's absolute value. A flat prior with data that do not "
        "determine every parameter (separable classes, say) has no mode: give it a proper prior"
    )


@doubt(Topic.DIAGNOSTICS)
def sites_do_not_fit(pareto_k: float, error: float, samplers: str) -> str:
    size = "" if math.isinf(error) else f", a mean or an SD is off by {error:.2g} SDs"
    return (
        f"the sites do not fit: the weights' Pareto k is {pareto_k:.2f}{size}, as parts of the draws show. Raise "
        f"num_proposals, give other surrogates, or sample by {samplers}"
    )


@doubt(Topic.DIAGNOSTICS)
def weights_are_few(effective: float, cures: Cures = ("raise num_proposals",)) -> str:
    return f"the weighted draws are worth {effective:.0f} equal ones: {cures[0]}"


@doubt(Topic.DIAGNOSTICS)
def particles_not_at_rest(rounds: int, mean_off: float, sd_off: float) -> str:
    return (
        f"the particles have not converged after {rounds} rounds: by the scores there, a mean is "
        f"{mean_off:.2g} standard deviations off, and a standard deviation by a factor of {sd_off:.2g}. Give more "
        "rounds (num_rounds), another step_size, or use SVGD, which whitens the particles' coordinates"
    )


@doubt(Topic.DIAGNOSTICS)
def density_estimate_is_empty(bandwidth: float, share: float, neighbours: float) -> str:
    return (
        f"the KDE of bandwidth {bandwidth} carries no information: {100 * share:.0f} % of the "
        f"particles have fewer than {neighbours:g} effective neighbours in it, so it only holds each "
        "particle at its old position, and the prior may be counted more than once; use DSVGD, which has no KDE"
    )


@doubt(Topic.DIAGNOSTICS)
def particles_balance_elsewhere(algorithm: str, bandwidth: float, mean_off: float, sd_off: float) -> str:
    return (
        f"{algorithm} as published ends where its kernel density estimates of bandwidth {bandwidth} balance, "
        f"which is not the posterior: by the clients' scores at the particles, a mean is {mean_off:.2g} standard "
        f"deviations off, and a standard deviation by a factor of {sd_off:.2g}. Use DSVGD, which has no KDE"
    )


@doubt(Topic.DIAGNOSTICS)
def particles_collapsed(spread: float) -> str:
    """Particles have collapsed to a small spread."""
    return _drawn_together(spread)


@doubt(Topic.CONVERGENCE)
def particles_collapsed_on_their_way(rounds: int, spread: float) -> str:
    return f"not converged after {rounds} rounds: {_drawn_together(spread)}"


def _drawn_together(spread: float) -> str:
    return (
        f"the particles have drawn together: their spread is {spread:.2g} times that of the "
        "Gaussian they started from. Take more particles, or a smaller step_size"
    )


@doubt(Topic.DIAGNOSTICS)
def particles_span_too_little(particles: int, dim: int, factor: float) -> str:
    return (
        f"{particles} particles span {particles - 1} of {dim} dimensions, and their standard deviations are about "
        f"{factor:.2f} times the posterior's: take num_particles > {dim}"
    )


@doubt(Topic.CONVERGENCE)
def particles_are_off(rounds: int, mean_off: float, sd_off: float, cures: Cures) -> str:
    return (
        f"not converged after {rounds} rounds: by the clients' scores at the particles, a mean is "
        f"{mean_off:.2g} standard deviations off, and a standard deviation by a factor of {sd_off:.2g}. {cures[0]}"
    )


@doubt(Topic.DIAGNOSTICS)
def too_few_particles(particles: int, needed: int) -> str:
    return (
        f"{particles} particles are too few to follow a posterior that is not Gaussian, or to tell "
        f"whether it is: take num_particles of {needed} or more"
    )


# -- Means and SDs --------------------------------------------------------------------------------------------


@doubt(Topic.MOMENTS)
def sds_not_finite(
    sites: Sequence[str], cures: Cures = ("Divide the data by their scale before the model, or narrow the priors",)
) -> str:
    named = listed(map(repr, sites))
    return f"the SD of {named} is not finite: draws exceed the range of floating point. {cures[0]}"


@doubt(Topic.MOMENTS)
def mean_is_off(
    parameter: str, by: str, size: float, error: float, largest: float, cures: Cures, bound: bool = False
) -> str:
    many = f"more than {largest:g}" if size > largest else f"{'at least ' if bound else ''}{size:.2f} ± {error:.2f}"
    return f"{NOT_THE_POSTERIORS}: {by} move the mean of {quote_name(parameter)} by {many} SDs. {cures[0]}"


@doubt(Topic.MOMENTS)
def sd_is_off(
    parameter: str, by: str, ratio: float, error: float, largest: float, cures: Cures, bound: bool = False
) -> str:
    if ratio > largest or ratio < 1 / largest:
        many = f"more than {largest:g}" if ratio > 1 else "less than a third"
    else:
        limit = f"at {'least' if ratio > 1 else 'most'} " if bound else ""
        many = f"{limit}{ratio:.2f} ± {error:.2f}"
    return f"{NOT_THE_POSTERIORS}: {by} multiply the SD of {quote_name(parameter)} by {many}. {cures[0]}"


@doubt(Topic.MOMENTS)
def chains_are_stuck(cures: Cures, parameter: str = "", sds: float = math.nan) -> str:
    far = f"; the mode uphill of them is {sds:.2g} posterior SDs (by Laplace) from their mean of '{parameter}'"
    return (
        f"{NOT_THE_POSTERIORS}: no exact Markov chain can move away from them, even by steps far shorter "
        f"than their own spread, so the posterior must be much narrower there{far if parameter else ''}. {cures[0]}"
    )


@doubt(Topic.MOMENTS)
def weights_have_long_tails(pareto_k: float, limit: float, draws: int, effective: float, cures: Cures) -> str:
    return (
        f"{NOT_THE_POSTERIORS}, as far as importance weights by all clients' likelihoods can tell: "
        f"the weights' Pareto k is {pareto_k:.2f}, above {limit}, so that means and SDs cannot be corrected by "
        f"them, and {draws} draws are worth {effective:.0f}. {cures[0]}"
    )


@doubt(Topic.MOMENTS)
def mean_is_off_by_sums(parameter: str, size: float, error: float, cures: Cures) -> str:
    return (
        f"{NOT_THE_POSTERIORS}: importance weights by all clients' likelihoods move the mean of '{parameter}' by "
        f"{size:.2f} ± {error:.2f} SDs. {cures[0]}"
    )


@doubt(Topic.MOMENTS)
def sd_is_off_by_sums(parameter: str, ratio: float, error: float, cures: Cures) -> str:
    return (
        f"{NOT_THE_POSTERIORS}: importance weights by all clients' likelihoods multiply the SD of '{parameter}' by "
        f"{ratio:.2f} ± {error:.2f}. {cures[0]}"
    )


@doubt(Topic.MOMENTS)
def sd_at_the_limit(parameter: str, off: str, cures: Cures) -> str:
    return (
        f"an SD may be too small by more than the limit, a factor of {SD_MATTERS:g}: {quote_name(parameter)}, {off}, "
        f"{MEASURED}. {cures[0]}"
    )


@doubt(Topic.MOMENTS)
def moments_may_be_off(parameter: str, off: str) -> str:
    return (
        f"means and SDs may be beyond the limits ({MATTERS:g} SDs, a factor of {SD_MATTERS:g}), and no answer that was "
        f"tried is closer: {quote_name(parameter)}, {off}, {MEASURED}"
    )


@note(Topic.MOMENTS)
def moments_close_to_limits(parameter: str, off: str) -> str:
    return (
        f"means and SDs are within the limits ({MATTERS:g} SDs, a factor of {SD_MATTERS:g}), but close to them: "
        f"{quote_name(parameter)}, {off}, {MEASURED}"
    )


@note(Topic.MOMENTS)
def aim_missed(parameter: str, off: str, mean_error: float, sd_factor: float) -> str:
    return (
        f"no answer that was tried is surely within the aim, {mean_error:g} SDs and a factor of {sd_factor:g}: "
        f"{quote_name(parameter)}, {off}, {MEASURED}"
    )


@note(Topic.MOMENTS)
def own_aim_missed(mean: float, log_sd: float, mean_error: float, sd_factor: float) -> str:
    return (
        f"no answer that was tried is surely within the aim, {mean_error:g} SDs and a factor of {sd_factor:g}: a mean "
        f"may be {mean:.2f} SDs off, and an SD {100 * log_sd:.0f} %, as parts of the weighted draws differ. Mass that "
        "few draws reach, such as a narrow part beside a wall, may be missing: raise num_proposals, or sample by NUTS"
    )


@note(Topic.MOMENTS)
def no_variance(parameter: str, cures: Cures = (QUANTILES,)) -> str:
    return (
        f"{quote_name(parameter)} has no variance: its density falls no faster than |x|^-3 in its tails. "
        f"Its mean and SD depend on a few draws. {cures[0]}"
    )


@note(Topic.MOMENTS)
def no_variance_of_draws(parameter: str, pareto_k: float, cures: Cures = (QUANTILES,)) -> str:
    return (
        f"{quote_name(parameter)} seems to have no variance: the tail of its draws is that of a Pareto distribution "
        f"with k = {pareto_k:.1f}, which has no variance from 0.5 on. Its mean and SD depend on a few draws. {cures[0]}"
    )


@note(Topic.MOMENTS)
def draws_do_not_tell(parameter: str, kurtosis: float, draws: int, cures: Cures = (QUANTILES,)) -> str:
    return (
        f"a few extreme draws dominate the mean and SD of {quote_name(parameter)}: the posterior's tail is so long (a "
        f"kurtosis of {kurtosis:.2g}) that {draws} draws do not determine them, even if all draws are right. {cures[0]}"
    )


@doubt(Topic.MOMENTS)
def draws_miss_the_sd(
    parameter: str, kurtosis: float, draws: int, sd_ratio: float, sd_ratio_error: float, cures: Cures = (QUANTILES,)
) -> str:
    return (
        f"the SD of these {draws:,} draws of {quote_name(parameter)} is not the posterior's, which is "
        f"{sd_ratio:.3g} ± {sd_ratio_error:.1g} times as large by importance weights: the tail is so long (a kurtosis "
        f"of {kurtosis:.2g}) that so few draws do not determine it, even if all draws are right. {cures[0]}"
    )


@note(Topic.MOMENTS)
def sd_by_chance(
    parameter: str,
    kurtosis: float,
    draws: int,
    log_sd_error: float,
    needed: int,
    sd_factor: float,
    cures: Cures = (QUANTILES,),
) -> str:
    return (
        f"{draws:,} draws determine the SD of {quote_name(parameter)} to {100 * log_sd_error:.0f} % (one standard "
        f"error), even if all draws are right, since the posterior's tail is long (a kurtosis of {kurtosis:.2g}): "
        f"chance may miss the aim, a factor of {sd_factor:g}. About {int(float(f'{needed:.1e}')):,} independent draws "
        f"would meet it (num_draws). {cures[0]}"
    )


@note(Topic.MOMENTS)
def evidence_not_known(error: float, pareto_k: float) -> str:
    many = f"its standard error is {error:.2g} nats" if math.isfinite(error) else "its weights have no mean"
    return (
        f"log_evidence is not known ({many}; the weights' Pareto k is {pareto_k:.2f}): do not compare models by it. "
        "A larger num_proposals or other surrogates may determine it; means and SDs do not depend on that tail"
    )


@doubt(Topic.MOMENTS)
def angle_across_its_ends(parameter: str, lower: float, upper: float, lost: float, cures: Cures) -> str:
    across = across_its_ends(parameter, lower, upper)
    return f"{across}: one mode looks like two there, and the draws do not represent both correctly. {cures[0]}"


@note(Topic.MOMENTS)
def angle_has_no_mean(parameter: str, lower: float, upper: float, cures: Cures) -> str:
    across = across_its_ends(parameter, lower, upper)
    return (
        f"{across}: the mean and SD of its values have no meaning: use scipy.stats.circmean and circstd with these "
        f"ends. {cures[0]}"
    )


def across_its_ends(parameter: str, lower: float, upper: float) -> str:
    """The clause with which both sentences on angles begin."""
    return (
        f"'{parameter}' is an angle, or periodic otherwise, and its posterior continues across the ends of its "
        f"interval, {lower:.3g} and {upper:.3g}, which are the same angle"
    )


# -- Modes ----------------------------------------------------------------------------------------------------


@doubt(Topic.MODES)
def mode_without_draws(site: str, value: str, lost: float, by: str, cures: Cures) -> str:
    return (
        f"the posterior has another mode, with about {percent(lost)} % of its mass ({by}), where none of these draws "
        f"is: '{site}' is {value} there. Means and SDs of one mode are not the posterior's. {cures[0]}"
    )


@doubt(Topic.MODES)
def modes_relabelled(modes: int, lost: float) -> str:
    return (
        f"the posterior has {modes} modes that differ only by a symmetry, such as the order of components or a sign, "
        "and these draws are at some of them. They predict as well as draws of all modes would, but means and SDs of "
        "single components, and the evidence, are those of these modes. Order the components in the model, or "
        "interpret the result accordingly"
    )


@note(Topic.MODES)
def draws_at_all_images(images: int) -> str:
    changes = "a relabelling or change of sign" if images == 2 else f"{images - 1} relabellings or changes of sign"
    return (
        f"the posterior is the same under {changes} of its parameters, and the draws are spread over all {images} "
        "images. Means and SDs of single components are those over all labels: for one labelling, order the components "
        f"in the model. An estimate of log_evidence may be too small by up to log {images}"
    )


@doubt(Topic.MODES)
def mode_shares_are_wrong(
    modes: int, site: str, value: str, of_draws: float, of_mass: float, bound: str, by: str, lost: float, cures: Cures
) -> str:
    mass = f"{f'at {bound} ' if bound else ''}{percent(of_mass)} %"
    return (
        f"the posterior has {modes} modes, and the shares of the draws are not their shares of its mass: where "
        f"'{site}' is {value} there are {percent(of_draws)} % of the draws, and {mass} of the mass {by}. {cures[0]}"
    )


@doubt(Topic.MODES)
def point_is_not_the_mode(parameter: str, sds: float, cures: Cures) -> str:
    return (
        f"this point is not the posterior's mode: '{parameter}' is {sds:.3g} "
        f"posterior SDs (by Laplace) from it. {cures[0]}; FedEP and FedLaplace give SDs too"
    )


@doubt(Topic.MODES)
def point_is_below_the_mode(nats: float, dim: int, cures: Cures) -> str:
    return (
        f"this point is not the posterior's mode: along its gradient the log density rises by {nats:.3g} nats, where "
        f"most draws of a posterior of {dim} parameters are {dim / 2:.3g} below the mode. {cures[0]}"
    )


@doubt(Topic.MODES)
def point_has_no_density(cures: Cures) -> str:
    return f"the model has no log density at this point. {cures[0]}"


@doubt(Topic.MODES)
def mode_is_not_the_mean(parameter: str, off: str) -> str:
    return (
        f"this point is the posterior's mode, but the posterior is not Gaussian around it: {off}, by short exact "
        "chains. The mode gives neither means nor SDs of a skewed or curved posterior: use FedEP, FedAIS or Auto"
    )


@doubt(Topic.MODES)
def around_the_point(found: str, lost: float) -> str:
    return f"for draws around this point, with the curvature there: {found}"


# -- The model's densities ------------------------------------------------------------------------------------


#: The cure if single precision is too coarse.
DOUBLE_PRECISION = "Compute in float64, by Federation(..., dtype=torch.float64)"


@doubt(Topic.DENSITY)
def float32_is_not_enough(
    off: str,
    cures: Cures = (
        DOUBLE_PRECISION,
        "Centring and scaling the columns may be enough",
    ),
) -> str:
    return f"float32 is not enough for this posterior: {off}. {'. '.join(cures)}"


@doubt(Topic.DENSITY)
def model_does_not_run_alone(client: str, error: str) -> str:
    return f"the model does not run on the rows of client {client} alone, as it would there: {error}"


@doubt(Topic.DENSITY)
def model_does_not_split(plate: str, clients: int, difference: float, site: str, client: str, cause: str) -> str:
    return (
        f"the model does not split over plate '{plate}': at the result's draws, the log densities of {clients} "
        f"clients, each with its rows alone, and those of the same rows among all differ by {difference:.3g} in "
        f"{site}, most of all at client {client}. The result is not the posterior of all rows. {cause}Each row's term "
        "may depend only on that row, its own latents and the latents outside the plate"
    )


@doubt(Topic.DENSITY)
def integrals_are_inaccurate(sites: Sequence[str], plate: str, error: float, finer: str, left: float | None) -> str:
    """Integrals over rows' latents are inaccurate; `left` is the error of a finer rule, None if it is small enough."""
    said = (
        f"the integrals over {list(sites)}, inside plate '{plate}', are not accurate: the "
        f"log-likelihood is off by {error:.2g} (SD over posterior draws)"
    )
    if left is None:
        return f"{said}. Give the federation a finer rule, such as quadrature={finer}"
    return (
        f"{said}, and by {left:.2g} with quadrature={finer}: their density given the rest has tails, jumps or modes "
        f"that no such rule covers. {INTEGRATE_BY_HAND}"
    )


@doubt(Topic.DENSITY)
def integrals_lose_rounded_mass(sites: Sequence[str], plate: str, error: float, single: bool) -> str:
    """Values of rows' latents round to a bound of their support where they still have mass; `single`: in float32."""
    return (
        f"values of {list(sites)}, inside plate '{plate}', round to a bound of their support where they still have "
        f"mass, so that the log-likelihood is off by {error:.2g} (SD over posterior draws). "
        + (DOUBLE_PRECISION if single else INTEGRATE_BY_HAND)
    )


@doubt(Topic.DENSITY)
def integrals_miss_modes(
    sites: Sequence[str],
    plate: str,
    rows: int,
    looked_at: int,
    share: float,
    worst_row: int,
    largest: float,
    starts: str,
) -> str:
    """Rows' latents have modes that the rule does not find; `starts` are places that find them, "" if none do."""
    said = (
        f"the integrals over {list(sites)}, inside plate '{plate}', miss modes: given the "
        f"other latents, {rows} of {looked_at} rows that were examined have another mode with more than {share:.1%} of "
        f"their mass (row {worst_row}: {largest:.0%})"
    )
    if not starts:
        return f"{said}, and other starting points do not find it. {INTEGRATE_BY_HAND}"
    return f"{said}. Give the federation starting points that find them: quadrature=pf.Quadrature(starts={starts})"


#: The cure if no quadrature rule is accurate.
INTEGRATE_BY_HAND = (
    "Integrate these latents out by hand, as BetaBinomial does for a Beta and Binomial counts, and GammaPoisson or "
    "NegativeBinomial for a Gamma and Poisson counts"
)


# -- Settings -------------------------------------------------------------------------------------------------


@doubt(Topic.SETTINGS)
def tempered_posterior(temperature: float) -> str:
    return (
        f"temperature={temperature:g} asks for another posterior than the model's: the prior times the likelihood "
        f"to the power 1/{temperature:g}. Its SDs are not those of Bayes' rule, which is temperature=1"
    )


@doubt(Topic.SETTINGS)
def too_few_draws(draws: int, needed: int) -> str:
    return (
        f"{draws} draws are too few: by chance alone their means are off by {draws**-0.5:.2f} SDs, and SDs by "
        f"{100 * (2 * draws) ** -0.5:.0f} %. Take num_draws of {needed} or more"
    )


@doubt(Topic.SETTINGS)
def some_rows_alone(few_rows: int, rows: int) -> str:
    return (
        f"few_rows={few_rows} of {rows}: this is the posterior given those rows alone, whose SDs are wider; "
        "leave few_rows out for the posterior of all rows"
    )


@note(Topic.SETTINGS)
def computed_on_cpu(algorithm: str, device: str) -> str:
    return f"{algorithm} draws random numbers within its steps and was computed on the CPU, not on {device}"


# -- Clients --------------------------------------------------------------------------------------------------


@doubt(Topic.CLIENTS)
def clients_took_no_part(clients: Sequence[str]) -> str:
    return (
        f"clients {listed(clients)} took part in no round: this is the posterior without their rows. Take more "
        "rounds, or a schedule that reaches all clients; if they failed, remove the cause and run again"
    )


@doubt(Topic.CLIENTS)
def clients_are_no_cohort(share: float) -> str:
    return f"{no_cohort(share)}. This is not the posterior of all rows"


def no_cohort(share: float) -> str:
    """The clause with which that sentence and some errors begin."""
    return (
        f"{100 * share:.0f} % of the clients' messages were cut back in the last rounds: they differ too much from "
        "each other (one label a client, other populations, too few rows) for Bounded to hold each to what the "
        "others say. Leave combination= out, raise its pull, or pool similar clients"
    )


@note(Topic.CLIENTS)
def messages_cut_back(
    clients: Sequence[str],
    times: Sequence[int],
    of_rounds: Sequence[int],
    largest: Sequence[float],
    more: int,
    widened: Sequence[tuple[str, float]],
) -> str:
    """Messages were cut back to the cohort's limits; `widened` are clients whose cuts widen SDs."""
    parts = [
        f"client {client} {count} of {rounds} times, at most by {most:.2g}"
        for client, count, rounds, most in zip(clients, times, of_rounds, largest, strict=True)
    ]
    named = ", ".join(f"{factor:.2f} (client {client})" for client, factor in widened)
    price = f". If these clients are honest, the cuts make SDs too wide, by the factors {named}" if widened else ""
    return (
        "messages were cut back to the limits that the other clients' messages set (in SDs of a mean and logarithms "
        f"of a factor): {'; '.join(parts)}{f'; and {more} more clients' if more else ''}{price}. The cause may be a "
        "faulty or malicious client, wrong units or labels, or another population: pf.influence without combination= "
        "shows which; all cuts are in the group `federation` (beyond)"
    )


@note(Topic.CLIENTS)
def clients_move_the_answer(clients: Sequence[str], sds: Sequence[float], times: float) -> str:
    named = ", ".join(f"client {client} by {size:.2g} SDs" for client, size in zip(clients, sds, strict=True))
    return (
        f"in most of their rounds some clients move the answer more than {times:g} times as far as others "
        f"do: {named} (`moved` in the group `federation`). The cause may be a faulty or malicious client, wrong "
        "units or labels, another population, or a client that corrects what another one has done"
    )


@note(Topic.CLIENTS)
def messages_stand_apart(clients: Sequence[str], sds: Sequence[float]) -> str:
    named = ", ".join(f"client {client} by {size:.2g} SDs" for client, size in zip(clients, sds, strict=True))
    return (
        f"messages stand apart from the cohort's in most rounds: {named} (the median number of a message, in the "
        "cohort's SDs). The cause may be rows of another kind or population, or wrong units, labels or signs"
    )


@note(Topic.CLIENTS)
def clients_stand_apart(clients: Sequence[str], said: str) -> str:
    return (
        f"{said}: see pf.influence. Its rows may be of another kind than the others' (the one event, the largest "
        "value, a split by the outcome), or of another population; or units, labels or counts may be wrong"
    )


@note(Topic.CLIENTS)
def clients_failed(
    failures: int, clients: Sequence[str], times: Sequence[int], last: Sequence[int], reasons: Sequence[str], more: int
) -> str:
    parts = [
        f"client {client} {count} times, the last in round {number}: {reason}"
        for client, count, number, reason in zip(clients, times, last, reasons, strict=True)
    ]
    return (
        f"{failures} times a client failed, and its round went on without it: {'; '.join(parts)}"
        f"{f'; and {more} more clients' if more else ''}. All are "
        "listed in the group `federation` (failure_round, failure_client, failure_reason)"
    )


@note(Topic.CLIENTS)
def cohort_is_small(clients_held: int, enough: int) -> str:
    return (
        f"Bounded was asked to hold {clients_held} clients to each other: one faulty or malicious client of so few is "
        "not bounded, as the one or two clients nearest to it set its limit, and an honest client may have been cut in "
        "its place. "
        f"Compare the clients one by one (pf.influence), or have {enough} or more, ten for a bound below two SDs"
    )


@note(Topic.CLIENTS)
def graph_fell_apart(steps: int, parts: str) -> str:
    return (
        f"the graph fell apart: the links of the last {steps} consensus steps leave {parts}; each part ended at a "
        "posterior of its own data since then"
    )


@note(Topic.CLIENTS)
def agents_not_heard(client: str, clients: Sequence[str]) -> str:
    return (
        f"{client} has heard nothing of agents {listed(clients)} in its last round: its belief lacks their changes "
        "since they were last heard, and the disagreement is that of the other agents"
    )


@note(Topic.CLIENTS)
def links_were_down(client: str, clients: Sequence[str], rounds: Sequence[int], last: Sequence[int]) -> str:
    parts = [
        f"{other} in {count} rounds, the last one {number}"
        for other, count, number in zip(clients, rounds, last, strict=True)
    ]
    return (
        f"links of {client} were down: to {'; '.join(parts)}. Meanwhile their weight went to "
        "the agent's own belief; what one end had missed was added before a link was used again"
    )


# -- A network's inputs ---------------------------------------------------------------------------------------


@note(Topic.INPUTS)
def input_out_of_range(column: str, of_rows: float, of_weights: float) -> str:
    return (
        f"{column} is out of range of the network's units: its values are of size {of_rows:.2g}, and the prior's "
        f"weights of size {of_weights:.2g}, so that each unit has the same value for nearly all rows. Centre and "
        "scale columns before the model (pf.column_sums and pf.pooled_moments do it without pooling rows)"
    )


@note(Topic.INPUTS)
def inputs_tell_nothing(site: str, rows: int, gain: float, error: float) -> str:
    return (
        f"the inputs tell this network nothing of '{site}': the {rows} rows that were looked at are predicted no "
        f"better by their own inputs than by those of other rows ({gain:.2g} ± {error:.1g} nats a row). Either there "
        "is nothing to learn, or the weights have stayed near their start or their prior, as happens to many layers "
        "under a Gaussian without correlations. To see which, try DSVGD, or fewer layers"
    )


# -- Privacy --------------------------------------------------------------------------------------------------

#: The cures against the noise of differential privacy.
LESS_NOISE = (
    "To reduce it, take more clients; fewer rounds, which at the same epsilon allow a smaller noise_multiplier; or a "
    "smaller norm, as far as it does not shorten honest messages"
)


@doubt(Topic.PRIVACY)
def noise_leaves_no_distribution(cures: Cures = (LESS_NOISE,)) -> str:
    return f"the noise of differential privacy leaves no distribution. {cures[0]}"


@doubt(Topic.PRIVACY)
def noise_of_the_point(parameter: str, sd: float, cures: Cures = (LESS_NOISE,)) -> str:
    return (
        f"the noise of differential privacy has an SD of up to {sd:.2g} in the point "
        f"({parameter}, unconstrained), and the result has no spread that could include it. {cures[0]}"
    )


@doubt(Topic.PRIVACY)
def noise_moves_means(parameter: str, sds: float, wider: float, cures: Cures = (LESS_NOISE,)) -> str:
    return (
        f"the noise of differential privacy moves the mean of {parameter} by {sds:.2g} posterior SDs "
        f"(one SD of the noise); the result's SDs include it, and are {wider:.2g} times as wide there. They do "
        f"not include the effect of clipping. {cures[0]}"
    )


@doubt(Topic.PRIVACY)
def messages_still_shortened(reach: float, norm: float) -> str:
    return (
        f"without its noise, the mean of the last round's messages is {reach:.2g} of norm={norm:g} long: messages were "
        "still shortened to the norm, or nearly so, and the answer is still moving away from its start. The posterior "
        "is then too wide, and its mean lags behind. Give a larger norm, with more clients for as little noise, or "
        "more rounds"
    )


# -- Checks that were not made, and what is left out ----------------------------------------------------------


@doubt(Topic.UNCHECKED)
def checks_cut_short(why: str, left: str) -> str:
    return f"not all checks were made: {why}. The result is {left}"


@note(Topic.UNCHECKED)
def not_audited_by_integrals() -> str:
    return (
        "not audited: the checks of means, SDs and modes use the model's densities, which are inaccurate where the "
        "integrals are"
    )


@note(Topic.UNCHECKED)
def not_audited_by_size(parameters: int, operations: float) -> str:
    return (
        f"not audited: with {parameters:,} parameters exact chains from the draws would take {operations:.1g} "
        "operations at least. Whether means and SDs are the posterior's, whether modes are missed, what rounding costs "
        "and whether the clients add up at these draws was not checked; measure predictions on test data, by "
        "pf.metrics.test_metrics"
    )


@note(Topic.UNCHECKED)
def not_audited_by_sums(why: str) -> str:
    return f"not audited: {why}. Nobody has checked whether the draws are the posterior's"


@note(Topic.UNCHECKED)
def not_audited_without_density(algorithm: str) -> str:
    return (
        f"not audited: the density from which {algorithm} draws is not known, so the clients' sums give no weights for "
        "its draws, and chains would need the clients' gradients. FedAIS, started from it, weights its draws by sums"
    )


@note(Topic.UNCHECKED)
def not_audited_by_few_draws(draws: int, needed: int) -> str:
    return f"not audited: {draws} draws are too few for weights, which take {needed} (num_draws)"


@note(Topic.UNCHECKED)
def latents_left_out(sites: Sequence[str], draws: int, rows: int, most: float) -> str:
    return (
        f"{list(sites)} of {draws} draws × {rows} rows are not collected (more "
        f"than {most:.0e} numbers); run with fewer draws to have them, or with collect_local=False"
    )


@note(Topic.UNCHECKED)
def log_likelihood_left_out(draws: int, rows: int, most: float) -> str:
    return (
        f"log_likelihood of {draws} draws × {rows} rows is left out (more than {most:.0e} "
        f"numbers), and the draws' log density, lp; run with fewer draws (num_draws) to have them"
    )


@note(Topic.UNCHECKED)
def not_in_time(what: str) -> str:
    return f"the result is without {what}, for which max_seconds left no time"


# -- Several answers ------------------------------------------------------------------------------------------


@doubt(Topic.COMPARISON)
def answers_disagree(answer: str, other: str, how: str) -> str:
    return f"{answer} and {other} disagree: {how}"


@doubt(Topic.COMPARISON)
def answer_not_confirmed(answer: str, why: str) -> str:
    return f"no second answer confirms that of {answer}: {why}"


@doubt(Topic.COMPARISON)
def search_ended_by_budget(budget: str, untried: str) -> str:
    return f"the budget ended the search, {budget}{f'; {untried} were not tried' if untried else ''}"


def quote_name(parameter: str) -> str:
    """A parameter's name in a sentence: 'tau', 'tau' (unconstrained), 'tau' (mode 1 of 2)."""
    name, bracket, kind = parameter.partition(" (")
    return f"'{name}'{bracket}{kind}"


def percent(share: float) -> str:
    """A share in per cent, to two digits or the whole number."""
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


# -- Comparisons ----------------------------------------------------------------------------------------------


@doubt(Topic.CONVERGENCE)
def stopped_before_its_end(why: str) -> str:
    return f"the run stopped before its end: {why}"


@doubt(Topic.DIAGNOSTICS)
def recorded_warning(warning: str) -> str:
    """A warning in a result of another library, or of an earlier version."""
    return warning


@doubt(Topic.MOMENTS)
def draws_unusable(why: str) -> str:
    """No figures can be computed from the draws."""
    return why


@doubt(Topic.MOMENTS)
def no_uncertainty(what: str) -> str:
    """All draws, or those of a parameter, are one point."""
    return what


@doubt(Topic.COMPARISON)
def other_data(than: str, how: str) -> str:
    return f"it was computed from other data than {than}: {how}"


@doubt(Topic.COMPARISON)
def no_reference() -> str:
    return "it has no usable draws and cannot be the reference: the others are not compared with it"


@doubt(Topic.COMPARISON)
def reference_doubtful(reasons: Sequence[str]) -> str:
    return f"as a reference it is doubtful: {', and '.join(reasons)}. No distances to it are given"


@doubt(Topic.COMPARISON)
def mean_differs(parameter: str, sds: float, error: float, scale: str, more: int) -> str:
    return f"the mean of '{parameter}' is {sds:.2g} ± {error:.1g} reference SDs off{scale}{_and_more(more)}"


@doubt(Topic.COMPARISON)
def sd_too_small(parameter: str, ratio: float, scale: str, more: int) -> str:
    return f"the SD of '{parameter}' is {ratio:.2g} of the reference's{scale}{_and_more(more)}"


@doubt(Topic.COMPARISON)
def sd_too_large(parameter: str, ratio: float, scale: str, more: int) -> str:
    return f"the SD of '{parameter}' is {ratio:.2g} times the reference's{scale}{_and_more(more)}"


def _and_more(count: int) -> str:
    return f" (and {count} more)" if count else ""


@doubt(Topic.MOMENTS)
def prior_miscounted(count: float, error: float) -> str:
    return f"the prior counts {count:.1f} ± {error:.1f} times instead of once"


@note(Topic.MOMENTS)
def prior_count_near_one(count: float, error: float, limit: float) -> str:
    return (
        f"the prior counts {count:.2f} ± {error:.2f} times instead of once: more than chance explains, and within "
        f"what matters ({limit:g})"
    )


@doubt(Topic.MOMENTS)
def draws_far_from_density(parameter: str, ksd: float, limit: float) -> str:
    return (
        f"the draws are not those of the model's posterior: KSD is {ksd:.2g}, where chance and small "
        f"errors explain {limit:.2g}, most of all in '{parameter}'"
    )


@doubt(Topic.MOMENTS)
def variance_collapse(ratio: float) -> str:
    return f"variance collapse: SDs are {ratio:.2g} of the Laplace approximation's (median over parameters)"


@doubt(Topic.DENSITY)
def scores_not_finite(parameter: str, draws: int, of_draws: int) -> str:
    return (
        f"the posterior's score is not finite at {draws} of {of_draws} draws, first in '{parameter}', "
        "so KSD and the prior's count cannot be computed: the draws lie so far out that the density is zero there, or "
        "the model needs dtype=torch.float64"
    )


@doubt(Topic.ROWS)
def test_density_not_finite(draws: int, of_draws: int) -> str:
    return f"the density of the test data is not finite at {draws} of {of_draws} draws"


@note(Topic.ROWS)
def loo_not_finite(draws: int, of_draws: int, rows: int, of_rows: int) -> str:
    return (
        f"{ABOUT_LOO} cannot be computed: the log-likelihood is not finite at {draws} "
        f"of {of_draws} draws, for {rows} of {of_rows} rows"
    )


@note(Topic.ROWS)
def loo_not_reliable(rows: int, of_rows: int, limit: float) -> str:
    return (
        f"{ABOUT_LOO} is not reliable: {rows} of {of_rows} rows have a Pareto k above {limit}, as single rows weigh "
        "much in the posterior, or there are few draws. This says nothing against the posterior; compare predictions "
        "by test data, K-fold cross-validation, or leaving out a client at a time"
    )


@note(Topic.ROWS)
def loo_rows_beyond(rows: int, of_rows: int, limit: float, share: float) -> str:
    return (
        f"{ABOUT_LOO} has {rows} of {of_rows} rows with a Pareto k above {limit}; they change it by {share:.2f} of "
        "its standard error"
    )


def as_findings(said: Iterable[Finding | str]) -> list[Finding]:
    """An algorithm's warnings, findings or sentences, as findings; sentences get the code `algorithm_warning`."""
    return [algorithm_warning(warning=one) if isinstance(one, str) else one for one in said]

"""Results as ArviZ 0.23 and 1.x have them: the few things that tests do with them and the package does not."""

from pyro_fed.ops.arviz_versions import NEW

#: Functions of ArviZ that 1.x has renamed.
RENAMED = {"plot_posterior": "plot_dist", "plot_ppc": "plot_ppc_dist"} if NEW else {}


def arviz_function(name):
    """A function of ArviZ by its name in 0.23."""
    import arviz

    return getattr(arviz, RENAMED.get(name, name))


def groups_of(idata):
    """The names of a result's groups."""
    return set(idata.children) if NEW else set(idata.groups())


def extend(idata, other):
    """Take over another result's groups."""
    idata.update({name: other[name] for name in other.children}) if NEW else idata.extend(other)


def there_and_back(idata, path):
    """The result, written to a NetCDF file and read again."""
    import arviz

    idata.to_netcdf(str(path))
    return arviz.from_netcdf(str(path))


def datasets(idata):
    """The groups as datasets, by name."""
    return {name: idata[name].to_dataset() if NEW else idata[name] for name in groups_of(idata)}


#: What `loo` estimates of all rows, by names that `criterion` knows.
CRITERION = ("elpd", "p", "se", "n_samples", "n_data_points", "good_k")


def criterion(found, field, kind="loo"):
    """A field of what `loo` or `waic` returns: "elpd", "p" and "elpd_i" as 1.x has them, others by their own name."""
    named = {"elpd": f"elpd_{kind}", "p": f"p_{kind}", "elpd_i": f"{kind}_i"}
    return getattr(found, field if NEW else named.get(field, field))


def is_drawn():
    """Whether there are figures, and something in each; `close_figures` takes away those of other tests."""
    import matplotlib.pyplot as plt

    figures = [plt.figure(number) for number in plt.get_fignums()]
    return bool(figures) and all(any(axes.has_data() for axes in figure.axes) for figure in figures)

# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A whole study by files, from five folders to the paper's table
#
# Five hospitals want to know whether a treatment lowers the risk of death within a year. They share nothing: no
# network, no rows, no folder. What passes between them are files that are mailed by hand. This tutorial goes from
# tables as they come, with their faults, to the risk difference, its figure and the folder for a reviewer.

# %%
import contextlib
import json
import os
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from click.testing import CliRunner

import pyro_fed as pf
from pyro_fed.cli.main import main

FAST = os.environ.get("PYRO_FED_FAST") == "1"
HOSPITALS = {"north": 90, "east": 60, "south": 75, "west": 14, "hill": 20}

# %% [markdown]
# This cell stands for the hospitals' exports, so that the truth is known: the log odds of death rise by 0.5 for ten
# years of age, and fall by 0.5 for women and by 0.9 for the treated. Three things are wrong with the tables. East has
# ages in months. South writes `M` and `F`. Nobody died at hill, which is no fault, but ends many analyses.

# %%
rng = np.random.default_rng(4)
for name, rows in HOSPITALS.items():
    age, female = rng.normal(62, 9, rows).round().clip(30, 90), rng.random(rows) < 0.4
    treated = rng.integers(0, 2, rows)
    log_odds = 0.7 + 0.05 * (age - 62) - 0.5 * female - 0.9 * treated
    died = (rng.random(rows) < 1 / (1 + np.exp(-log_odds))) & (name != "hill")
    table = pd.DataFrame({"patient": [f"{name[0]}{i:03d}" for i in range(rows)], "age": age.astype(int)})
    table["sex"] = np.where(female, *(("F", "M") if name == "south" else ("female", "male")))
    table["treated"], table["died"] = treated, died.astype(int)
    if name == "east":
        table["age"] = table["age"] * 12 + rng.integers(0, 12, rows)
    Path(name).mkdir()
    table.to_csv(f"{name}/{name}.csv", index=False)
Path("centre").mkdir()

# %% [markdown]
# All that follows are commands, each given in one folder. This helper gives one, shows it with what it prints, and
# keeps the study's diary: commands and minutes by step.

# %%
given, mailed, diary = Counter(), Counter(), []


def at(place, line, show=True):
    """Give a command in a folder."""
    given[place] += 1
    began = time.perf_counter()
    with contextlib.chdir(place):
        done = CliRunner().invoke(main, shlex.split(line))
    who = "centre" if place == "centre" else "a hospital"
    diary.append((" ".join(shlex.split(line)[:2]).split(" codebook")[0], who, place, time.perf_counter() - began))
    assert done.exit_code in (0, 1), done.output  # 1: `check` has found something
    if show:
        print(f"{place}$ pyro-fed {line}\n{done.output.rstrip()}\n")
    return done.output


def mail(pattern, sender, receiver):
    """Carry files from one folder to another, as mails do."""
    for path in sorted(Path(sender).glob(pattern)):
        shutil.copy(path, receiver)
        mailed[receiver if sender == "centre" or "centre/" in sender else sender] += 1


# %% [markdown]
# ## Tables that agree
#
# The codebook says what each column must be. Each hospital checks its own table.

# %%
Path("centre/codebook.toml").write_text("""
study = "treatment"
fewest = 5

[columns.patient]
type = "identifier"

[columns.age]
title = "Age"
type = "integer"
unit = "years"
range = [18, 100]

[columns.sex]
type = "category"
levels = ["female", "male"]

[columns.treated]
type = "integer"
range = [0, 1]

[columns.died]
type = "integer"
range = [0, 1]
""")
for name in HOSPITALS:
    mail("codebook.toml", "centre", name)
    found = at(name, f"check codebook.toml {name}.csv", show=name in ("east", "south", "hill"))
    assert ("nothing contradicts" in found) == (name in ("north", "west"))

# %% [markdown]
# Both faults are named, with the lines, and hill is asked whether it is true that nobody died. East and south export
# their tables anew. Then the summaries are compared, which have no row's value. The comparison also gives the mean and
# SD by which every hospital scales the ages, and Table 1.

# %%
east, south = pd.read_csv("east/east.csv"), pd.read_csv("south/south.csv")
east.assign(age=east["age"] // 12).to_csv("east/east.csv", index=False)
south.assign(sex=south["sex"].map({"F": "female", "M": "male"})).to_csv("south/south.csv", index=False)
for name in ("east", "south"):
    assert "nothing contradicts" in at(name, f"check codebook.toml {name}.csv", show=False)
for name in HOSPITALS:
    mail(f"{name}.json", name, "centre")
summaries = " ".join(f"{name}.json" for name in HOSPITALS)
at("centre", f"check --compare {summaries} --constants constants.json --table table1.md", show=False)
print(Path("centre/table1.md").read_text())

# %% [markdown]
# ## The model, and what each hospital lets out
#
# The model's file is plain Pyro. It also names what the study will report, `ESTIMANDS`: the risk if all were treated,
# and if nobody were. A hospital's answer to that name is a sum over its rows, computed by its own copy of this file.

# %%
Path("centre/model.py").write_text('''"""Death within a year by age, sex and treatment."""
import pyro
import pyro.distributions as dist
import torch

PLATE = "patients"


def model(age, female, treated, died):
    level = pyro.sample("level", dist.Normal(0.0, 2.0))
    effects = pyro.sample("effects", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("patients", len(age)):
        log_odds = level + effects[0] * age + effects[1] * female + effects[2] * treated
        pyro.sample("died", dist.Bernoulli(logits=log_odds), obs=died)


ESTIMANDS = {"risk": {"do": {"treated": [0, 1]}, "by": {"female": [0, 1]}}}
''')
LOAD = """
from pathlib import Path

import pyro_fed as pf

here = Path(__file__).parent


def load_rows():
    book = pf.codebook.read_codebook(here / "codebook.toml")
    table = pf.codebook.read_rows(book, next(here.glob("*.csv")))
    age = pf.codebook.read_constants(here / "constants.json").standardise(table)["age"]
    female = (table["sex"] == "female").astype(float)
    return tuple(column.to_numpy(float) for column in (age, female, table["treated"], table["died"]))
"""
POLICY = """
approval = true
min_cell = 8
max_rounds = 8
kinds = ["description", "update", "log_likelihood", "estimate"]
"""
for name in HOSPITALS:
    mail("model.py", "centre", name)
    mail("constants.json", "centre", name)
    Path(name, "load.py").write_text(LOAD)
    Path(name, "policy.toml").write_text(POLICY)
    rows = "" if FAST and name != "north" else " --data load.py"
    at(name, f"node approve model.py files --policy policy.toml --yes{rows}", show=name == "north")

# %% [markdown]
# From here on a hospital answers nothing but this model and recipe. `risk` stands among what will leave. A group of
# fewer than eight patients will not.
#
# ## Exchanges
#
# Each exchange is a file to each hospital and a file back. The first has the descriptions, the next ones are the
# recipe's rounds, the last one is for the checks.

# %%
options = "--rounds 2 --draws 400 --no-audit" if FAST else "--draws 4000"
said = at("centre", f"study init trial --model model.py --sites {','.join(HOSPITALS)} {options}")
key = next(word for word in said.split() if word.startswith("SHA256:"))
answered = 0


def exchange():
    """One mail to each hospital and one back, and what the centre then says."""
    global answered
    for name in HOSPITALS:
        request = f"round-{answered:03d}-request-{name}.study"
        mail(request, "centre/trial/outbox", name)
        first = f" --data load.py --policy policy.toml --coordinator {key}" if not answered else ""
        at(name, f"study answer {request} --yes{first}", show=False)
        mail(f"answer-{name}-{answered:03d}.study", name, "centre")
    said = at("centre", "study combine trial " + " ".join(f"answer-{n}-{answered:03d}.study" for n in HOSPITALS), False)
    answered += 1
    return said


while "Written to" not in (said := exchange()):
    pass
print(said)
idata = az.from_netcdf("centre/trial/result.nc").load()
print(az.summary(idata, kind="stats", round_to=3))

# %% [markdown]
# ## What the paper reports
#
# The risk difference of men and of women is one more exchange. West has six women, and its rules let no group of fewer
# than eight out. Its eight men are withheld, too, since west has said that it has 14 patients. The answer says so.

# %%
at("centre", "study ask trial risk", show=False)
print(exchange())
answer = az.from_netcdf("centre/trial/result.nc").load()["estimand_risk"]
risk = answer["estimand"]
print("withheld:", answer.attrs["withheld"] or "nobody", "| rows:", answer["rows"].values.tolist())
difference = (risk.sel(treated=1) - risk.sel(treated=0)).rename("risk difference")
print(az.summary(difference.to_dataset(), kind="stats", round_to=3))

# %%
pf.plots.plot_client_forest(pf.contributions(idata), labels=["effects[2]"], annotate=True)
plt.gca().set_title("log odds ratio of death, treated against untreated", fontsize=10, loc="left")
plt.show()

# %% [markdown]
# Hill, where nobody died, has its own weight, and its interval is wide: the prior and no event say little, but not
# nothing.
#
# ## Beside it: a meta-analysis in two stages, and the pooled rows
#
# In two stages each hospital fits the regression by itself, and the estimates are averaged by their precision. The
# pooled fit needs all rows in one place; it is what the study wants to reproduce.

# %%
columns = {}
for name in HOSPITALS:
    scope = {"__file__": str(Path(name, "load.py").resolve())}
    exec(LOAD, scope)  # the tutorial alone may: it has all folders
    columns[name] = scope["load_rows"]()


def own_fit(x, y, steps=30):
    """Estimates of maximum likelihood and their covariance, by Newton's method."""
    b = np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(x @ b, -30, 30)))
        information = x.T @ (x * (p * (1 - p))[:, None]) + 1e-12 * np.eye(len(b))
        b = b + np.linalg.solve(information, x.T @ (y - p))
    return b, np.linalg.inv(information)


design = {name: np.column_stack([np.ones(len(a)), a, f, t]) for name, (a, f, t, _) in columns.items()}
stage = {name: own_fit(design[name], columns[name][3]) for name in HOSPITALS}
estimate, variance = (np.array([part[i] for part in stage.values()]) for i in (0, 1))
variance = np.diagonal(variance, axis1=1, axis2=2)
known = variance[:, 3] < 25  # the others' likelihoods rise without end
print(pd.DataFrame({"estimate": estimate[:, 3], "SE": variance[:, 3] ** 0.5}, index=list(HOSPITALS)).round(2))
two_stage = np.average(estimate[known], axis=0, weights=1 / variance[known]), (1 / variance[known]).sum(0) ** -0.5

# %%
scope = {}
exec(Path("centre/model.py").read_text(), scope)
fed = pf.Federation.from_clients(scope["model"], columns, plate="patients")
chains = pf.FedEP() if FAST else pf.NUTS(num_samples=2000, warmup_steps=500)  # in the fast setting a Gaussian
pooled = pf.run(chains, fed, seed=0, progress=False, audit=False, log_likelihood=False).posterior
review = json.loads(Path("centre/trial/review.json").read_text())
posterior = idata.posterior
csv = sum(Path(name, f"{name}.csv").stat().st_size for name in HOSPITALS)


def column(mean, sd, hospitals, size):
    """A column of the table."""
    return [*(f"{one:.3f}" for one in (*mean, sd)), hospitals, f"{size:,}"]


def of(draws):
    """Means of the effects, and the SD of the treatment's."""
    return draws["effects"].mean(("chain", "draw")).values, float(draws["effects"][..., 2].std())


table = pd.DataFrame(
    {
        "pooled rows": column(*of(pooled), 5, csv),
        "by files": column(*of(posterior), 5, review["bytes"]["answers"]),
        "two stages": column(two_stage[0][1:], two_stage[1][3], int(known.sum()), int(known.sum()) * 14 * 8),
    },
    index=["age", "female", "treated", "SD or SE of treated", "hospitals used", "bytes from the hospitals"],
)
print(table)

# %% [markdown]
# In two stages west and hill have no finite estimates and are left out. By files they count, and the answer is that of
# the pooled rows.
#
# ## For the reviewer, and for the hospital's data-protection officer
#
# The centre's folder has what the result rests on. Each hospital has a line for each message that left it.

# %%
print({name: review[name] for name in ("model", "recipe", "options")})
print(pd.DataFrame(review["sites"]).loc[["rows", "answers"]])
print({name: review["versions"][name] for name in ("pyro_fed", "torch", "numpy")}, len(review["versions"]), "packages")
at("west", "node verify what_left.jsonl")
print(pd.DataFrame({"commands": given, "files mailed": mailed}))

# %% [markdown]
# The diary has each step's commands at the centre and at one hospital, and the computer's minutes for each. A person's
# time comes on top: to read the model before it is approved, to read what would leave, and to mail files.

# %%
steps = pd.DataFrame(diary, columns=["step", "who", "place", "seconds"])
places = steps.groupby(["step", "who"], sort=False)["place"].nunique()
table = steps.groupby(["step", "who"], sort=False)["seconds"].agg(commands="size", minutes="mean")
table["commands"] = (table["commands"] / places).round(1)
table["minutes"] = (table["minutes"] / 60).round(2)
print(table.rename(columns={"commands": "commands each", "minutes": "minutes a command"}))

# %% [markdown]
# For a hospital's IT department this is little. It opens no port and makes no certificate; it installs one package.

# %%
own_files = {path.name for path in Path("north").iterdir() if path.is_file()}
came, went = {f for f in own_files if f.startswith("round-")}, {f for f in own_files if f.startswith("answer-")}
it = {"ports opened": 0, "packages installed": 1, "files written by hand": 2}  # load.py, policy.toml
it |= {"commands": given["north"], "requests by mail": len(came), "answers by mail": len(went)}
print(pd.Series(it, name="north").to_string())
assert len(came) == len(went) == answered and set(steps["step"]) >= {"check", "node approve", "study answer"}

# %%
error = posterior["effects"].mean(("chain", "draw")) - pooled["effects"].mean(("chain", "draw"))
error = error / pooled["effects"].std(("chain", "draw"))
assert float(abs(error).max()) < (0.5 if FAST else 0.15)
assert float(difference.mean()) < 0
assert known.sum() == 3 and answer.attrs["withheld"] == "west female=0; west female=1"
others = {name: rows for name, rows in columns.items() if name != "west"}
rest = pf.Federation.from_clients(scope["model"], others, plate="patients")
expected = pf.estimand(idata, rest, **scope["ESTIMANDS"]["risk"]).posterior["estimand"]
np.testing.assert_allclose(risk.values, expected.values, rtol=1e-12)

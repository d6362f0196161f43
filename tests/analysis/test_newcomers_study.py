"""A study of 18 hospitals from its files to a prediction for another hospital, as a newcomer writes it."""

import numpy as np
import pandas as pd
import pytest

STUDY = """
from pathlib import Path

import pandas as pd
import pyro
import pyro.distributions as dist
import pyro_fed as pf


def model(df, num_hospitals):
    mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
    spread = pyro.sample("spread", dist.HalfNormal(1.0))
    age, male, severe = (pyro.sample(name, dist.Normal(0.0, 2.0)) for name in ("age", "male", "severe"))
    with pyro.plate("hospitals", num_hospitals):
        level = pyro.sample("level", dist.Normal(mean, spread))
    with pyro.plate("patients", len(df)):
        effects = age * df.age + male * (df.sex == "male") + severe * df.stage.isin(["III", "IV"])
        pyro.sample("died", dist.Bernoulli(logits=level[df.hospital] + effects), obs=df.died)


frames = [pd.read_csv(path) for path in sorted(Path(".").glob("*.csv"))]
mean, sd = (float(value) for value in pf.pooled_moments([pf.column_sums(frame["age"]) for frame in frames]))
clients = [(frame.assign(age=(frame["age"] - mean) / sd), 1) for frame in frames]
fed = pf.Federation.from_clients(model, clients, plate="hospitals", rows={"patients": "hospital"})
idata = pf.run(pf.FedEP(), fed, audit=False, progress=False)
new = pd.DataFrame({"hospital": ["Ulm", "Basel"], "age": 0.0, "sex": "male", "stage": "II", "died": None})
risk = pf.predict(idata, fed, (new, 2)).posterior_predictive["died"]
"""
TRUTH = {"age": 0.6, "male": 0.5, "severe": 1.2}
LEVELS = {"Basel": 1.5} | {f"Hospital {i}": level for i, level in enumerate(np.linspace(-2.2, 0.2, 17))}


def write_files(folder):
    rng = np.random.default_rng(0)
    for k, (hospital, level) in enumerate(LEVELS.items()):
        size = int(rng.integers(40, 80))
        frame = pd.DataFrame({"hospital": hospital, "age": rng.normal(60, 12, size).round()})
        frame["sex"], frame["stage"] = rng.choice(["male", "female"], size), rng.choice(["I", "II", "III", "IV"], size)
        if k == 3:
            frame = frame[frame["stage"] != "IV"]  # a label that one hospital lacks
        logits = level + TRUTH["age"] * (frame["age"] - 60) / 12 + TRUTH["male"] * (frame["sex"] == "male")
        logits += TRUTH["severe"] * frame["stage"].isin(["III", "IV"])
        frame["died"] = (rng.random(len(frame)) < 1 / (1 + np.exp(-logits))).astype(int)
        frame.to_csv(folder / f"{hospital}.csv", index=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_columns_of_text_beside_groups_of_numbers(tmp_path, monkeypatch):
    """Each client numbers its hospital from 0. The labels are in the graph that integrals over levels are taken by."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    study = STUDY.partition("new = pd")[0].replace("frame.assign(", "frame.assign(hospital=0, ")
    exec(compile(study, "study.py", "exec"), names)
    for name, truth in TRUTH.items():  # 5 SDs, as below
        draws = names["idata"]["posterior"][name]
        assert abs(float(draws.mean()) - truth) < 5 * float(draws.std()) and float(draws.std()) < 0.35


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_study_from_files_to_a_new_hospital(tmp_path, monkeypatch):
    assert len([line for line in STUDY.splitlines() if line.strip()]) < 30
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(STUDY, "study.py", "exec"), names)
    posterior, risk = names["idata"]["posterior"], names["risk"]
    for name, truth in TRUTH.items():  # 5 SDs: a false alarm in 2e6 runs of each
        assert abs(float(posterior[name].mean()) - truth) < 5 * float(posterior[name].std())
        assert float(posterior[name].std()) < 0.35
    assert sorted(names["fed"].coords["hospitals"]) == sorted(LEVELS)
    basel = float(posterior["level"].sel(hospitals="Basel").mean())
    assert abs(basel - LEVELS["Basel"]) < 1.5
    ulm, known = risk.mean(["chain", "draw"]).values
    assert abs(known - 1 / (1 + np.exp(-LEVELS["Basel"] - TRUTH["male"]))) < 0.2
    assert ulm < known - 0.2  # from the population, whose mean is a logit of -0.9

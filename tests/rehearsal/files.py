"""Five sites and a coordinator without a network on this machine, as `docs/files.md` tells it: `make rehearsal-files`.

    python tests/rehearsal/files.py [FOLDER]

1. five folders of sites with rows of their own, and one of the coordinator, which share nothing; files are copied
   between them, as mails would be
2. `pyro-fed study init`, then `answer` and `combine`, exchange after exchange, each a process of its own; the
   coordinator's and one site's are killed once, and the commands given again
3. the draws against the simulation's: the same to the last bit
4. a changed, an unsigned and an old file, and a stranger's: refused

Exit code 1 where something is not as it should be.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

NAMES = ("north", "east", "south", "west", "centre")
MODEL, RECIPE, SEED = "weibull_survival", "files", 3
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PYRO_FED = [sys.executable, "-c", "from pyro_fed.cli.main import main; main()"]
#: Seconds of a command's work after which it is killed, and seconds from one look for its beginning to the next.
KILL_AFTER, LOOK_EVERY = 0.3, 0.02


def main(folder: Path) -> int:
    """The rehearsal; 0 where all is as it should be."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = deal(folder)
    office = folder / "coordinator"
    office.mkdir()
    words = ["--model", MODEL, "--recipe", RECIPE, "--sites", ",".join(NAMES), "--seed", str(SEED)]
    said = command(office, "init", "trial", *words)
    key = next(word for word in said.split() if word.startswith("SHA256:"))
    exchanges, good = 0, True
    while not (office / "trial" / "result.nc").exists():
        for name in NAMES:
            mail(office / "trial" / "outbox" / request(name, exchanges), folder / name)
            own = ["answer", request(name, exchanges), "--yes"]
            own += ["--data", "rows.npz", "--coordinator", key] if exchanges == 0 else []
            if (name, exchanges) == ("south", 1):
                killed(folder / name, folder / name / f"trial-{name}" / "lock", *own)
            command(folder / name, *own)
            mail(folder / name / answer(name, exchanges), office)
        if exchanges == 1:
            killed(office, office / "trial" / "lock", "combine", "trial", *(answer(name, exchanges) for name in NAMES))
            good &= refused(folder, office)
        command(office, "combine", "trial", *(answer(name, exchanges) for name in NAMES))
        exchanges += 1
    say(f"{exchanges} exchanges, {2 * exchanges * len(NAMES)} mails")
    return 0 if compare(office / "trial" / "result.nc", rows) and good else 1


def say(text: str, good: bool = True) -> bool:
    """One line of the log."""
    print(f"{'ok  ' if good else 'BAD '} {text}", flush=True)
    return good


def request(name: str, exchange: int) -> str:
    """The name of a request's file."""
    return f"round-{exchange:03d}-request-{name}.study"


def answer(name: str, exchange: int) -> str:
    """The name of an answer's file."""
    return f"answer-{name}-{exchange:03d}.study"


def mail(file: Path, to: Path) -> None:
    """A copy of a file in another folder."""
    shutil.copyfile(file, to / file.name)


def command(folder: Path, *words: str, code: int = 0) -> str:
    """`pyro-fed study ...` in a folder, to its end; what it has said."""
    began = time.perf_counter()
    done = subprocess.run(
        [*PYRO_FED, "study", *words], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=500
    )
    said = done.stdout + done.stderr
    if done.returncode != code:
        raise SystemExit(f"BAD  {folder.name}: study {' '.join(words)}: exit code {done.returncode}\n{said}")
    say(f"{folder.name}: study {' '.join(words)} ({time.perf_counter() - began:.0f} s)")
    return said


def killed(folder: Path, lock: Path, *words: str) -> None:
    """The same command, killed while it works: a while after it has locked its folder."""
    process = subprocess.Popen(
        [*PYRO_FED, "study", *words], cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not lock.exists():
        time.sleep(LOOK_EVERY)
    try:
        process.wait(KILL_AFTER)
        say(f"{folder.name}: study {words[0]} was over before it could be killed")
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        say(f"{folder.name}: study {words[0]} killed while it worked")


def deal(folder: Path) -> dict[str, tuple[np.ndarray, ...]]:
    """The model's training rows, sorted by a covariate and cut into parts of different sizes: SITE/rows.npz each."""
    from pyro_fed.recipes.library import load_model

    module = load_model(MODEL)
    data = [np.asarray(leaf) for leaf in module.load_data()[0]]
    order = np.argsort(data[0][:, 1])
    found = {}
    for name, at in zip(NAMES, np.split(order, np.cumsum([90, 80, 70, 12])), strict=True):
        found[name] = tuple(part[at] for part in data)
        (folder / name).mkdir()
        np.savez(folder / name / "rows.npz", **dict(zip(("x", "died", "time"), found[name], strict=True)))
    say(f"rows dealt out: {', '.join(f'{name} {len(own[0])}' for name, own in found.items())}")
    return found


def refused(folder: Path, office: Path) -> bool:
    """Files that are no answers to the present request: each refused by name, and nothing is lost."""
    at = "north"
    good = (office / answer(at, 1)).read_bytes()
    changed = bytearray(good)
    changed[len(good) // 2] ^= 1
    unsigned = good[: good.rindex(b"\nsignature")]
    cases = {
        "changed": (bytes(changed), "odd.study"),
        "unsigned": (unsigned, "it has no signature"),
        "a stranger's": (b"pyro_fed study file 1\n", "does not say how long"),
    }
    fine = True
    for what, (data, words) in cases.items():
        (office / "odd.study").write_bytes(data)
        said = command(office, "combine", "trial", "odd.study", code=2)
        refusal = next((line for line in said.splitlines() if line.startswith("Refused: ")), "not refused")
        fine &= say(f"{what} file: {refusal}", words in refusal)
    said = command(office, "combine", "trial", answer(at, 0))
    fine &= say(f"an old answer: {said.splitlines()[0]}", "is here already" in said)
    old = command(folder / at, "answer", request(at, 0), "--yes")
    return fine & say("an old request gets the answer of that time", "Mail it" in old)


def compare(result: Path, rows: dict[str, tuple[np.ndarray, ...]]) -> bool:
    """The draws of the study against those of a simulation of the same recipe."""
    import arviz as az

    import pyro_fed as pf
    from pyro_fed.recipes import recipe
    from pyro_fed.recipes.library import load_model

    module, chosen = load_model(MODEL), recipe.load(RECIPE)
    fed = pf.Federation.from_clients(module.model, rows, plate=module.PLATE)
    same = pf.run(
        chosen.build(),
        fed,
        **chosen.run_options(len(rows)),
        seed=SEED,
        executor="sequential",
        compile="off",
        progress=False,
        audit=False,
        log_likelihood=False,
    )
    found = az.from_netcdf(result)
    worst = max(float(np.abs(found.posterior[name] - same.posterior[name]).max()) for name in same.posterior.data_vars)
    say(f"doubts: {found.attrs['doubts'] or 'none'}")
    return say(f"files against the simulation: the largest difference of a draw is {worst}", worst == 0.0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/rehearsal-files").absolute()))

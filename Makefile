# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-test
DOCS_STAMP := $(VENV)/.installed-docs

.PHONY: demo test quick lint docs clean test-pythons readme rehearsal rehearsal-peers rehearsal-files release-check papers

demo: $(STAMP)  ## DSVGD over ten clients with different label mixes, then federated algorithms against NUTS
	$(BIN)/pyro-fed run logistic_regression dsvgd --clients 10 --partition dirichlet:0.3 --seed 0 --out out/demo.nc
	$(BIN)/pyro-fed compare logistic_regression dsvgd fedep fedais p2p_vi fsgld fedlaplace --reference nuts \
		--set nuts.num_samples=1000 --set nuts.warmup_steps=500 --apart \
		--clients 10 --partition dirichlet:0.3 --seed 0 --report out/report.html --out out/comparison

# One thread a worker: two workers that fight for the cores are many times slower. Tests that ask for two threads wait
# for the second one asleep.
test: lint  ## lint, types and every test
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 --dist loadgroup

# Folders and files that take seconds and reach every storey, and the contract's draws, which hold every algorithm to its
# numbers on small federations (those on hierarchies, NUTS, recipes' runs and workers are left to `make test`).
QUICK := tests/test_layers.py tests/conventions tests/ops tests/graph tests/federation tests/recipes \
	tests/density/test_problem.py tests/density/test_model_errors.py tests/density/test_discrete_errors.py \
	tests/infer/langevin/test_langevin_scores.py tests/runtime/messages/test_messages.py \
	tests/docs/test_fault_table.py tests/algorithm/test_contract_draws.py

quick: lint  ## before a commit, within a minute: lint, types and the tests that take milliseconds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup -k "not hierarchy and not NUTS and not workers" \
		--ignore=tests/federation/test_membership.py --ignore=tests/recipes/test_recipes_run.py $(QUICK)

test-pythons: $(STAMP)  ## the wheel on every Python here from 3.11, with the newest and the oldest dependencies
	$(BIN)/python tests/helpers/pythons.py $(PYTHONS)

release-check: $(STAMP)  ## what would be published: sdist and wheel, their metadata and contents, a fresh install
	$(BIN)/python tests/helpers/release.py

rehearsal: $(STAMP)  ## a deployment on loopback over TLS: a node and the server killed, a stranger and foreign apps refused; see docs/deployment.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/rehearsal/rehearse.py $(if $(KEEP),--keep $(KEEP))

rehearsal-peers: $(STAMP)  ## five agents without a server over TLS, killed and restarted, against the simulation
	$(BIN)/python tests/rehearsal/peers.py out/rehearsal-peers

rehearsal-files: $(STAMP)  ## five sites and a coordinator by files alone, killed and given again, against the simulation
	$(BIN)/python tests/rehearsal/files.py out/rehearsal-files

# Each item is kept in out/papers once it has run, so that this can be cut off and resumed. ONLY=p2p,fsgld_figure_1 takes
# papers or items.
papers: $(STAMP)  ## the figures and tables of the five papers, two hours of one core; `--list` of the command has each item's time
	$(BIN)/python -m benchmarks.papers $(if $(ONLY),--only $(ONLY))

readme: demo  ## README's table and picture, from what the demo has left
	$(BIN)/python docs/comparison.py out/comparison

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tutorials are shown as the tests have run them, in their fast setting; PYRO_FED_FAST=0 make docs runs all of them.
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -W --keep-going docs docs/_build/html

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) out build dist docs/_build docs/_executed docs/_tutorials docs/_models docs/_static/generated .pytest_cache .ruff_cache .mypy_cache

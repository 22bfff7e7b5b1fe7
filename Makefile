PYTHON ?= python3
VENV := .venv
# Empty: the newest versions of all dependencies
CONSTRAINTS ?= --constraint constraints.txt
RUN := $(VENV)/bin/python
# More threads than this slow small networks down
export OMP_NUM_THREADS ?= 2

.PHONY: train test quick attack lint format type check docs dist versions benchmark sb3-suite clean

# Each builds .venv when it is missing or its requirements have changed: for training, and for everything
$(VENV)/.training: EXTRAS := zoo,plots
$(VENV)/.training: SIZE := 1.7 GB
$(VENV)/.installed: EXTRAS := dev
$(VENV)/.installed: SIZE := 3.3 GB
# Without dependencies, as its pygame has the files of the Zoo's pygame-ce
$(VENV)/.installed: ALONE := mo-gymnasium
$(VENV)/.training $(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing sb3_ppg and $(EXTRAS) into $(VENV): $(SIZE), and 4 GB more if pip picks the CUDA build of PyTorch"
	@echo "(docs/start.md avoids it). This takes a few minutes, most of them for the download."
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install $(CONSTRAINTS) --editable ".[$(EXTRAS)]"
	$(if $(ALONE),$(RUN) -m pip install --quiet $(CONSTRAINTS) --no-deps $(ALONE))
	touch $@

# Trains PPG on CartPole-v1 with RL Zoo's train script, evaluates the agent, draws its learning curve
train: $(VENV)/.training
	@echo "Training for 100,000 steps: one to two minutes. Then 100 episodes are played, and the learning curve is drawn."
	$(RUN) -m sb3_ppg train --env CartPole-v1 --seed 1 --eval-freq 10000 --progress --num-threads 1 --verbose 0
	$(RUN) -m sb3_ppg report --env CartPole-v1
	@echo "Next: 'source $(VENV)/bin/activate', and then"
	@echo "  sb3-ppg enjoy --env CartPole-v1     watch the agent"
	@echo "  sb3-ppg train --env Pendulum-v1 --progress     train another one"
	@echo "  sb3-ppg compare --env CartPole-v1     PPG or PPO? (a quarter of an hour)"

# One process per core, each with one thread
TEST := OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses logical --dist worksteal

test: $(VENV)/.installed
	$(TEST)

# Leaves out the slow tests: RL Zoo's commands, pages, examples, compiled updates, ONNX files, and those that start processes
quick: $(VENV)/.installed
	$(TEST) -m "not slow"

# Reads thousands of hostile files, others each time: about half an hour
EXAMPLES ?= 5000
attack: $(VENV)/.installed
	ATTACK_EXAMPLES=$(EXAMPLES) $(TEST) tests/hub/test_attack.py

lint: $(VENV)/.installed
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m tests.summaries

format: $(VENV)/.installed
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

type: $(VENV)/.installed
	$(RUN) -m mypy

# Builds the site in docs/_build/html; warnings are errors
docs: $(VENV)/.installed
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html

check: lint type test

# Builds and checks the archives to upload, installs them for each of these interpreters that exists, and runs the README's
# first steps. Downloads gigabytes if pip's cache has no PyTorch
PYTHONS ?= python3.11 python3.12 python3.13
dist: $(VENV)/.installed
	rm -rf dist
	$(RUN) -m build --no-isolation --outdir dist
	$(RUN) -m twine check --strict dist/*
	$(RUN) -m tests.release dist/*.whl $(PYTHONS)

# Runs the fast tests with the lowest declared versions and the first of these interpreters, those of constraints.txt and the
# second, the newest and the last; writes the table of docs/versions.md. Three quarters of an hour, and gigabytes unless pip
# finds CPU builds of PyTorch
versions: $(VENV)/.installed
	$(RUN) -m tests.versions $(PYTHONS)

# Measures speed beside PPO, as ratios within one run: benchmarks/results/speed.md
benchmark: $(VENV)/.installed
	$(RUN) -m benchmarks.speed

# Runs Stable-Baselines3's own tests of PPO with PPG in its place
sb3-suite: $(VENV)/.installed
	benchmarks/sb3_suite/run.sh $(RUN)

clean:
	rm -rf $(VENV) dist docs/_build docs/results docs/examples .mypy_cache .pytest_cache .ruff_cache

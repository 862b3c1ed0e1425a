# Everything a person or CI runs; `make` alone lists it. The work is in tests/tools.

.DEFAULT_GOAL := help
# Long proofs measure times, and share what they build.
.NOTPARALLEL:
.PHONY: help run test bench soak prove deb release candidate gameday boards dashboards rules kernels fmt clean
MAKEFLAGS += --no-print-directory

# A Rust fresh from rustup is not yet on the PATH of a shell that was open before.
export PATH := $(HOME)/.cargo/bin:$(PATH)
export PROMTOOL := $(CURDIR)/.tools/bin/promtool
export PROMETHEUS := $(CURDIR)/.tools/bin/prometheus
export ALERTMANAGER := $(CURDIR)/.tools/bin/alertmanager
export AMTOOL := $(CURDIR)/.tools/bin/amtool
TARGET := $(or $(CARGO_TARGET_DIR),target)
STAGE := @tests/tools/stage.sh
# A stage beside others.
BESIDE := SHOW='^test result: .* [1-9][0-9]* passed' BESIDE=1 tests/tools/stage.sh
# End-to-end tests mostly wait: four more than there are cores run at once, and the others compute beside them. Many more are too
# many for the canary, whose budget is of real time.
test: export RUST_TEST_THREADS = $(shell echo $$(($$(nproc) + 4)))
# promtool and Prometheus run for seconds: a fifth of their time would be the collector's.
test: export GOGC = 800
# Property tests take the same cases each time, so that a failure is of the change; a plain `cargo test` takes others.
test: export PROPTEST_RNG_SEED = 1
# The newest Prometheus that is proven with; what .tools/bin has is Debian's, the oldest that rules are for.
NEWEST := $(CURDIR)/.tools/prometheus-3
DENY := .tools/cargo-deny/bin/cargo-deny --log-level error --workspace
# The parts of `make prove`. Each one that passes is recorded in .ci/proven with a digest of its inputs, and CI runs only parts
# whose inputs differ from the recorded ones.
PARTS := prose kernels dashboards deny chart otel autoscaling nvrx access page packages image rules cost boards watched gameday

help: ## This list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '  make %-10s %s\n' "$$name" "$$text"; done

run: ## Build and serve this machine's GPUs, else a simulated node [LISTEN=127.0.0.1:9500] [SCENARIO=FILE]
	@tests/tools/ensure-tools.sh build
	@LISTEN='$(LISTEN)' SCENARIO='$(SCENARIO)' tests/tools/run.sh

test: ## Everything that a change can break; one line a stage, the output of a stage that fails
	@tests/tools/ensure-tools.sh build test
	$(STAGE) 'formatting' cargo fmt --all --check
	$(STAGE) 'lints and build' tests/tools/linted.sh cargo build --workspace --all-targets
	@$(BESIDE) 'all other tests' tests/tools/linted.sh cargo test --workspace --no-fail-fast \
			--config "target.'cfg(all())'.runner='$(CURDIR)/tests/tools/test-runner.sh'" & others=$$!; \
		$(BESIDE) 'end-to-end tests' tests/tools/linted.sh cargo test --workspace --test e2e; \
		e2e=$$?; wait $$others && exit $$e2e
	@SHOW='^exposure .* of gpu-node-exporter.service' tests/tools/stage.sh 'systemd unit' tests/tools/verify-unit.sh $(TARGET)/debug/gpu-node-exporter

bench: ## Measure what serving, folding and sampling cost
	@tests/tools/ensure-tools.sh build sim
	cargo run --release -p bench

soak: ## Prove that memory stays flat: a simulated day of the ledger, and restarts of the driver (4 minutes)
	@tests/tools/ensure-tools.sh build sim
	cargo run --release -p bench -- soak

prove: $(PARTS:%=proven-%) ## What takes longer or more tools [PARTS='prose kernels dashboards deny chart otel autoscaling nvrx access page packages image rules cost boards watched gameday healthy-day newcomer']

proven-%: prove-%
	@tests/tools/proven.sh record $*

# The grammar of documents and comments.
prove-prose:
	@tests/tools/ensure-tools.sh prose
	@SHOW='^prose' tests/tools/stage.sh 'prose' tests/tools/prose.py .tools/harper

# The committed machine code is what the kernels' sources give.
prove-kernels:
	@tests/tools/ensure-tools.sh kernels
	$(STAGE) 'kernels' kernels/build.py --check

# The committed boards are what their sources give.
prove-dashboards:
	@tests/tools/ensure-tools.sh dashboards
	$(STAGE) 'dashboards' dashboards/build/build.py --check

# Crates, their licences and sources, and which crate may name a vendor's library. Advisories need the internet's database.
prove-deny:
	@tests/tools/ensure-tools.sh build deny
	@cargo fetch -q --locked # crates of other systems too
	$(STAGE) 'crates' $(DENY) --offline check bans licenses sources
	@if [ -n "$(ADVISORIES)" ]; then $(DENY) check advisories; else echo "advisories: not checked; with internet: make prove PARTS=deny ADVISORIES=1"; fi

# The objects of the Helm chart fit their APIs and each other, and its rules are those of the command, with the same values.
prove-chart:
	@tests/tools/ensure-tools.sh build helm schemas
	@cargo build -q -p gpu-node-exporter
	@SHOW='^[0-9]+ sets' SCHEMAS=.tools/schemas tests/tools/stage.sh 'Helm chart, objects' \
		tests/tools/chart.py .tools/helm/helm $(TARGET)/debug/gpu-node-exporter .tools/prometheus-operator
	$(STAGE) 'Helm chart, rules' tests/tools/chart.sh $(TARGET)/debug/gpu-node-exporter .tools/helm/helm

# A real Collector with the files of deploy/otel pushes what the exporter serves.
prove-otel:
	@tests/tools/ensure-tools.sh build test otelcol
	@OTELCOL=$(CURDIR)/.tools/otelcol/otelcol SHOW='^test result:' \
		tests/tools/stage.sh 'OpenTelemetry Collector' tests/tools/linted.sh cargo test --test otel

# The objects of deploy/autoscaling fit their APIs, and prometheus-adapter's and KEDA's own code finds what they ask for.
prove-autoscaling:
	@tests/tools/ensure-tools.sh build test autoscaling
	@SCHEMAS=.tools/schemas tests/tools/stage.sh 'autoscalers, schemas' tests/tools/autoscaling.py .tools/keda/keda.sh_scaledobjects.yaml
	@SHOW='^test result:' AUTOSCALING_TOOLS=$(CURDIR)/.tools \
		tests/tools/stage.sh 'autoscalers, values' cargo test --test e2e -- autoscaling

# The packages install, start, upgrade and go in a bare Debian 12; needs root.
prove-packages: release
	@tests/tools/ensure-tools.sh sim roots
	@cargo build -q -p simgpu
	@SHOW='.' tests/tools/stage.sh 'packages in a bare root' tests/tools/check-packages.sh $(TARGET)/debug/libsimgpu.so

# The container image runs as the chart's pods ask for it, on a simulated node; needs root.
prove-image: release
	@tests/tools/ensure-tools.sh sim helm schemas nvrx roots
	@cargo build -q -p gpu-node-exporter -p simgpu
	@SHOW='.' SCHEMAS=.tools/schemas PYTHONPATH=.tools/nvrx tests/tools/stage.sh 'container image' \
		unshare --net --mount --pid --fork --kill-child --mount-proc \
		tests/tools/image.py .tools/helm/helm $(TARGET)/debug .run/packages/*.oci.tar

# What a newcomer types, in a bare Debian 12 with Rust: `make run`, `make test` and the installation of the package; needs root.
prove-newcomer:
	@tests/tools/ensure-tools.sh roots
	@SHOW='.' tests/tools/stage.sh 'newcomer in a bare root' tests/tools/newcomer.sh

# NVRx's own client asks the daemon for the node's health.
prove-nvrx:
	@tests/tools/ensure-tools.sh build sim nvrx
	@cargo build -q -p gpu-node-exporter -p simgpu
	@SHOW='^PSS|^NVRx' PYTHONPATH=.tools/nvrx tests/tools/stage.sh 'NVRx client' \
		python3 tests/tools/nvrx/check.py $(TARGET)/debug/gpu-node-exporter $(TARGET)/debug/libsimgpu.so

# The web configurations of the Prometheus exporter-toolkit, each accepted or refused, and asked with curl.
prove-access:
	@tests/tools/ensure-tools.sh build exporter-toolkit
	@cargo build -q -p gpu-node-exporter
	@SHOW='accepted$$|refused$$|^  curl' tests/tools/stage.sh 'web configurations' tests/tools/access.sh $(TARGET)/debug/gpu-node-exporter .tools/exporter-toolkit

# The status page in a browser: each size of node and each fault, both colour schemes, 320 pixels, keyboard, no JavaScript (5 minutes).
prove-page:
	@tests/tools/ensure-tools.sh build sim browser
	@cargo build --release -q -p gpu-node-exporter -p simgpu
	@BUILT=$(TARGET)/release SHOW='wire,|^FAULT|^page' tests/tools/stage.sh 'status page' tests/page/run.sh

# What `make test` does with the oldest Prometheus: rules and their tests (here each case with every rule of its file), pages as
# promtool wants them, scrapes without loss.
prove-rules:
	@tests/tools/ensure-tools.sh build test prometheus-3
	@SHOW='^test result:' PROMTOOL=$(NEWEST)/promtool WHOLE_RULE_FILES=1 \
		tests/tools/stage.sh 'rules, newest Prometheus' cargo test -p assets
	@SHOW='^test result:' PROMTOOL=$(NEWEST)/promtool PROMETHEUS=$(NEWEST)/prometheus \
		tests/tools/stage.sh 'scrapes, newest Prometheus' \
		cargo test --test e2e -- prometheus promtool recording_rules hostile_names

# All rules once, and each query of Fleet and On call, on 200 nodes with eight GPUs each (13 minutes).
prove-cost:
	@tests/tools/ensure-tools.sh build test prometheus-3
	@cargo build --workspace
	@SHOW='^nodes|^series|^all|^of that|^share|^most expensive|^slowest' tests/tools/stage.sh 'what rules cost' tests/alerts/cost.py --built $(TARGET)/debug --hurry --check \
		--prometheus $(NEWEST)/prometheus

# A program takes at most 2 % longer under `assess`: 150 pairs of runs (17 minutes of a quiet machine).
prove-watched:
	@tests/tools/ensure-tools.sh build
	@cargo build --release -q -p gpu-node-exporter -p bench
	@SHOW='^watched' tests/tools/stage.sh 'cost of being watched' $(TARGET)/release/bench watched

prove-boards: boards

prove-gameday: gameday

# No alert on a day on which nothing is wrong; `make gameday` does it too.
prove-healthy-day:
	@tests/tools/ensure-tools.sh build test
	@cargo build --workspace
	@SHOW='none fires|fire' tests/tools/stage.sh 'healthy day' $(TARGET)/debug/gameday healthy-day --minutes 2

# What is shipped: in debug builds three dozen exporters keep two cores so busy that the times say nothing.
gameday: ## Play incidents and a healthy day against real Prometheus and Alertmanager: which notification comes, and when
	@tests/tools/ensure-tools.sh build test
	cargo build --release -p gpu-node-exporter -p simgpu -p gameday
	@mkdir -p .run
	@$(TARGET)/release/gameday healthy-day
	@$(TARGET)/release/gameday play --markdown .run/gameday.md
	@$(TARGET)/release/gameday notifications --markdown .run/notifications.md

deb: ## Build the .deb alone into .run/packages; apt-get install ./.run/packages/*.deb installs the exporter as a service
	@tests/tools/ensure-tools.sh build deb
	@SHOW='glibc|\.deb$$' tests/tools/stage.sh 'package' tests/tools/release.sh deb

release: ## Build .deb, .rpm, tarball, SBOM, container image, checksums and their provenance into .run/packages
	@tests/tools/ensure-tools.sh build packages
	@SHOW='glibc|\.(deb|rpm|gz|json|tar)$$|packed' tests/tools/stage.sh 'packages' tests/tools/release.sh

candidate: test prove-deny prove-chart prove-rules prove-packages prove-image ## Test, build and prove what `make release` builds, as the release workflow does; needs root

boards: ## Draw every panel of every dashboard in a browser, in nine situations (Grafana's components, real Prometheus)
	@tests/tools/ensure-tools.sh build test browser prometheus-3
	@cargo build --workspace
	@BUILT=$(TARGET)/debug PROMETHEUS=$(NEWEST)/prometheus dashboards/preview/run.sh

dashboards: ## Write dashboards/*.json from their sources
	@tests/tools/ensure-tools.sh build dashboards
	@UPDATE=1 cargo test -q -p assets -- the_inhibitions_are
	@dashboards/build/build.py

rules: ## Write the rule files from alerts/rules and alerts/values.yml
	@tests/tools/ensure-tools.sh build
	@UPDATE=1 cargo test -q -p assets -- the_rule_files_are

kernels: ## Compile the CUDA kernels to kernels/bin (fetches the compilers; wants no GPU)
	@tests/tools/ensure-tools.sh kernels
	@kernels/build.py

fmt: ## Format the Rust code
	cargo fmt --all

clean: ## Remove all that was built, installed here (.tools) or left by runs (.run)
	cargo clean
	rm -rf .tools .run

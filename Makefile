# Two main commands: `make demo` shows the product, `make test` tests it. Both install their needs.

CARGO ?= cargo
DEMO_ARGS ?=
STACK_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_ARGS ?=
WEBRTC_ARGS ?=
FIGURES ?=
FIGURES_ARGS ?=
FIGURES_DRIVES ?=

TARGET = $(or $(CARGO_TARGET_DIR),target)
# The product and its tools.
BUILD = $(CARGO) build --quiet --package roadweave --package roadweave-bench
# This profile builds in half the time, without the options that make the product small and slightly
# faster. The live encoder is from `make video`.
DEMO_PROFILE ?= demo
SMOKE_BUILD ?= $(BUILD)
# Packages of `make test` and `make lint`: `--workspace` includes tools/video in the same build.
MEMBERS ?= --workspace --exclude roadweave-video
NODE_MODULES = scripts/node_modules/.package-lock.json
PAGE = crates/web/page
PAGE_MODULES = $(PAGE)/node_modules/.package-lock.json
WEB_ARGS ?=

.PHONY: agreement demo test optimized test-aarch64 fuzz lint deny bench callgrind charts \
	fleet fleet-day api-check book images dist dist-test webrtc webrtc-smoke figures \
	video video-test video-lint web web-test packages clean

# Without --workspace, cargo builds the default members: the product without the tools.

demo: packages
	$(BUILD) --profile $(DEMO_PROFILE)
	PATH="$(abspath $(TARGET))/release:$$PATH" $(TARGET)/$(DEMO_PROFILE)/roadweave demo $(DEMO_ARGS)

# `cargo test --no-fail-fast`, with test programs that mostly wait in parallel.
test: packages
	@CARGO="$(CARGO)" scripts/test.sh $(MEMBERS)

# The first check of an edit: format, lints, unit and property tests, and the lab with one seed.
check: packages
	scripts/width.sh
	scripts/size.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets $(MEMBERS) -- -D warnings
	@CARGO="$(CARGO)" scripts/test.sh $(MEMBERS) --lib --test lab

# Checks too slow for each change: more seeds, long fuzzing, browsers, packages, figures.
nightly: packages
	ROADWEAVE_SEEDS=240 $(CARGO) test --quiet $(MEMBERS) --test lab random_world
	$(MAKE) fuzz FUZZ_SECONDS=600 FUZZ_ARGS=--keep
	$(MAKE) agreement web-test webrtc-smoke api-check
	$(MAKE) figures FIGURES_ARGS=--quick
	$(MAKE) dist dist-test

# Compares the lab with the same tunnel in real time, including the tail: docs/lab.md. Takes about
# six minutes on an idle machine.
agreement: packages
	$(BUILD) --release
	$(CARGO) test --quiet --release --package roadweave-bench --test agreement -- \
	    --include-ignored --nocapture --test-threads 1

# The product with profile-guided optimisation, about a fifth cheaper per packet:
# tools/experiments/tunnel-speed.md. Needs llvm-profdata of the compiler's LLVM.
optimized: packages
	@CARGO="$(CARGO)" deploy/optimized.sh

# The tests of crates/coding as on an ARM box, by qemu.
test-aarch64:
	@CARGO="$(CARGO)" deploy/aarch64-test.sh

# Fuzzes the decoders of the tunnel and the fleet (crates/proto, coding, fleet), FUZZ_SECONDS each.
# Decoders of recordings, of the recorder and of RTP only have property tests.
fuzz: packages
	@CARGO="$(CARGO)" fuzz/run.sh $(FUZZ_ARGS) --seconds $(FUZZ_SECONDS)

lint:
	scripts/width.sh
	scripts/size.py
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --all-targets $(MEMBERS) -- -D warnings
	$(CARGO) clippy --package roadweave --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --quiet $(MEMBERS)

# Licences, sources, bans and known vulnerabilities of dependencies; installs cargo-deny.
deny:
	@CARGO="$(CARGO)" deploy/deny.sh

# Checks the Helm chart against the schemas of its values and of Kubernetes; installs helm.
charts:
	@deploy/helm/check.sh

# The pages of docs/ as a site, target/book/index.html; installs mdbook into target/tools.
book:
	@CARGO="$(CARGO)" deploy/book.sh

# Builds container images of the back-end with buildah, and tests each with podman.
images:
	@CARGO="$(CARGO)" deploy/images.sh
	@deploy/images-test.sh

# Packages (deb, rpm, OpenWrt's), and their installation in separate roots: docs/install.md.
dist:
	@CARGO="$(CARGO)" deploy/dist/dist.sh

dist-test:
	@deploy/dist/test.sh

bench: packages
	$(CARGO) bench --quiet --bench datagrams --bench select --bench session
	$(BUILD) --release
	$(TARGET)/release/roadweave bench tunnel
	$(TARGET)/release/roadweave bench router

# Instructions of a packet by part of the program: tools/experiments/tunnel-speed.md.
callgrind: packages
	@CARGO="$(CARGO)" scripts/instructions.py $(CALLGRIND_ARGS)

# A local fleet with two boxes and video, whose controller and a proxy die: docs/fleet.md.
fleet: packages
	$(BUILD) --package roadweave-control --release
	$(TARGET)/release/roadweave stack $(STACK_ARGS)

# A day of 10,000 boxes, 50 proxies and a controller, with faults, in virtual time: docs/lab.md.
fleet-day: packages
	$(BUILD) --release
	$(TARGET)/release/roadweave lab fleet --boxes 10000 --proxies 50 --hours 24 --seed 1

# Checks the answers of the controller's interface against its description: schemathesis.
api-check: packages
	@CARGO="$(CARGO)" deploy/api-check.sh

# Calls between two real browsers over emulated links, one per setting: docs/video.md.
webrtc: EXTRA_PACKAGES = webrtc
webrtc: packages $(NODE_MODULES)
	$(BUILD) --release
	node scripts/webrtc/call.js --roadweave $(TARGET)/release/roadweave $(WEBRTC_ARGS)

# Half a minute of it, with the tests' build of the program: after `make test`, SMOKE_BUILD=true
# uses that one; selecting packages by name would rebuild them with other features.
webrtc-smoke: EXTRA_PACKAGES = webrtc
webrtc-smoke: packages $(NODE_MODULES)
	npm test --silent --prefix scripts
	$(SMOKE_BUILD)
	node scripts/webrtc/call.js --roadweave $(TARGET)/debug/roadweave --smoke

# The figures of the papers, each in a file of target/figures: tools/experiments/figures.md.
# FIGURES="xlink-8 lola-3" selects some of them, FIGURES_ARGS=--quick runs a little of each.
figures: packages
	$(BUILD) --release
	@CARGO="$(CARGO)" scripts/figures.sh --lab $(TARGET)/release/roadweave-lab --out $(TARGET)/figures \
	    $(if $(FIGURES_DRIVES),--drives $(FIGURES_DRIVES)) $(FIGURES_ARGS) $(FIGURES)

# The camera program, which needs GStreamer: docs/video.md.
video: EXTRA_PACKAGES = video
video: packages
	$(CARGO) build --quiet --release --package roadweave-video

video-test: EXTRA_PACKAGES = video
video-test: packages
	$(CARGO) test --package roadweave-video --no-fail-fast

video-lint: EXTRA_PACKAGES = video
video-lint: packages
	$(CARGO) clippy --package roadweave-video --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --package roadweave-video --no-deps --quiet

# The page of roadweave-web, by npm; the next build of the program includes it: docs/operate.md.
web: EXTRA_PACKAGES = web
web: packages $(PAGE_MODULES)
	npm run --silent build --prefix $(PAGE)

# Tests the page in Chromium with axe-core; skipped if npm or Chromium is not installed.
web-test:
	@CARGO="$(CARGO)" deploy/web-test.sh $(WEB_ARGS)

$(PAGE_MODULES): $(PAGE)/package-lock.json | packages
	npm ci --silent --no-audit --no-fund --prefix $(PAGE)

$(NODE_MODULES): scripts/package-lock.json | packages
	npm ci --silent --no-audit --no-fund --prefix scripts

packages:
	@deploy/packages.sh $(EXTRA_PACKAGES)

clean:
	$(CARGO) clean

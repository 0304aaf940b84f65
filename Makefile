# Two commands: `make demo` shows what it does, `make test` proves it. Both install what they need.

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
# The product, and what shows it.
BUILD = $(CARGO) build --quiet --package roadweave --package roadweave-bench
# Without what makes the product small and a little faster, it is built in half the time. The live
# encoder is that of `make video`.
DEMO_PROFILE ?= demo
SMOKE_BUILD ?= $(BUILD)
# What `make test` and `make lint` take: `--workspace` for tools/video as well, in one build.
MEMBERS ?= --workspace --exclude roadweave-video
NODE_MODULES = scripts/node_modules/.package-lock.json
PAGE = crates/web/page
PAGE_MODULES = $(PAGE)/node_modules/.package-lock.json
WEB_ARGS ?=

.PHONY: agreement demo test optimized test-aarch64 fuzz lint deny bench charts \
	fleet fleet-day api-check book images dist dist-test webrtc webrtc-smoke figures \
	video video-test video-lint web web-test packages clean

# Without --workspace, cargo takes the default members: the product, without the tools.

demo: packages
	$(BUILD) --profile $(DEMO_PROFILE)
	PATH="$(abspath $(TARGET))/release:$$PATH" $(TARGET)/$(DEMO_PROFILE)/roadweave demo $(DEMO_ARGS)

# `cargo test --no-fail-fast`, with what only waits side by side.
test: packages
	@CARGO="$(CARGO)" scripts/test.sh $(MEMBERS)

# What an edit is tried with first: form, lints, unit and property tests, and the lab with one seed.
check: packages
	scripts/width.sh
	scripts/size.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --all-targets $(MEMBERS) -- -D warnings
	@ONLY='/src/|/lab/' CARGO="$(CARGO)" scripts/test.sh $(MEMBERS)

# What takes too long for each change: more seeds, long fuzzing, browsers, packages, figures.
nightly: packages
	ROADWEAVE_SEEDS=240 $(CARGO) test --quiet $(MEMBERS) --test it random_world
	$(MAKE) fuzz FUZZ_SECONDS=600 FUZZ_ARGS=--keep
	$(MAKE) agreement web-test webrtc-smoke api-check
	$(MAKE) figures FIGURES_ARGS=--quick
	$(MAKE) dist dist-test

# Whether the lab says what the same tunnel does in real time, the tail included: docs/lab.md. Some
# six minutes on a machine that does nothing else.
agreement: packages
	$(BUILD) --release
	$(CARGO) test --quiet --release --package roadweave-bench --test agreement -- \
	    --include-ignored --nocapture --test-threads 1

# The product compiled by a profile of its own work, about a fifth cheaper for each packet:
# docs/experiments/tunnel-speed.md. Needs llvm-profdata of the compiler's LLVM.
optimized: packages
	@CARGO="$(CARGO)" deploy/optimized.sh

# The tests of crates/coding as an ARM box runs them, by qemu.
test-aarch64:
	@CARGO="$(CARGO)" deploy/aarch64-test.sh

# The decoders of the tunnel and the fleet (crates/proto, coding, fleet), so many seconds each.
# Those of recordings, of the recorder and of RTP have property tests only.
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

# The Helm chart against the schemas of its values and of Kubernetes; installs helm.
charts:
	@deploy/helm/check.sh

# The pages of docs/ as a site, target/book/index.html; installs mdbook into target/tools.
book:
	@CARGO="$(CARGO)" deploy/book.sh

# Container images of the back-end by buildah, and a try of each with podman.
images:
	@CARGO="$(CARGO)" deploy/images.sh
	@deploy/images-test.sh

# Packages (deb, rpm, OpenWrt's), and their installation in roots of their own: docs/release.md.
dist:
	@CARGO="$(CARGO)" deploy/dist/dist.sh

dist-test:
	@deploy/dist/test.sh

bench: packages
	$(CARGO) bench --quiet --bench datagrams --bench select --bench session
	$(BUILD) --release
	$(TARGET)/release/roadweave bench tunnel
	$(TARGET)/release/roadweave bench router
	$(TARGET)/release/roadweave bench coding

# A fleet on this machine with two boxes and video, whose controller and a proxy die: docs/proxy.md.
fleet: packages
	$(BUILD) --package roadweave-control --release
	$(TARGET)/release/roadweave stack $(STACK_ARGS)

# A day of 10,000 boxes, 50 proxies and a controller, with faults, in virtual time: docs/lab.md.
fleet-day: packages
	$(BUILD) --release
	$(TARGET)/release/roadweave lab fleet --boxes 10000 --proxies 50 --hours 24 --seed 1

# What the controller's interface answers, judged by its description: schemathesis.
api-check: packages
	@CARGO="$(CARGO)" deploy/api-check.sh

# A call between two real browsers over emulated links, setting after setting: docs/webrtc.md.
webrtc: EXTRA_PACKAGES = webrtc
webrtc: packages $(NODE_MODULES)
	$(BUILD) --release
	node scripts/webrtc/call.js --roadweave $(TARGET)/release/roadweave $(WEBRTC_ARGS)

# Half a minute of it, with the program as the tests build it: after `make test`, SMOKE_BUILD=true
# takes that one, where packages chosen by name would be built anew with features of their own.
webrtc-smoke: EXTRA_PACKAGES = webrtc
webrtc-smoke: packages $(NODE_MODULES)
	npm test --silent --prefix scripts
	$(SMOKE_BUILD)
	node scripts/webrtc/call.js --roadweave $(TARGET)/debug/roadweave --smoke

# The figures of the papers, each into a file of target/figures: docs/experiments/figures.md.
# FIGURES="xlink-8 lola-3" chooses some of them, FIGURES_ARGS=--quick runs a little of each.
figures: packages
	$(BUILD) --release
	@CARGO="$(CARGO)" scripts/figures.sh --lab $(TARGET)/release/roadweave-lab --out $(TARGET)/figures \
	    $(if $(FIGURES_DRIVES),--drives $(FIGURES_DRIVES)) $(FIGURES_ARGS) $(FIGURES)

# The program for cameras, which needs GStreamer: docs/video.md.
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

# The page of roadweave-web, by npm: the next build of the program takes it along. docs/web.md.
web: EXTRA_PACKAGES = web
web: packages $(PAGE_MODULES)
	npm run --silent build --prefix $(PAGE)

# The page in Chromium, with axe-core; skipped where npm or Chromium are not installed.
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

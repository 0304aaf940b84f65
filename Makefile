# Two commands: `make demo` shows what it does, `make test` proves it. Both install what they need.

CARGO ?= cargo
DEMO_ARGS ?=

.PHONY: demo test lint bench callgrind packages clean

demo: packages
	$(CARGO) run --release --quiet --package roadweave-cli -- demo $(DEMO_ARGS)

test: packages
	$(CARGO) test --workspace --no-fail-fast

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet

bench: packages
	$(CARGO) run --release --quiet --package roadweave-cli -- bench tunnel
	$(CARGO) run --release --quiet --package roadweave-cli -- bench coding

callgrind:
	@CARGO=$(CARGO) deploy/callgrind.sh

packages:
	@deploy/packages.sh

clean:
	$(CARGO) clean

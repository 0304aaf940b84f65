# Sourced: VERSION, and ROADWEAVE_VERSION, which programs print as theirs, with the commit.
# shellcheck shell=sh disable=SC2034
VERSION=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
unset ROADWEAVE_VERSION
if [ -e .git ] && commit=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null); then
    export ROADWEAVE_VERSION="$VERSION ($commit)"
fi

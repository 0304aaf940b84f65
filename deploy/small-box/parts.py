#!/usr/bin/env python3
"""Tells what part of a program the instructions belong to that count.c has counted.

    parts.py --packets N [--phases ,NAME,NAME] [--symbols N] PROGRAM COUNTS

PROGRAM has its symbols and lines. What was inlined belongs to where it was written, and what is of
the standard library to whom it was inlined into, if anybody. A phase without a name is left out.
"""

import argparse
import collections
import re
import subprocess
import sys

# What a source file, or else a symbol, belongs to: the first row that fits.
FILES = [
    (r"/ring-\d|/aes-|/aes-gcm-|/ghash-|/polyval-|/chacha20-", "crypto (ring)"),
    (r"/rustls-", "TLS library"),
    (r"/noq-(proto|udp)-", "QUIC library"),
    (r"crates/coding/", "coding"),
    (r"crates/[a-z]+/benches/", "the bench itself"),
    (r"crates/(?!core_arch|std_detect)(\w+)/src/", "our code: {}"),
    (r"/registry/src/[^/]+/([a-z0-9_-]+)-\d", "other libraries"),
]
STANDARD = re.compile(r"/rustc[-/]|/library/(core|alloc|std|compiler-builtins)/|/rust/deps/|/rustlib/")
SYMBOLS = [
    (r"ring_core|^aes_|^gcm_|^vpaes|^bn_|^sha|^ChaCha|^poly1305|^x25519", "crypto (ring)"),
    (r"mem(cpy|move|set|cmp|chr)", "copies (memcpy, memset, memcmp)"),
    (r"malloc|calloc|realloc|free|_int_|tcache|unlink_chunk|sysmalloc|arena_", "allocator"),
]
OTHER_STANDARD = "standard library, not inlined"
UNKNOWN = "C library, the rest"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--nm", default="nm")
    arguments.add_argument("--addr2line", default="addr2line")
    arguments.add_argument("--packets", type=float, required=True)
    arguments.add_argument("--phases", default="all", help="names of the phases from 0 on")
    arguments.add_argument("--symbols", type=int, default=0, help="tell of so many symbols too")
    arguments.add_argument("program")
    arguments.add_argument("counts")
    given = arguments.parse_args()

    anchors, blocks, calls = read_counts(given.counts)
    bias = bias_of(given, anchors)
    places = places_of(given, sorted({address - bias for _, address, _ in blocks}))
    parts, symbols = collections.Counter(), collections.Counter()
    for phase, address, instructions in blocks:
        part, symbol = places[address - bias]
        parts[part, phase] += instructions
        symbols[part, symbol] += instructions
    show(given, parts, calls)
    for (part, symbol), instructions in symbols.most_common(given.symbols):
        print(f"{instructions / given.packets:12.0f}  {part}: {symbol[:110]}")


def read_counts(path):
    anchors, blocks, calls = {}, [], collections.Counter()
    with open(path, encoding="ascii") as lines:
        for line in lines:
            kind, *fields = line.split()
            if kind == "anchor":
                anchors[fields[1]] = int(fields[0], 16)
            elif kind == "block":
                blocks.append((int(fields[0]), int(fields[1], 16), int(fields[2])))
            elif kind == "call":
                calls[int(fields[0])] += int(fields[2])
    return anchors, blocks, calls


def bias_of(given, anchors):
    """How far the program lay in memory from where its file says."""
    if not anchors:
        sys.exit(f"{given.counts} has no anchor: none of the functions asked for was entered")
    listing = subprocess.run([given.nm, given.program], check=True, capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[2] in anchors:
            return anchors[fields[2]] - int(fields[0], 16)
    sys.exit(f"{given.program} has none of the functions that were counted: {list(anchors)}")


def places_of(given, addresses):
    """The part and the symbol of each address."""
    asked = "".join(f"{address:x}\n" for address in addresses if address >= 0)
    command = [given.addr2line, "-a", "-i", "-f", "-C", "-e", given.program]
    told = subprocess.run(command, input=asked, check=True, capture_output=True, text=True).stdout
    places = collections.defaultdict(lambda: (UNKNOWN, "outside of the program"))
    address, frames = None, []
    for line in [*told.splitlines(), "0x0"]:
        if re.fullmatch(r"0x[0-9a-f]+", line):
            if address is not None:
                places[address] = place_of(frames)
            address, frames = int(line, 16), []
        else:
            frames.append(line)
    return places


def place_of(frames):
    """Of lines that are in turn a function and its file, the innermost first."""
    functions, files = frames[0::2], frames[1::2]
    outermost = functions[-1]
    for file in files:
        for pattern, part in FILES:
            if found := re.search(pattern, file):
                return part.format(*found.groups()), outermost
    if any(STANDARD.search(file) for file in files):
        return OTHER_STANDARD, outermost
    for pattern, part in SYMBOLS:
        if re.search(pattern, outermost):
            return part, outermost
    return UNKNOWN, outermost


def show(given, parts, calls):
    """One line a part, one column a phase."""
    names = given.phases.split(",")
    phases = [phase for phase, name in enumerate(names) if name]
    rows = {part for part, _ in parts}
    whole = sum(parts[part, phase] for part in rows for phase in phases) or 1
    header = "".join(f"{names[phase]:>12}" for phase in phases)
    print(f"{'instructions for each packet':<34}{header}{'share':>9}")
    of = lambda part: sum(parts[part, phase] for phase in phases)
    for part in [*sorted(rows, key=of, reverse=True), None]:
        each = [sum(parts[row, phase] for row in rows if part in (None, row)) for phase in phases]
        figures = "".join(f"{count / given.packets:12.0f}" for count in each)
        print(f"{part or 'all':<34}{figures}{sum(each) / whole:9.1%}")
    if sum(calls[phase] for phase in phases):
        figures = "".join(f"{calls[phase] / given.packets:12.2f}" for phase in phases)
        print(f"{'system calls':<34}{figures}")


if __name__ == "__main__":
    main()

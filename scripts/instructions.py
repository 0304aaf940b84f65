#!/usr/bin/env python3
"""Instructions of a packet by part, at client and server, in virtual time under callgrind.

    scripts/instructions.py [--lanes default|one] [--rates 8,30] [--functions N]

A constant stream of 1,200-byte packets goes up over two links of 10 ms. Two runs differ by their
length alone, so that their difference has no handshake. Only the calls of a node are counted, not
the lab around it. The system's own work is not in it: `roadweave bench tunnel` measures that.
Instructions do not depend on what else the machine does; valgrind knows neither AVX-512 nor GFNI.
"""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT, LONG = 4, 12
STANDARD = re.compile(r"<?(alloc|core|std|hashbrown)::")
# How far up a function of the standard library looks for the crate that it works for.
CALLERS = 5
PACKET_BYTES = 1_200
NODE = "roadweave_tunnel::{0}::node::<impl roadweave_tunnel::node::Node for roadweave_tunnel::{0}::{1}>::"
NODES = {"client": NODE.format("client", "Client"), "server": NODE.format("server", "Server")}
CALLS = ["handle_inner", "handle_packet", "handle_timeout", "poll_transmit", "poll_inner", "poll_timeout"]
LANE = '[[lane]]\nname = "all"\nstrategy = "xnc"\n'

# The part of a function, by a crate that its name has: the first row that fits.
CRATES = [
    (r"noq_proto", "library"),
    (r"ring_core|^ring::|^rustls::|^<?aes", "library: packet protection"),
    (r"roadweave_(quic)::(meter|gate|congestion|pacer|path|connection|endpoint)", "{}: {}"),
    (r"roadweave_(tunnel)::(lane|client|server|session)", "{}: {}"),
    (r"roadweave_(\w+?)::", "{}"),
]
# The part of the QUIC library that a function belongs to: the first row that fits.
LIBRARY = [
    (r"crypto|packet_key|header_key|decrypt|encrypt|PartialEncode|PartialDecode",
     "library: packet protection"),
    (r"[Tt]imer|timeout", "library: timers"),
    (r"[Aa]ck|loss|lost|[Ll]oss|pto|spaces|congestion|[Rr]tt|range_set", "library: loss detection"),
    (r"frame|[Ff]rame|[Dd]atagram|coding|varint|VarInt|populate", "library: frames"),
    (r"[Pp]ath", "library: paths"),
    (r"", "library: the rest"),
]
# The part of a function of the C library.
SYMBOLS = [
    (r"mem(cpy|move|set|cmp|chr)", "copies (memcpy)"),
    (r"^_?_?(malloc|calloc|realloc|free|cfree)|_int_|tcache|unlink_chunk|sysmalloc", "allocator"),
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--lanes", choices=["default", "one"], default="default")
    arguments.add_argument("--rates", default="8,30", help="Mbit/s, by commas")
    arguments.add_argument("--functions", type=int, default=0, help="also print so many functions")
    arguments.add_argument("--program", help="roadweave-lab with line tables; else it is built")
    given = arguments.parse_args()

    if not shutil.which("valgrind"):
        sys.exit("valgrind is missing: install the package valgrind")
    program = given.program or build()
    columns, functions = {}, collections.Counter()
    for rate in map(int, given.rates.split(",")):
        for end, node in NODES.items():
            counted = difference(program, given.lanes, rate, node)
            parts = collections.Counter()
            for (part, function), instructions in counted.items():
                parts[part] += instructions
                functions[part, function] += instructions
            columns[f"{rate} {end}"] = parts
    print(table(columns))
    for (part, function), instructions in functions.most_common(given.functions):
        print(f"{instructions / len(columns):10.0f}  {part}: {function[:110]}")


def build():
    """The lab, with names: nothing is optimized across crates."""
    environment = {**os.environ, "CARGO_PROFILE_RELEASE_LTO": "off",
                   "CARGO_TARGET_DIR": str(ROOT / "target/instructions")}
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--release", "--quiet", "--package", "roadweave-bench"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return ROOT / "target/instructions/release/roadweave-lab"


def difference(program, lanes, rate, node):
    """Instructions for each packet by part and function."""
    short, long = (run(program, lanes, rate, node, seconds) for seconds in (SHORT, LONG))
    packets = rate * 1e6 / 8 / PACKET_BYTES * (LONG - SHORT)
    return {key: (count - short.get(key, 0)) / packets for key, count in long.items()}


def run(program, lanes, rate, node, seconds):
    link = '[[link]]\nname = "{}"\nrate_kbps = 1_000_000\ndelay_ms = 10\n'
    traffic = f'[[traffic]]\nkind = "constant"\nrate_kbps = {rate * 1000}\npacket_bytes = {PACKET_BYTES}\n'
    scenario = f"seconds = {seconds}\nseed = 1\n" + link.format("a") + link.format("b")
    scenario += (LANE if lanes == "one" else "") + traffic
    with tempfile.TemporaryDirectory() as folder:
        file, counts = Path(folder, "paced.toml"), Path(folder, "counts")
        file.write_text(scenario)
        command = ["valgrind", "--quiet", "--tool=callgrind", f"--separate-callers={CALLERS}",
                   f"--callgrind-out-file={counts}"]
        command += [f"--toggle-collect={node}{call}" for call in CALLS]
        command += [str(program), "lab", "run", str(file), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return read(counts)


def read(path):
    """Self cost by part and function of a file that callgrind wrote."""
    names, counts = {}, collections.Counter()
    function, is_call = "", False
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if named := re.match(r"(c?fn)=(\(\d+\))(?: (.*))?$", line):
                kind, key, name = named.groups()
                function = names.setdefault(key, name) if kind == "fn" else function
                names.setdefault(key, name)
            elif line.startswith("calls="):
                is_call = True
            elif cost := re.match(r"[+*-]?\d* ?(\d+)$", line):
                # The line behind a call has what the callee took.
                if not is_call:
                    counts[part_of(function)] += int(cost[1])
                is_call = False
    return counts


def part_of(function):
    """The part, and the function that the part is named after."""
    # callgrind writes callers behind the function, each after an apostrophe.
    own, *callers = function.split("'")
    if part := first(SYMBOLS, own):
        return part, own
    # What the standard library does belongs to the function that it works for.
    for name in (own, *callers):
        if not STANDARD.match(name) and (part := crate_of(name)):
            return part, name
    return "the rest", own


def crate_of(function):
    for pattern, part in CRATES:
        if found := re.search(pattern, function):
            return first(LIBRARY, function) if part == "library" else part.format(*found.groups())
    return None


def first(rows, text):
    return next((part for pattern, part in rows if re.search(pattern, text)), None)


def table(columns):
    parts = sorted({part for column in columns.values() for part in column})
    rows = [(part, [column[part] for column in columns.values()]) for part in parts]
    rows.append(("all", [sum(column.values()) for column in columns.values()]))
    head = "".join(f"{name:>12}" for name in columns)
    lines = [f"{'instructions for each packet':<30}{head}"]
    lines += [f"{part:<30}" + "".join(f"{n:12.0f}" for n in row) for part, row in rows if max(row) >= 0.5]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

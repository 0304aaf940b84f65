#!/usr/bin/env python3
"""Validates JSON documents on standard input against a schema (JSON Schema 2020-12).

    roadweave show --json | scripts/schema.py docs/show.schema.json

Reports violations and exits with 1, or with 3 if Python has no jsonschema 4.
"""

import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    sys.exit(print("python3-jsonschema 4 is not installed", file=sys.stderr) or 3)


def documents(text):
    """Yields the documents of a text."""
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        yield document
        text = text[end:]


with open(sys.argv[1], encoding="utf-8") as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
wrong = count = 0
for count, document in enumerate(documents(sys.stdin.read()), start=1):
    for error in validator.iter_errors(document):
        print(f"document {count}, {error.json_path}: {error.message}", file=sys.stderr)
        wrong += 1
if not count:
    print("there is no document", file=sys.stderr)
sys.exit(1 if wrong or not count else 0)

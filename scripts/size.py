#!/usr/bin/env python3
"""Compares the size of the code with scripts/size.budget, whose figures may not grow.

usage: size.py [--list | --write [--force]]

Without an option it prints what exceeds a limit, and fails if a figure exceeds its budget. `--list`
prints all figures. `--write` makes them the budget unless a total grew, so that code can move to
another crate with its budget. `--force` writes in any case.

A line of the budget is a crate with its non-blank lines of code, tests and comments, or
  struct NAME FIELDS     above 20 fields, outside of wire formats, status and configuration
  function FILE:NAME LINES   above 70 lines
  impl NAME FILES        files with inherent impls, except for the file of the type
  name NAME TYPES        more than three types of that name
"""
import collections, glob, os, re, sys

os.chdir(os.path.dirname(os.path.abspath(__file__)) + '/..')
BUDGET = 'scripts/size.budget'
TOPS = ['crates', 'tools', 'fuzz', 'scripts']
LIMITS = {'struct': 20, 'function': 70, 'impl': 0, 'name': 3}
TEST = re.compile(r'/(tests|benches|examples)/|/tests?\.rs$|^(?!crates/|tools/)')
IS_ROOT = re.compile(r'/(lib|main|mod)\.rs$')
PLAIN = re.compile(r'wire|status|config|fields|args|options')
VISIBLE = r'(?:pub(?:\([^)]*\))? )?'
MODULE = re.compile(VISIBLE + r'mod (\w+)( \{|;)')
TYPE = re.compile(VISIBLE + r'(struct|enum|trait) (\w+)')
FIELD = re.compile(VISIBLE + r'\w+: ')
IMPL = re.compile(r'impl(?:<.*?>)? (\w+)(?:<.*>)? \{$')
FUNCTION = re.compile(VISIBLE + r'(?:const )?(?:async )?(?:unsafe )?fn (\w+)')


def measure():
    """All figures, by the first part of their line in the budget."""
    found = (name for top in TOPS for name in glob.glob(f'{top}/**/*.rs', recursive=True))
    names = [name for name in found if '/target/' not in name and '/node_modules/' not in name]
    files = {name: open(name).read().split('\n') for name in names}
    tests = {name for name in names if TEST.search(name)} | modules_of_tests(files)
    figures = collections.defaultdict(lambda: [0])
    homes, impls = collections.defaultdict(list), set()
    for file, lines in files.items():
        part = '/'.join(file.split('/')[:2 if file.startswith(('crates/', 'tools/')) else 1])
        counts = figures.setdefault(part, [0, 0, 0])
        is_test = file in tests
        end = fields = function = attribute = None
        for number, line in enumerate(lines, 1):
            text = line.lstrip()
            if not text:
                continue
            if text.startswith('//'):
                counts[2] += 1
                continue
            indent = line[:len(line) - len(text)]
            if attribute and not end and MODULE.match(text) and text.endswith('{'):
                end = indent + '}'
            attribute = text == '#[cfg(test)]' or attribute and text.startswith('#[')
            counts[1 if is_test or end else 0] += 1
            if is_test or end:
                end = None if line == end else end
            elif fields and line == fields[0] + '}':
                is_large = fields[2] > LIMITS['struct'] and not PLAIN.search(file)
                note(figures, f'struct {fields[1]}', fields[2] if is_large else 0)
                fields = None
            elif fields and FIELD.match(text):
                fields[2] += 1
            elif function and line == function[0] + '}':
                lasts = number - function[2] + 1
                key = f'function {os.path.basename(file)}:{function[1]}'
                note(figures, key, lasts if lasts > LIMITS['function'] else 0)
                function = None
            elif found := TYPE.match(text):
                homes[part, found[2]] += [] if indent else [file]
                has_fields = found[1] == 'struct' and text.endswith('{')
                fields = [indent, found[2], 0] if has_fields else None
            elif ' for ' not in text and (found := IMPL.match(text)):
                impls.add((part, found[1], file))
            elif 'fn ' in text and (found := FUNCTION.match(text)):
                function = (indent, found[1], number)
    for part, name, file in impls:
        if (part, name) in homes and file not in homes[part, name]:
            figures[f'impl {name}'][0] += 1
    counts = collections.Counter(name for (_, name), files in homes.items() for _ in files)
    for name, count in counts.items():
        note(figures, f'name {name}', count if count > LIMITS['name'] else 0)
    return dict(figures)


def modules_of_tests(files):
    """The files of modules that are only for tests, submodules included."""
    found = set()
    for name, lines in files.items():
        folder = os.path.dirname(name) if IS_ROOT.search(name) else name[:-3]
        for place in (place for place, line in enumerate(lines) if line == '#[cfg(test)]'):
            module = MODULE.match(lines[place + 1])
            if module and module[2] == ';':
                path = f'{folder}/{module[1]}'
                found |= {it for it in files if it == f'{path}.rs' or it.startswith(f'{path}/')}
    return found


def note(figures, key, figure):
    if figure:
        figures[key] = [max(figure, *figures[key])]


def totals(figures):
    """Lines of code, tests and comments, and the excess of other figures over their limits."""
    found = collections.Counter()
    for key, values in figures.items():
        kind = key.split(' ')[0]
        for what, value in zip([kind] if kind in LIMITS else ['code', 'tests', 'comments'], values):
            found[what] += value - LIMITS.get(kind, 0)
    return found


def read():
    lines = open(BUDGET).read().splitlines() if os.path.exists(BUDGET) else []
    rows = [re.fullmatch(r'(.*?)((?: \d+)+)', line) for line in lines]
    return {row[1]: [int(value) for value in row[2].split()] for row in rows}


def main(options):
    now, budget = measure(), read()
    rows = sorted(now.items(), key=lambda row: (' ' in row[0], row[0]))
    text = ''.join(f'{key} {" ".join(map(str, values))}\n' for key, values in rows)
    if '--list' in options:
        return print(text, end='')
    before, after = totals(budget), totals(now)
    if '--write' in options:
        raised = [it for it in after if after[it] > before[it]]
        if raised and '--force' not in options:
            raised = ', '.join(f'{it} from {before[it]} to {after[it]}' for it in raised)
            return f'{BUDGET} stays, since totals would grow: {raised}'
        return open(BUDGET, 'w').write(text) and None
    for kind, limit in LIMITS.items():
        over = [(values[0], key) for key, values in rows if key.startswith(kind + ' ')]
        worst = ', '.join(f'{key[len(kind) + 1:]} {figure}' for figure, key in sorted(over)[:-6:-1])
        print(f'{kind} above {limit}: {len(over)}: {worst}')
    grown = ''
    for key, values in rows:
        known = budget.get(key, [LIMITS.get(key.split(' ')[0], 0)] * 3)
        if any(value > most for value, most in zip(values, known)):
            grown += f'{key}: {known[:len(values)]} may be, {values} are\n'
    if grown:
        return f'{grown}If this has only moved, scripts/size.py --write takes its budget along.'
    if fell := sum((before - after).values()):
        print(f'{fell} below the budget: scripts/size.py --write lowers it')


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

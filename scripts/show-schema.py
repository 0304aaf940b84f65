#!/usr/bin/env python3
"""Makes docs/show.schema.json of the types of the status in crates/*/src, and of their comments.

    scripts/show-schema.py > docs/show.schema.json

The unit of a number is in the name of its field (`_ms`, `bytes`), or is the first in its comment.
"""

import collections
import glob
import json
import os
import re

Item = collections.namedtuple('Item', 'name kind comment attributes')
SUFFIXES = {
    '_ms': 'milliseconds', '_us': 'microseconds', '_bps': 'bits per second',
    '_dbm': 'dBm', '_db': 'dB',
}
UNITS = re.compile('packets|datagrams|connections|sessions|clients|paths|keys|lines|repairs'
                   '|attempts|calls|delays|share|number')
# All types of a name: comment, fields or values, and the only field of a struct without names.
types, definitions = collections.defaultdict(list), {}


def read(path):
    """Reads the types that serde serializes, as rustfmt writes them."""
    comment, attributes, items, in_macro = '', '', None, False
    for line in map(str.strip, open(path, encoding='utf-8')):
        if line.startswith('///'):
            comment += line[3:]
            continue
        if line.startswith('#[') or attributes and not attributes.endswith(']'):
            attributes += line
            continue
        in_macro |= line.endswith('named! {')
        if items is not None:
            found = re.fullmatch(r'(?:pub )?(\w+)(?:: (.+)|\((\w+)\)| = "(.+)")?,', line)
            if found:
                name = found[4] or (found[1] if found[2] else kebab(found[1]))
                items.append(Item(name, found[2] or found[3], plain(comment), attributes))
            elif line == '}':
                items = None
        elif comment and (in_macro or 'Serialize' in attributes):
            found = re.fullmatch(r'(?:pub )?(?:struct |enum )?(\w+)(?: \{|\((.+)\);)', line)
            if found:
                items = None if found[2] else []
                types[found[1]].append((plain(comment), items, found[2]))
        comment, attributes = '', ''


def only(kind):
    assert len(types[kind]) == 1, f'{len(types[kind])} types are {kind}'
    return types[kind][0]


def kebab(name):
    return re.sub(r'(?<!^)(?=[A-Z])', '-', name).lower()


def plain(comment):
    """A comment without links."""
    return re.sub(r'\[(`.+?`)\](\(.+?\))?', r'\1', comment.strip())


def unit(name, comment):
    for suffix, unit in SUFFIXES.items():
        if name.endswith(suffix):
            return unit
    found = re.search('seconds|bytes', name)
    if not found and 'how often' in comment.lower():
        return 'times'
    found = found or UNITS.search(name) or UNITS.search(comment.lower())
    assert found, f'neither `{name}` nor its comment has a unit: {comment}'
    return found[0]


def schema(kind, name, comment):
    """The schema of a field of this kind."""
    outer, inner = re.fullmatch(r'(?:(\w+)<)?(.+?)>?', kind).groups()
    if outer == 'Option':
        value = schema(inner, name, comment)
        if 'type' in value:
            return value | {'type': [value['type'], 'null']}
        return {'oneOf': [value, {'type': 'null'}]}
    if outer == 'Vec' or kind.startswith('['):
        return {'type': 'array', 'items': schema(inner.strip('[').split(';')[0], name, comment)}
    if outer == 'BTreeMap':
        key, inner = kind[9:-1].split(', ', 1)
        value = schema(inner, name, comment)
        if key == 'String':
            return {'type': 'object', 'additionalProperties': value}
        return strict({it.name: {'description': it.comment} | value for it in only(key)[1]}, [])
    if kind.startswith('('):
        values = [schema(part, name, comment) for part in kind[1:-1].split(', ')]
        return {'type': 'array', 'prefixItems': values, 'items': False, 'minItems': len(values)}
    if kind in ('String', 'bool'):
        return {'type': {'String': 'string', 'bool': 'boolean'}[kind]}
    if kind in ('f32', 'f64'):
        is_ratio = not re.search(r'seconds|_(ms|dbm|db)$', name)
        return {'type': 'number', 'x-unit': 'ratio' if is_ratio else unit(name, comment)}
    if re.fullmatch(r'u\d+|usize', kind):
        return {'type': 'integer', 'minimum': 0, 'x-unit': unit(name, comment)}
    about, items, inner = only(kind)
    if inner and '<' not in inner:
        return schema(inner, name, comment)
    if kind not in definitions:
        if inner:
            definition = schema(inner, '', about)
        elif not any(it.kind for it in items):
            definition = {'oneOf': [{'const': it.name, 'description': it.comment} for it in items]}
        else:
            definition = strict(*fields(kind))
        definitions[kind] = {'description': about} | definition
    return {'$ref': f'#/$defs/{kind}'}


def strict(properties, required):
    return {
        'type': 'object', 'additionalProperties': False, 'required': required,
        'properties': properties,
    }


def fields(kind):
    """The properties of a struct, and those that are always there."""
    properties, required = {}, []
    for it in only(kind)[1]:
        if 'flatten' in it.attributes:
            if it.kind != 'RoleStatus':
                more, always = fields(it.kind)
                properties |= more
                required += always
        elif 'serde(skip)' not in it.attributes:
            assert it.comment, f'{kind}.{it.name} has no comment'
            renamed = re.search(r'rename = "(\w+)"', it.attributes)
            name = renamed[1] if renamed else it.name
            inner = it.kind
            if 'skip_serializing_if' in it.attributes:
                inner = re.sub(r'^Option<(.+)>$', r'\1', inner)
            else:
                required.append(name)
            properties[name] = {'description': it.comment} | schema(inner, name, it.comment)
    return properties, required


os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..'))
for part in 'proto', 'quic', 'recovery', 'tunnel', 'linux', 'node':
    for path in sorted(glob.glob(f'crates/{part}/src/**/*.rs', recursive=True)):
        read(path)
roles = only('RoleStatus')[1]
for role in roles:
    common, always = fields('Status')
    own, more = fields(role.kind)
    properties = {'role': {'description': 'Its role.', 'const': role.name}} | common | own
    whole = strict(properties, ['role'] + always + more)
    definitions[role.name] = {'description': role.comment} | whole
whole = {
    '$schema': 'https://json-schema.org/draft/2020-12/schema',
    '$id': 'show.schema.json',
    'title': 'roadweave show --json',
    'description': 'The status of a running client, server, router, proxy or anchor. Counters '
                   'start with the session or the instance. `x-unit` is the unit of a number.',
    'type': 'object',
    'required': ['role'],
    'properties': {'role': {'description': 'Its role.', 'enum': [role.name for role in roles]}},
    'allOf': [{
        'if': {'properties': {'role': {'const': role.name}}},
        'then': {'$ref': f'#/$defs/{role.name}'},
    } for role in roles],
    '$defs': definitions,
}


def lines(value, depth=0):
    """JSON with a line for each field."""
    if not isinstance(value, dict) or depth == 4:
        return json.dumps(value, ensure_ascii=False)
    space = '  ' * depth
    parts = [f'{space}  {json.dumps(key)}: {lines(it, depth + 1)}' for key, it in value.items()]
    return '{\n' + ',\n'.join(parts) + f'\n{space}}}'


print(lines(whole))

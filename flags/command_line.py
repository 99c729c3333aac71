"""The parser of the command line, the types of its arguments, and files of flags (--config)."""
import argparse
import inspect
import json
import math
import re
import sys
from functools import partial
from pathlib import Path

from flags import hints
from flags.help_texts import Facts, Formatter, Help, facts
from flags.method_flags import expected_number
from utilities import image_size
from utilities.errors import UserError
from utilities.files import UniqueKeys, read_yaml

LARGEST = 2 ** 63 - 1                # the largest whole number of tensors and of torch's seeds
NUMBER = r'[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+'
FACTS = inspect.signature(Facts).parameters


class Parser(argparse.ArgumentParser):
    """Raises UserError with one line, where argparse would print the usage and exit. Flags cannot be abbreviated."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=Formatter, add_help=False, **options)
        self.add_argument('-h', '--help', action=Help)

    def parse_known_args(self, args=None, namespace=None):
        args = sys.argv[1:] if args is None else list(args)
        for argument in args:
            if not is_text(argument):
                raise UserError(f'{shortened(ascii(argument))}: a flag cannot contain a NUL byte or bytes that are '
                                'not UTF-8; rename the file or folder')
        return super().parse_known_args(args, namespace)

    def error(self, message):
        if message.startswith('unrecognized arguments: --'):
            found = [word.split('=')[0].removeprefix('--') for word in message.split() if word.startswith('--')]
            message = '\n'.join(f'--{flag}: unknown flag{hints.unknown(flag, known_flags(self))}'
                                for flag in dict.fromkeys(found))
        raise UserError(message.removeprefix('argument '))


def is_text(value):
    """Whether a string can be written to records, and can be part of a file's name."""
    try:
        value.encode()
    except UnicodeEncodeError:                # Python's stand-ins for bytes that are not UTF-8
        return False
    return '\0' not in value


def shortened(text, length=60):
    return text if len(text) <= length else f'{text[:length - 3]}...'


def boolean(text):
    if text.lower() not in ('true', 'false'):
        raise argparse.ArgumentTypeError(f'expected true or false, not {text!r}')
    return text.lower() == 'true'


def number(kind, low=None, high=None, above=False):
    """An argparse type: a finite int or float, at least `low` (more than it, with `above`), at most `high`."""
    lower = 'above' if above else 'at_least'
    limits = {name: limit for name, limit in ((lower, low), ('at_most', high)) if limit is not None}
    expected = expected_number(limits, kind, None)

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not text.isascii() or '_' in text:                # Python reads 1_0 and digits of other scripts as numbers
            value = math.nan
        if kind is int and abs(value) > LARGEST:
            raise argparse.ArgumentTypeError(f'expected {expected}, of at most 19 digits, not {shortened(text)}')
        if expected_number(limits, kind, value):
            raise argparse.ArgumentTypeError(f'expected {expected}, not {shortened(text)}')
        return value

    parse.__name__ = 'INT' if kind is int else 'FLOAT'
    return parse


def word_or(word, kind, expected):
    """An argparse type: this word, or a value of the type `kind`. expected: both of them, for the message."""
    def parse(text):
        try:
            return text if text == word else kind(text)
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(f'expected {expected}, not {text}') from None

    return parse


def yaml_mapping(text):
    try:
        value = read_yaml(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a YAML mapping, as '{{margin: 0.1}}', not {shortened(repr(text))}")
    return with_numbers(value)


def with_numbers(value):
    """The value with texts such as 1e-8 as numbers: YAML 1.1 takes them for text, and JSON writes them."""
    if isinstance(value, dict):
        return {name: with_numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [with_numbers(part) for part in value]
    return float(value) if isinstance(value, str) and re.fullmatch(NUMBER, value) else value


class SizeOfImages(argparse.Action):
    """Keeps one number, the side of a square, as this number, and two others as [height, width]."""

    def __call__(self, parser, namespace, values, option_string=None):
        if len(values) > 2:
            raise argparse.ArgumentError(self, f'expected one number, or height and width, not {text_of(values)}')
        size = values[0] if len({*values}) == 1 else values
        setattr(namespace, self.dest, size)


REAL = number(float)
POSITIVE = number(float, 0, above=True)
NOT_NEGATIVE = number(float, 0)
FRACTION = number(float, 0, 1)
POSITIVE_INT = number(int, 1)
COUNT = number(int, 0)
SIDE = number(int, 1, image_size.LARGEST)      # side of an image, in pixels
# values of --device, and their meanings
DEVICES = {'auto': 'an NVIDIA GPU if available, else an Apple GPU, else the CPU', 'cpu': 'the CPU',
           'cuda': 'an NVIDIA GPU', 'mps': 'an Apple GPU'}


def flag(group, *names, **options):
    """argparse's add_argument, which also takes the Facts of the flag."""
    known = {name: options.pop(name) for name in (*options,) if name in FACTS}
    action = group.add_argument(*names, **options)
    action.facts = Facts(**known)
    return action


def switch(group, *names, help, default=False, **known):
    """A flag that is true when given; `--flag false` takes it back, where a config file sets it."""
    return flag(group, *names, nargs='?', const=True, default=default, type=boolean, metavar='true|false', help=help,
                **known)


def new_group(parser, title, description=None, **known):
    """(add, switch) for a new group of flags: flag() and switch(), with these Facts unless a flag sets others."""
    group = parser.add_argument_group(title, description)
    return partial(flag, group, **known), partial(switch, group, **known)


def add_declared(add, switch, flag, values, **known):
    """
    Adds a flag that the file of a method declares. values: of flags/method_flags.py, with default and help. known:
    Facts of the flag.
    """
    default = values['default']
    known = {name: values[name] for name in FACTS if name in values} | known
    known['help'] = values['help'].replace('%', '%%')
    if isinstance(default, bool):
        return switch(f'--{flag}', default=default, **known)
    options = {name: values[name] for name in ('choices', 'nargs', 'metavar') if name in values}
    if isinstance(default, list):
        options.setdefault('nargs', '+')
    first = default[0] if isinstance(default, list) and default else default
    kind = {'int': int, 'float': float}.get(values.get('type'), type(first))
    if kind in (int, float) and 'choices' not in values:
        low = values.get('above', values.get('at_least'))
        options['type'] = number(kind, low, values.get('at_most'), above='above' in values)
    return add(f'--{flag}', default=default, **options, **known)


def parted(arguments):
    """(the arguments before the first `--`, those after it)"""
    at = arguments.index('--') if '--' in arguments else len(arguments)
    return arguments[:at], arguments[at + 1:]


def known_flags(parser):
    return [flag.removeprefix('--') for action in parser._actions for flag in action.option_strings if flag != '-h']


def flags_in_groups(parser, *titles):
    """The names of the flags in the groups with these titles."""
    groups = {group.title: group for group in parser._action_groups}
    return [action.dest for title in titles for action in groups[title]._group_actions]


def read_config(parser, file, excluded=()):
    """The flags and values of a YAML file, checked as in accepted_settings()."""
    try:
        settings = read_yaml(Path(file).read_text(encoding='utf-8'), UniqueKeys) or {}
    except OSError as error:
        raise UserError(f'--config {file}: {error.strerror}') from None
    except ValueError as error:
        raise UserError(f'--config {file}: not a YAML file of flags: {error}') from None
    if not isinstance(settings, dict):
        raise UserError(f'--config {file}: expected lines of the form "flag: value"')
    if {'flags', 'run_id'} <= settings.keys():
        raise UserError(f'--config {file}: the file of a run folder; give --reproduce {Path(file).parent}')
    return accepted_settings(parser, settings, f'--config {file}', excluded)


def accepted_settings(parser, settings, where, excluded=()):
    """
    Returns `settings`, {flag: value}, if the command line would accept each of them; else raises UserError.

    where: the source of the settings, for the message. excluded: flags that are refused.
    """
    names = set(known_flags(parser)) - {'help'}
    unknown = []
    for name in settings:
        if name in excluded:
            unknown.append(f'{where}: {name}: unknown flag in a file; give it on the command line')
        elif name not in names:
            unknown.append(f'{where}: {name}: unknown flag{hints.unknown(str(name), known_flags(parser))}')
    if unknown:
        raise UserError('\n'.join(unknown))
    try:
        parser.parse_args(tokens(settings))
    except UserError as error:
        raise UserError(f'{where}: {error}') from None
    return settings


def flags_in(arguments):
    """The names of the flags in a list of arguments, without values."""
    return {argument.split('=')[0].removeprefix('--') for argument in arguments if argument.startswith('--')}


def given(parser, arguments):
    """{flag: value} of the flags that the command line's arguments name."""
    unset = object()
    start = argparse.Namespace(**dict.fromkeys((action.dest for action in parser._actions), unset))
    return {name: value for name, value in vars(parser.parse_args(arguments, start)).items() if value is not unset}


def merged(parser, earlier, later):
    """
    Two sources of settings, {flag: value}: a value in `later` replaces the value in `earlier`. Of a flag of YAML
    mappings, the mappings are merged by key, unless the later source gives none or names another method.
    """
    result = earlier | later
    for action in parser._actions:
        name = action.dest
        method = facts(action).arguments_of
        if not method or name not in earlier:
            continue
        is_other_method = method in earlier and method in later and earlier[method] != later[method]
        if is_other_method:
            result[name] = later.get(name, [])
        elif later.get(name):
            result[name] = merged_mappings(earlier[name], later[name])
    return result


def merged_mappings(earlier, later):
    """Two lists of mappings, merged by key one by one; a single mapping is merged with each of the other list."""
    earlier = mappings(earlier)
    later = mappings(later)
    n = max(len(earlier), len(later))
    if not earlier or {len(earlier), len(later)} - {1, n}:
        return later
    if len(earlier) == 1:
        earlier = earlier * n
    if len(later) == 1:
        later = later * n
    return [first | second for first, second in zip(earlier, later, strict=True)]


def mappings(value):
    """The value of a flag of YAML mappings as a list; a --config file may have a single mapping, or None."""
    return [value] if isinstance(value, dict) else value or []


def as_list(value):
    return list(value) if isinstance(value, tuple) else value            # YAML has no tuples


def text_of(value):
    return ' '.join(map(str, value)) if isinstance(value, list) else str(value)


def tokens(settings, parser=None):
    """
    {flag: value} -> the arguments that set these flags. None and empty lists give no argument, except that an empty
    list gives the bare flag if the parser accepts this flag without a value.
    """
    actions = parser._actions if parser else ()
    without_value = {action.dest for action in actions if action.nargs == '*'}
    arguments = []
    for name, value in settings.items():
        value = [value] if isinstance(value, dict) else value
        if isinstance(value, list):
            if value or name in without_value:
                arguments += [f'--{name}', *map(token, value)]
        elif isinstance(value, bool):
            arguments.append(f'--{name}={str(value).lower()}')
        elif value is not None:
            arguments.append(f'--{name}={value}')
    return arguments


def token(item):
    """An item of a list as an argument."""
    text = json.dumps(item) if isinstance(item, dict) else str(item)
    # argparse reads a value that begins with a dash as a flag, but not one that begins with a space
    return f' {text}' if text.startswith('-') else text

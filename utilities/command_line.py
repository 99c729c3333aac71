"""The command line's machinery: the parser, the types of its arguments, and files of flags (--config)."""
import argparse
import json
import math
from pathlib import Path

import yaml

from utilities.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """Raises UserError with one line, where argparse would print the usage and exit. Flags cannot be abbreviated."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=Formatter, **options)

    def error(self, message):
        if message.startswith('unrecognized arguments: --'):
            flag = message.split()[2].split('=')[0].removeprefix('--')
            message = f'--{flag}: unknown flag{nearest(flag, known_flags(self))}'
        raise UserError(message.removeprefix('argument '))


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults, also a default of 0; none of flags that are not set by default."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=40, width=120)

    def _get_help_string(self, action):
        is_unset = action.default is None or action.default is False or action.default == []
        return action.help if is_unset else super()._get_help_string(action)

    def _get_default_metavar_for_optional(self, action):
        return getattr(action.type, '__name__', 'NAME')


def boolean(text):
    if text.lower() not in ('true', 'false'):
        raise argparse.ArgumentTypeError(f'expected true or false, not {text!r}')
    return text.lower() == 'true'


def number(kind, low=None, high=None, above=False):
    """An argparse type: a finite int or float, at least `low` (more than it, with `above`), at most `high`."""
    expected = 'a whole number' if kind is int else 'a number'
    if low is not None:
        expected += f' {"above" if above else "of at least"} {low}' + ('' if high is None else f' and at most {high}')

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (low is not None and (value <= low if above else value < low)) or (
                high is not None and value > high):
            raise argparse.ArgumentTypeError(f'expected {expected}, not {text}')
        return value

    parse.__name__ = 'INT' if kind is int else 'FLOAT'
    return parse


def yaml_mapping(text):
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a YAML mapping, as '{{margin: 0.1}}', not {text!r}")
    return value


REAL, POSITIVE, NOT_NEGATIVE = number(float), number(float, 0, above=True), number(float, 0)
WHOLE, POSITIVE_INT, COUNT = number(int), number(int, 1), number(int, 0)
FRACTION = number(float, 0, 1)


def switch(group, *names, help, default=False):
    """A flag that is true when given; `--flag false` takes it back, where a config file sets it."""
    group.add_argument(*names, nargs='?', const=True, default=default, type=boolean, metavar='true|false', help=help)


def known_flags(parser):
    return [flag.removeprefix('--') for action in parser._actions for flag in action.option_strings if flag != '-h']


def of_groups(parser, *titles):
    """The names of the flags in the groups of these titles."""
    groups = {group.title: group for group in parser._action_groups}
    return [action.dest for title in titles for action in groups[title]._group_actions]


def read_config(parser, file, excluded=()):
    """The flags and values of a YAML file, checked as in known()."""
    try:
        settings = yaml.safe_load(Path(file).read_text(encoding='utf-8')) or {}
    except OSError as error:
        raise UserError(f'--config {file}: {error.strerror}') from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f'--config {file}: not a YAML file: {" ".join(str(error).split())}') from None
    if not isinstance(settings, dict):
        raise UserError(f'--config {file}: expected lines of the form "flag: value"')
    return known(parser, settings, f'--config {file}', excluded)


def known(parser, settings, where, excluded=()):
    """
    `settings`, a dict from flags to values, if the command line would take each; else raises UserError.

    where: they come from, for the error. excluded: flags that are refused.
    """
    names = set(known_flags(parser)) - {'help', *excluded}
    for name in settings:
        if name not in names:
            raise UserError(f'{where}: {name}: unknown flag{nearest(str(name), names)}')
    try:
        parser.parse_args(tokens(settings))
    except UserError as error:
        raise UserError(f'{where}: {error}') from None
    return settings


def tokens(settings):
    """{flag: value} -> the arguments that say so; None and empty lists say nothing."""
    arguments = []
    for name, value in settings.items():
        if isinstance(value, list):
            values = [json.dumps(item) if isinstance(item, dict) else str(item) for item in value]
            arguments += [f'--{name}', *values] if value else []
        elif value is not None:
            arguments += [f'--{name}={str(value).lower() if isinstance(value, bool) else value}']
    return arguments

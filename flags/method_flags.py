"""
The flags that the file of a method declares.

The name, the default and the meaning of a parameter stand in the signature and the `Args:` of a public function of the
file. `FLAGS` lists those that are flags, and says what a command line needs beyond that, as plain data:

    FLAGS = {'margin': {'at_least': 0}, 'beta_lr': {'default': 0.0005, 'help': 'learning rate of beta'}}

Each key is the end of a flag: `--loss_margin_beta_lr`. Its values:

argument:          the argument's name, where the flag has another one
default, help:     where no argument has them; they take precedence; a flag that is obsolete needs no help
above, at_least, at_most: the range of a number, or of each number of a list
choices:           a list, or {choice: its meaning}
type:              int or float, as text, where the default is None
nargs, metavar:    as in argparse; a list takes one or more values by default
obsolete, common, file: as in Facts (flags/help_texts.py)

`USES` lists flags of other files that a file reads, too.

torch.hub reads the same declarations, so this file imports the standard library only.
"""
import inspect
import itertools
import math
import numbers
import re


def declared(module, start):
    """
    The flags of a file: {flag: its values, with default and help}. start: what the flags begin with, as loss_margin_.

    Raises ValueError for a flag without a default.
    """
    own = getattr(module, 'FLAGS', {})
    arguments = documented_arguments(module) if own else {}
    flags = {}
    for name, values in own.items():
        default, text = arguments.get(values.get('argument', name), (inspect.Parameter.empty, ''))
        if values.get('obsolete'):
            text = 'without effect; kept for compatibility with the public code'
        values = {'default': default, 'help': text} | values
        flags[f'{start}{name}'] = values
        if values['default'] is inspect.Parameter.empty:
            raise ValueError(f'{module.__name__}: FLAGS[{name!r}]: no public function of the file has an argument '
                             f'{values.get("argument", name)} with a default; give a default and a help')
        if isinstance(values['default'], tuple):
            values['default'] = list(values['default'])
    return flags


def documented_arguments(module):
    """{argument: (default, text)} of the public functions and classes of a file, the method's own function first."""
    found = {}
    for function in public_functions(module):
        for name, (default, text) in defaults_and_texts(function).items():
            first_default, first_text = found.get(name, (default, ''))
            found[name] = first_default, first_text or text
    return found


def defaults_and_texts(function):
    """Returns {argument: (default, text)} of the arguments with a default."""
    texts = argument_texts(inspect.getdoc(function) or '')
    parameters = inspect.signature(function).parameters
    return {name: (parameter.default, texts.get(name, '')) for name, parameter in parameters.items()
            if parameter.default is not parameter.empty}


def public_functions(module):
    """
    The functions and classes that a file defines. First the method's own function, which is the one named after the
    file, as margin_loss in margin.py; then others whose name begins so.
    """
    stem = module.__name__.rpartition('.')[2]
    own = [value for name, value in vars(module).items()
           if (inspect.isfunction(value) or inspect.isclass(value) and not issubclass(value, Exception))
           and value.__module__ == module.__name__ and not name.startswith('_')]
    return sorted(own, key=lambda value: (value.__name__ != f'{stem}_loss', not value.__name__.startswith(stem)))


def argument_texts(docstring):
    """{argument: its text} of the section `Args:` of a docstring; `first, second: text` is the text of both."""
    texts = {}
    names = []
    section = docstring.partition('Args:\n')[2].splitlines()
    for line in itertools.takewhile(lambda line: line.startswith('    '), section):
        begins = re.match(r'    (\w+(?:, \w+)*): +(.*)', line)
        if begins:
            names = begins[1].split(', ')
            texts |= dict.fromkeys(names, begins[2])
        else:
            texts |= {name: f'{texts[name]} {line.strip()}' for name in names}
    return {name: text.removesuffix('.') for name, text in texts.items()}


def expected(values, given):
    """
    What a flag takes, as text, where the value `given` in Python is something else; None where it fits.

    values: of declared(); what they do not say is not checked.

    >>> expected({'default': 0.2, 'above': 0}, 'x')
    'a number above 0'
    """
    default = values.get('default')
    if isinstance(default, list):
        first = default[0] if default else None
        one = values | {'default': first}
        fits = isinstance(given, (list, tuple)) and not any(expected(one, each) for each in given)
        return None if fits else f'a list, each {expected(one, object()) or "a value"}'
    if 'default' in values and given is default:
        return None
    if 'choices' in values:
        return None if given in [*values['choices']] else ' or '.join(values['choices'])
    kind = {'int': int, 'float': float}.get(values.get('type'), type(default))
    if kind in (int, float):
        return expected_number(values, kind, given)
    if kind in (bool, str) and not isinstance(given, kind):
        return 'True or False' if kind is bool else 'text'
    return None


def expected_number(values, kind, given):
    """What a flag of numbers takes, as text, where `given` does not fit; otherwise None. kind: int or float."""
    above = values.get('above', -math.inf)
    low = values.get('at_least', -math.inf)
    high = values.get('at_most', math.inf)
    what = 'a whole number' if kind is int else 'a number'
    allowed = numbers.Integral if kind is int else numbers.Real
    is_number = isinstance(given, allowed) and not isinstance(given, bool)
    if is_number and math.isfinite(given) and given > above and low <= given <= high:
        return None
    words = {'above': 'above', 'at_least': 'of at least', 'at_most': 'at most'}
    limits = ' and '.join(f'{words[name]} {values[name]}' for name in words if name in values)
    return f'{what} {limits}' if limits else what

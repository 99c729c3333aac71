"""Reads --tune: the flags to tune, and the range or the choices of each, as Optuna's distributions."""
import itertools
import json
import math

import numpy as np
from optuna import distributions
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import parameters
import parts
from flags import command_line, hints
from utilities.errors import UserError
from utilities.files import read_yaml

TUNABLE = ('network', 'training', 'batch creation', 'batch mining', 'losses')         # groups of flags


def parse_all(tune):
    """The lists of words after each --tune -> {flag: distribution}. Raises UserError."""
    if not tune:
        raise UserError('give at least one --tune FLAG LOW HIGH')
    tuned = {}
    for words in tune:
        flag, distribution = parse(words)
        if flag in tuned:
            raise UserError(f'--tune {flag}: given twice')
        tuned[flag] = distribution
    return tuned


def parse(words):
    """The words after one --tune -> (flag, distribution). Raises UserError."""
    parser = parameters.build()
    flag, *rest = words
    name = flag.partition('.')[0]                  # loss_pml_args.alpha is an argument in --loss_pml_args
    if name not in parameters.defaults():
        raise UserError(f'--tune {flag}: unknown flag{hints.unknown(name, parameters.defaults())}')
    if name != flag and name not in parameters.flags_with('arguments_of'):
        raise UserError(f'--tune {flag}: --{name} takes no YAML mapping; leave {flag.removeprefix(name)} out')
    if name not in {*parameters.flags_of_group(*TUNABLE), 'augmentation'}:
        raise UserError(f'--tune {flag}: not a flag to tune; choose one of the network, the training, the batches, the '
                        'miner or the loss')
    make = choices if len(rest) == 1 else numbers
    return flag, make(parser, flag, rest, f'--tune {" ".join(words)}')


def tuned_settings(params):
    """
    The tuned values as flags of main.py.

    >>> tuned_settings({'lr': 0.1, 'loss_pml_args.alpha': 2, 'loss_pml_args.swap': 'true'})
    {'lr': 0.1, 'loss_pml_args': [{'alpha': 2, 'swap': True}]}
    """
    settings = {}
    for flag, value in params.items():
        name, _, argument = flag.partition('.')
        if argument:
            mapping, = settings.setdefault(name, [{}])
            mapping[argument] = read_yaml(value) if isinstance(value, str) else value
        else:
            settings[name] = value
    return settings


def choices(parser, flag, rest, where):
    """The distribution of A,B,C."""
    values = rest[0].split(',')
    if len(set(values)) < 2:
        raise UserError(f'{where}: expected two choices or more, as --tune {flag} A,B')
    for value in values:
        require_accepted(parser, flag, value, where)
    return CategoricalDistribution(values)


def numbers(parser, flag, rest, where):
    """The distribution of LOW HIGH [log] [int [STEP]]."""
    ends = rest[:2]
    scale = rest[2:]
    step = 1
    if scale[-2:-1] == ['int'] and scale[-1] != 'log':
        step = scale.pop()
    if len(ends) < 2 or set(scale) - {'log', 'int'} or len(set(scale)) < len(scale) or not str(step).isdecimal():
        raise UserError(f'{where}: expected --tune {flag} LOW HIGH [log] [int [STEP]], or --tune {flag} A,B,C; '
                        'write negative numbers as -0.1, without an exponent, and not first in a list')
    step = int(step)
    kind = int if 'int' in scale else float
    try:
        low, high = map(kind, ends)
    except ValueError:
        raise UserError(f'{where}: expected two {"whole " if kind is int else ""}numbers, not {ends[0]} and '
                        f'{ends[1]}') from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f'{where}: LOW must be less than HIGH')
    if 'log' in scale and low <= 0:
        raise UserError(f'{where}: a log range must begin above 0')
    types = {action.dest: action.type for action in parser._actions}
    if kind is float and getattr(types.get(flag), '__name__', '') == 'INT':
        raise UserError(f'{where}: --{flag} takes whole numbers; write --tune {flag} {ends[0]} {ends[1]} int')
    for end in (low, high):
        require_accepted(parser, flag, end, where)
    if kind is float:
        return FloatDistribution(low, high, log='log' in scale)
    if step < 1 or step > 1 and 'log' in scale:
        raise UserError(f'{where}: STEP must be at least 1, and a log range has none')
    if (high - low) % step:
        raise UserError(f'{where}: steps of {step} from {low} do not reach {high}; give {high - (high - low) % step} '
                        'as HIGH')
    return IntDistribution(low, high, log='log' in scale, step=step)


def require_accepted(parser, flag, value, where):
    """Raises UserError where main.py would refuse the value of the flag."""
    try:
        parts.check_names(parser.parse_args(command_line.tokens(tuned_settings({flag: value}))))
    except UserError as error:
        raise UserError(f'{where}: {error}') from None


def lowest_and_highest(distribution):
    """The lowest and the highest value, or the first and the last choice."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0], distribution.choices[-1]
    return distribution.low, distribution.high


def grid(tuned, n_points):
    """All combinations of every choice and up to n_points values of each range: a list of {flag: value}."""
    axes = {}
    for flag, distribution in tuned.items():
        if isinstance(distribution, CategoricalDistribution):
            axes[flag] = distribution.choices
            continue
        low = distribution.low
        spaced = np.geomspace if distribution.log else np.linspace
        values = spaced(low, distribution.high, n_points).tolist()
        if isinstance(distribution, IntDistribution):
            values = [low + distribution.step * round((value - low) / distribution.step) for value in values]
        axes[flag] = [*dict.fromkeys(values)]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def suggest(trial, tuned):
    """{flag: value} of a trial, as the study's sampler proposes them."""
    params = {}
    for flag, distribution in tuned.items():
        if isinstance(distribution, CategoricalDistribution):
            params[flag] = trial.suggest_categorical(flag, distribution.choices)
        else:
            suggest_number = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
            params[flag] = suggest_number(flag, distribution.low, distribution.high, step=distribution.step,
                                          log=distribution.log)
    return params


def stored(distribution):
    """A distribution as it is kept in the study: plain values of JSON."""
    return json.loads(distributions.distribution_to_json(distribution))


def range_text(distribution):
    """A stored distribution, or None, as it is written after --tune."""
    if distribution is None:
        return 'nothing'
    distribution = distributions.json_to_distribution(json.dumps(distribution))
    if isinstance(distribution, CategoricalDistribution):
        return ','.join(distribution.choices)
    words = [str(distribution.low), str(distribution.high), *(['log'] if distribution.log else [])]
    if isinstance(distribution, IntDistribution):
        words += ['int', *([str(distribution.step)] if distribution.step > 1 else [])]
    return ' '.join(words)

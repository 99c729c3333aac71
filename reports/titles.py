"""
What tables and figures call data sets, metrics and methods, and which metrics they print in percent. A data set or
metric that has no line here is printed under its own name.
"""
from collections import Counter

import evaluation
from utilities import columns
from utilities.errors import UserError

# --dataset: (title, what the names of its groups begin with)
DATASETS = {
    'cub200': ('CUB200-2011', 'CUB'),
    'cars196': ('CARS196', 'CARS'),
    'online_products': ('SOP', 'SOP'),
    'inshop': ('In-Shop', 'InShop'),
    'omniglot': ('Omniglot', 'Omniglot'),
}
# a metric, or the part of it up to the @, which the rest then follows
METRICS = {
    'e_recall@': 'R@', 'recall@': 'R@', 'precision_at_1': 'P@1', 'r_precision': 'RP', 'map_at_r': 'MAP@R',
    'nmi': 'NMI', 'ami': 'AMI', 'f1': 'F1',
    'dists@intra': 'intra', 'dists@inter': 'inter', 'dists@intra_over_inter': 'intra/inter', 'rho_spectrum@': 'rho@',
}

DIFFERENCE = 'difference_'           # with which the columns of differences to a baseline begin


def dataset(name):
    """
    >>> dataset('cub200'), dataset('my_data')
    ('CUB200-2011', 'my_data')
    """
    return DATASETS.get(name, (name,))[0]


def metric(name):
    """
    The title of a column.

    >>> metric('test_e_recall@4'), metric('train_nmi'), metric('test_parent_c_nmi'), metric('train_loss')
    ('R@4', 'train NMI', 'parent NMI (cosine)', 'train loss')
    """
    if name.startswith(DIFFERENCE):
        return f'Δ {metric(name.removeprefix(DIFFERENCE))}'
    column = columns.parse(name)
    if column is None:
        return name.replace('_', ' ')
    base = column.metric.removeprefix('c_')
    stem, at, argument = base.partition('@')
    title = METRICS.get(base) or (METRICS[stem + at] + argument if stem + at in METRICS else base)
    words = [column.split if column.split != 'test' else '', column.level if column.level != 'class' else '', title,
             '(cosine)' if base != column.metric else '']
    return ' '.join(word for word in words if word)


def is_fraction(name):
    """
    Whether a column holds fractions of 1 of which more is better; these are printed in percent.

    >>> is_fraction('test_parent_nmi'), is_fraction('test_dists@intra'), is_fraction('epoch')
    (True, False, False)
    """
    column = columns.parse(name)
    try:
        return column is not None and evaluation.parse(column.metric)[1].select
    except UserError:                                      # no metric of --evaluation_metrics
        return False


def methods(groups):
    """
    The names of methods, the same on all data sets: those of the groups without their data set's prefix, or with it
    where two groups of a data set would have one name.

    groups: pairs (data set, group); returns {pair: method}.

    >>> list(methods([('cub200', 'CUB_Margin'), ('cars196', 'CARS_Margin'), ('cars196', 'Margin')]).values())
    ['Margin', 'CARS_Margin', 'Margin']
    """
    short = {(of, group): without_prefix(of, group) for of, group in groups}
    taken = Counter((of, name) for (of, _), name in short.items())
    return {(of, group): name if taken[of, name] == 1 else group for (of, group), name in short.items()}


def without_prefix(dataset, group):
    first, _, rest = group.partition('_')
    prefixes = dataset.casefold(), DATASETS.get(dataset, ('', dataset))[1].casefold()
    return rest if rest and first.casefold() in prefixes else group

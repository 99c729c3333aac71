"""The names of data sets and methods in tables and figures. Data sets without a line here keep their own names."""
from collections import Counter

# --dataset: (title, prefix of its groups' names)
DATASETS = {
    'cub200': ('CUB200-2011', 'CUB'),
    'cars196': ('CARS196', 'CARS'),
    'online_products': ('SOP', 'SOP'),
    'inshop': ('In-Shop', 'InShop'),
    'omniglot': ('Omniglot', 'Omniglot'),
}
OTHER_PREFIXES = {'cars196': 'CAR'}                        # prefixes of the public code
UNKNOWN = 'unknown'                                        # stands for a test set's hash where none is recorded
DIGITS = len(UNKNOWN)                                      # digits of a hash that are shown


def dataset(name):
    """
    >>> dataset('cub200'), dataset('my_data'), dataset('cub200@f08c6d3a'), dataset('inshop+0.8+flip')
    ('CUB200-2011', 'my_data', 'CUB200-2011 (test set f08c6d3)', 'In-Shop (views 0.8 flip)')
    >>> dataset('sop@unknown')
    'sop (test set unknown)'
    """
    name, _, views = name.partition('+')
    name, _, test = name.partition('@')
    return (DATASETS.get(name, (name,))[0] + (f' (test set {test[:DIGITS]})' if test else '')
            + (f' (views {views.replace("+", " ")})' if views else ''))


def method(name):
    """
    A method's name as tables and figures print it; files of data keep the name of its --group.

    >>> method('Margin_b06')
    'Margin b06'
    """
    return name.replace('_', ' ')


def methods(groups):
    """
    The names of methods, the same on all data sets: the groups' names without their data set's prefix, or with it where
    two groups of a data set would have the same name.

    groups: pairs (data set, group); returns {pair: method}.

    >>> list(methods([('cub200', 'CUB_Margin'), ('cars196', 'CARS_Margin'), ('cars196', 'Margin')]).values())
    ['Margin', 'CARS_Margin', 'Margin']
    """
    short = {(of, group): without_prefix(of, group) for of, group in groups}
    taken = Counter((of, name) for (of, _), name in short.items())
    return {(of, group): name if taken[of, name] == 1 else group for (of, group), name in short.items()}


def without_prefix(dataset, group):
    """
    A group's name without the prefix of its data set. The regularised runs of the public code have the prefixes
    CUBreg, CARreg and SOPreg, of which reg is kept.

    >>> without_prefix('cars196', 'CARS_Margin'), without_prefix('cars196', 'CARreg_Margin')
    ('Margin', 'reg_Margin')
    """
    first, _, rest = group.partition('_')
    names = dataset, DATASETS.get(dataset, ('', dataset))[1], OTHER_PREFIXES.get(dataset, dataset)
    prefixes = {name.casefold() for name in names}
    if rest and first.casefold() in prefixes:
        return rest
    if rest and first.casefold().removesuffix('reg') in prefixes:
        return f'reg_{rest}'
    return group

"""The titles of metrics in tables and figures, and which metrics are printed in percent."""
from evaluation.metrics import parse
from records import columns
from utilities.errors import UserError
from utilities.text_tables import aligned

# title by metric, or by its name up to the @, to which the rest is appended; other metrics keep their names
METRICS = {
    'e_recall@': 'R@', 'recall@': 'R@', 'precision_at_1': 'P@1', 'r_precision': 'RP', 'map_at_r': 'MAP@R',
    'mAP_trapezoid': 'mAP (trapezoid)', 'mAP_1000': 'mAP@1000', 'mAP_lim': 'mAP@1023', 'mAP_c': 'MAP@R',
    'minp': 'mINP', 'h_ap': 'H-AP', 'asi': 'ASI', 'ndcg': 'NDCG',
    'r_auroc': 'R-AUROC', 'nmi': 'NMI', 'ami': 'AMI', 'f1': 'F1', 'opis': 'OPIS', 'tpr@': 'TPR@',
    'os_auroc': 'AUROC', 'os_fpr@0.95': 'FPR@TPR=0.95', 'os_fnir@': 'FNIR@FPIR=', 'os_oscr': 'OSCR', 'os_baks': 'BAKS',
    'os_baus': 'BAUS', 'os_gm': 'GM', 'os_fpir': 'FPIR', 'os_fnir': 'FNIR', 'os_threshold': 'threshold',
    'dists@intra': 'intra', 'dists@inter': 'inter', 'dists@intra_over_inter': 'intra/inter', 'rho_spectrum@': 'rho@',
}
OF_OPEN_SET = {'os_auroc', 'os_oscr', 'os_baks', 'os_baus', 'os_gm'}
DIFFERENCE = 'difference_'                                  # prefix of columns of tables: to a baseline


def metric(name):
    """
    The title of a column.

    >>> metric('test_e_recall@4'), metric('train_nmi'), metric('test_parent_c_nmi'), metric('ema_test_nmi')
    ('R@4', 'train NMI', 'parent NMI (cosine)', 'EMA NMI')
    """
    for prefix, title in ((DIFFERENCE, 'Δ'), (columns.EMA, 'EMA')):
        if name.startswith(prefix):
            return f'{title} {metric(name.removeprefix(prefix))}'
    column = columns.parse(name)
    if column is None:
        return name.replace('_', ' ')
    base = column.metric.removeprefix('c_')
    stem, at, argument = base.partition('@')
    title = METRICS.get(base) or (METRICS[stem + at] + argument if stem + at in METRICS else base)
    words = [column.split if column.split != 'test' else '', column.level if column.level != 'class' else '', title,
             '(cosine)' if base != column.metric else '']
    return ' '.join(word for word in words if word)


def without_second_names(names):
    """
    The columns without mAP_c, the name of map_at_r in the public code, where both are there.

    >>> without_second_names(['test_mAP_c', 'test_map_at_r', 'val_mAP_c'])
    ['test_map_at_r', 'val_mAP_c']
    """
    return [name for name in names if 'mAP_c' not in name or name.replace('mAP_c', 'map_at_r') not in names]


def is_fraction(name):
    """
    Whether a column holds fractions, which are printed in percent; those of this program are better where higher.

    >>> is_fraction('test_parent_nmi'), is_fraction('test_dists@intra'), is_fraction('epoch')
    (True, False, False)
    """
    return fact(name.removeprefix(columns.EMA), 'is_fraction')


def can_select(name):
    """Whether the values of a column say which network is better; no column of the moving average (--ema) selects."""
    return fact(name, 'selects')


def sign(name):
    """1 for a column where the highest value is the best; -1 where the lowest is."""
    return -1 if can_select(name) and not fact(name, 'higher_is_better') else 1


def fact(name, attribute):
    """A bool attribute of the Metric of a column; True for metrics of unknown classes; False for other columns."""
    column = columns.parse(name)
    if column is not None and column.metric in OF_OPEN_SET:
        return True
    try:
        return column is not None and getattr(parse(column.metric)[1], attribute)
    except UserError:                                      # not a metric of --evaluation_metrics
        return False


def unit(name):
    """
    The factor of a column in figures: 100 if it is printed in percent, else 1.

    >>> unit('test_nmi'), unit('test_dists@intra')
    (100, 1)
    """
    return 100 if is_fraction(name) else 1


def axis(name):
    """
    The label of an axis on which a column, times unit(), is plotted.

    >>> axis('test_e_recall@1'), axis('train_loss')
    ('R@1 (%)', 'train loss')
    """
    return metric(name) + (' (%)' if is_fraction(name) else '')


def shared_axis(members):
    """
    The label of an axis on which several Columns are plotted: one metric with different arguments or splits.

    >>> shared_axis([columns.parse('test_e_recall@1'), columns.parse('train_e_recall@1')])
    'R@1 (%)'
    >>> shared_axis([columns.parse('test_e_recall@1'), columns.parse('test_e_recall@4')])
    'R@k (%)'
    """
    labels = [axis(column.on('test').name) for column in members]
    stem, _, rest = labels[0].partition('@')
    if len(set(labels)) == 1:
        return labels[0]
    return f'{stem}@k{" (%)" if rest.endswith(" (%)") else ""}'


def table(row):
    """
    The metrics of evaluate() as text: a line per metric, a column per split, with all digits.

    row: {column: float, or the values of rho_spectrum@0, of which only the length and the largest value are printed}.

    >>> print(table({'train_nmi': 0.5, 'test_nmi': 0.25, 'test_parent_nmi': 0.75}))
    metric      train  test
    nmi         0.5    0.25
    parent_nmi         0.75
    """
    found = [(columns.parse(name), value) for name, value in row.items()]
    splits = [split for split in columns.SPLITS if any(column.split == split for column, _ in found)]
    lines = {'metric': dict(zip(splits, splits, strict=True))}
    for column, value in found:
        text = repr(value) if isinstance(value, float) else f'{len(value)} values, the largest {max(value):.6f}'
        lines.setdefault(column.at_split, {})[column.split] = text
    cells = [[name, *(texts.get(split, '') for split in splits)] for name, texts in lines.items()]
    return aligned(cells, left=range(len(cells[0])))

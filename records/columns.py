"""
The names of metrics in records: in log.csv `<split>_<metric>`, or `<split>_<level>_<metric>` for levels other than
`class`; at the backends (TensorBoard, W&B, Comet) with a slash after the split. In the records of an ensemble,
`sem_<split>_<metric>` is the standard error of the mean over folds. In the records of a run,
`ema_<split>_<metric>` is the metric of the moving average of the weights (--ema), and `step_<name>` the mean of
`train/<name>` over the training steps (--tuple_statistics).
"""
import re
from typing import NamedTuple

SPLITS = ('train', 'val', 'test')
LEVELS = ('class', 'parent', 'within', 'across', 'draws')
LOSS = 'train_loss'
SEM = 'sem_'
EMA = 'ema_'
STEP = 'step_'
OF_THE_PUBLIC_CODE = re.compile(r'(Train|Val|Test): discriminative_[^:]*: (.+)')    # W&B keys of Roth et al.


class Column(NamedTuple):
    """A metric of a split. metric: with its argument, such as e_recall@1."""
    split: str
    metric: str
    level: str = 'class'

    @property
    def name(self):
        """
        >>> Column('test', 'e_recall@1').name, Column('val', 'nmi', 'parent').name
        ('test_e_recall@1', 'val_parent_nmi')
        """
        return f'{self.split}_{self.at_split}'

    @property
    def at_split(self):
        """The name without the split: 'parent_nmi'."""
        return self.metric if self.level == 'class' else f'{self.level}_{self.metric}'

    def on(self, split):
        """The same metric of another split."""
        return self._replace(split=split)


def parse(name):
    """
    The Column of a name in log.csv; None if it is no metric of a split, as with SEM or EMA in front.

    >>> parse('test_parent_e_recall@1'), parse('train_loss'), parse('ema_test_nmi')
    (Column(split='test', metric='e_recall@1', level='parent'), None, None)
    """
    split, _, rest = name.partition('_')
    if split not in SPLITS or not rest or name == LOSS:
        return None
    level, _, metric = rest.partition('_')
    if level in LEVELS[1:] and metric:
        return Column(split, metric, level)
    return Column(split, rest)


def has_split(name):
    """
    Whether a name in log.csv begins with a split, as the names of metrics and of the training loss do.

    >>> has_split('val_nmi'), has_split(LOSS), has_split('seconds')
    (True, True, False)
    """
    return name.partition('_')[0] in SPLITS


def asked_for(metric):
    """
    The name in log.csv of a metric as a user gives it: unchanged if it begins with a split, or with EMA and a split,
    else with `test_` in front.

    >>> asked_for('parent_nmi'), asked_for('train_nmi'), asked_for('ema_val_nmi')
    ('test_parent_nmi', 'train_nmi', 'ema_val_nmi')
    """
    return metric if has_split(metric.removeprefix(EMA)) else f'test_{metric}'


def step_mean_column(name):
    """
    The column of a mean over the steps of an epoch (--tuple_statistics), which is no metric of the training split; None
    for other names.

    >>> step_mean_column('train_grad_norm'), step_mean_column(LOSS), step_mean_column('lr/backbone')
    ('step_grad_norm', None, None)
    >>> parse('step_grad_norm')
    """
    if name == LOSS or not name.startswith('train_'):
        return None
    return STEP + name.removeprefix('train_')


def interval(name):
    """The columns of the lower and the upper end of a metric's bootstrap interval."""
    return f'{name}_low', f'{name}_high'


def deviation(name):
    """The column of the standard deviation of a metric over random galleries (--eval_draws)."""
    return f'{name}_std'


def beside(name):
    """All columns that may stand beside that of a metric, and that describe it."""
    return *interval(name), deviation(name)


def is_beside(name):
    return name.endswith(beside(''))


def at_backend(name):
    """
    The name at the backends.

    >>> at_backend('test_e_recall@1'), at_backend('lr'), at_backend('ema_test_nmi'), at_backend('step_grad_norm')
    ('test/e_recall@1', 'lr', 'test/nmi/ema', 'train/grad_norm')
    """
    if name.startswith(STEP):
        return f'train/{name.removeprefix(STEP)}'
    if name.startswith(EMA):
        return f'{at_backend(name.removeprefix(EMA))}/ema'
    split, _, rest = name.partition('_')
    return f'{split}/{rest}' if split in SPLITS and rest else name


def from_backend(key):
    """
    A key at the backends, of this program or of the public code of Roth et al. -> the column; other keys are kept. A
    mean over steps becomes train_<name>, since its key looks like that of a training metric.

    >>> from_backend('test/nmi/ema'), from_backend('Test: discriminative_e_recall: e_recall@1')
    ('ema_test_nmi', 'test_e_recall@1')
    """
    found = OF_THE_PUBLIC_CODE.fullmatch(key)
    if found:
        return f'{found[1].lower()}_{found[2]}'
    if key.endswith('/ema'):
        return EMA + from_backend(key.removesuffix('/ema'))
    split, slash, rest = key.partition('/')
    return f'{split}_{rest}' if slash and split in SPLITS else key

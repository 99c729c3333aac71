"""The experiment folders of powerful-benchmarker: their files of options, which are taken out one by one."""
import re

from flags import command_line
from utilities.errors import UserError
from utilities.files import read_yaml

RESUMED = 'resume_training_config_diffs_'
BESIDE = ('config_factories.yaml', 'config_foldernames.yaml')         # they say nothing about the experiment
REQUIRED = ('dataset', 'num_epochs_train', 'models', 'loss_funcs', 'optimizers', 'transforms')
# The groups of the API of 2021, a class with arguments each: {group: (the option for the class, {argument: option}),
# with the names of earlier versions}
GROUPS = {
    'trainer': ('training_method', {
        'freeze_trunk_batchnorm': 'freeze_batchnorm',
        **{name: name for name in ('batch_size', 'dataloader_num_workers', 'iterations_per_epoch', 'loss_weights',
                                   'label_hierarchy_level', 'set_min_label_to_zero', 'g_alone_epochs',
                                   'metric_alone_epochs', 'g_triplets_per_anchor')}}),
    'tester': ('testing_method', {
        'label_hierarchy_level': 'label_hierarchy_level of the tester',
        **{name: f'eval_{name}' for name in ('accuracy_calculator', 'batch_size', 'dataloader_num_workers', 'pca',
                                             'normalize_embeddings', 'reference_set', 'use_trunk_output',
                                             'visualizer')}}),
    'split_manager': ('class of the splits', {
        name: name for name in ('num_training_partitions', 'num_training_sets', 'test_size', 'test_start_idx',
                                'hierarchy_level', 'data_and_label_getter_keys')}),
    'hook_container': ('class of the hooks', {
        'primary_metric': 'eval_primary_metric', 'save_models': 'save_models',
        'validation_split_name': 'validation_split_name'}),
    'aggregator': ('class of the aggregator', {'split_to_aggregate': 'split_to_aggregate'}),
    'ensemble': ('meta_testing_method', {'normalize_embeddings': 'ensemble: normalize_embeddings',
                                         'use_trunk_output': 'ensemble: use_trunk_output'}),
}


def numbers_in(value):
    """A number, a list of numbers or a text of numbers such as '0.16 1' as a list; None for anything else."""
    if isinstance(value, str):
        value = value.split()
    values = value if isinstance(value, list) else [value]
    try:
        return [float(part) if isinstance(part, str) else part + 0 for part in values]
    except (TypeError, ValueError):
        return None


class Options:
    """
    Options by name. They are taken out one by one; what is left over has no counterpart.

    values: {name: value}. place: the name, in the files, of the option that contains them; '' for the folder.
    """

    def __init__(self, values, place=''):
        self.values = dict(values)
        self.groups = {}
        self.absent = []
        self.places = {name: f'{place}.{name}' if place else str(name) for name in values}

    def __contains__(self, name):
        was_taken_as_group = name in self.groups and name in self.places
        return was_taken_as_group or self.values.get(name) is not None

    def take(self, name, default=None):
        """An option's value, which is taken out; `default` where there is none."""
        value = self.values.pop(name, None)
        return default if value is None else value

    def group(self, name):
        """The Options in an option that is a mapping; empty where there is none."""
        if name not in self.groups:
            value = self.take(name, {})
            self.groups[name] = Options(value, self.places.get(name, name))
        return self.groups[name]

    def class_of(self, name):
        """
        The name of the class that an option gives as NAME or {NAME: arguments}; None where there is none. Raises
        ValueError for several.
        """
        value = self.values.get(name)
        if not isinstance(value, dict):
            return value
        if len(value) > 1:
            raise ValueError(f'{self.places[name]} has several classes')
        return next(iter(value), None)

    def arguments(self, name):
        """The Options that are the arguments of the class of an option, which is taken out."""
        if name not in self.groups:
            kind = self.class_of(name)
            value = self.take(name)
            given = value[kind] if isinstance(value, dict) else None
            self.groups[name] = Options(given or {}, f'{self.places[name]}.{kind}')
        return self.groups[name]

    def put(self, name, value, place):
        """Adds an option; `place` is its name in the files, where it has another one."""
        self.values[name] = value
        self.places[name] = place

    def left_over(self):
        """{name in the files: value} of the options left here and in the groups, and of absent ones that are needed."""
        left = {self.places[name]: value for name, value in self.values.items()}
        for group in self.groups.values():
            left |= group.left_over()
        return left | dict.fromkeys(self.absent, 'not there')


def read(folder):
    """
    The Options of an experiment, with the names of versions before 2021; and notes on options that were changed when it
    was resumed. Raises UserError where files or options are missing, or a file cannot be read.
    """
    values = options_in(folder / 'configs')
    if values is None:
        raise UserError(f'{folder}: there is no configs/config_*.yaml in this folder; give the '
                        'folder of an experiment of powerful-benchmarker')
    notes = []
    for changes in sorted((folder / 'configs').glob(f'{RESUMED}*'), key=epochs_of):
        changed = options_in(changes) or {}
        others = sorted(str(name) for name in changed.keys() - {'num_epochs_train'})
        if others:
            notes.append(f'the experiment was resumed with another {", ".join(others)} at epoch '
                         f'{" ".join(map(str, epochs_of(changes)))}; the command uses the last values from the start')
        values |= changed
    missing = [name for name in REQUIRED if name not in values]
    if missing:
        raise UserError(f'{folder}: its configs/config_*.yaml have no option {", ".join(missing)}; '
                        'give the folder with all files of the experiment')
    options = Options(values)
    for group, (option, names) in GROUPS.items():
        rename(options, group, option, names)
    return options, notes


def epochs_of(changes):
    """The epochs in the name of a folder of changed options, one for each fold."""
    epochs = changes.name.removeprefix(RESUMED)
    if not re.fullmatch(r'\d+(_\d+)*', epochs):
        raise UserError(f'{changes}: expected {RESUMED} and the epochs from which its options hold, such as 50_30_0')
    return [int(epoch) for epoch in epochs.split('_')]


def options_in(folder):
    """{option: value} of all config_*.yaml in a folder; None where there is none."""
    files = [file for file in sorted(folder.glob('config_*.yaml')) if file.name not in BESIDE]
    options = {}
    for file in files:
        try:
            content = read_yaml(file.read_text(encoding='utf-8'))
        except (OSError, ValueError) as error:
            raise UserError(f'{file}: not a YAML file of options: {error}') from None
        if not isinstance(content, dict | None):
            raise UserError(f'{file}: expected options and values')
        options |= command_line.with_numbers(content or {})
    return options if files else None


def rename(options, group, option, names):
    """Gives the arguments of a group of the API of 2021 their earlier names. option, names: as in GROUPS."""
    kind = options.class_of(group)
    if kind is None:
        return
    place = options.places[group]
    arguments = options.arguments(group)
    options.put(option, kind, place)
    for argument, name in names.items():
        if argument in arguments.values:
            options.put(name, arguments.values.pop(argument), arguments.places[argument])

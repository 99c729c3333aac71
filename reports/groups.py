"""Runs -> groups of the seeds of one setting on one data set, and notes on the runs that are left out."""
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import parameters
from records.reading import FINISHED
from reports import naming
from utilities.errors import UserError

# flags, and columns of --rows, that may differ between the seeds of a setting, besides the flags of the machine
OF_A_SEED = {'seed', 'savename', 'deterministic', 'epoch', 'command', 'git_commit', 'versions', 'seconds'}


@dataclass
class Group:
    """
    The valid runs of one setting on one test set of a data set.

    test_set: the data set and, where there are several, its test set and views, as names_of_data() names them.
    method:   the name that naming.methods gives the setting.
    expected: the seeds that should be there.
    """
    name: str
    dataset: str
    test_set: str
    runs: list
    method: str
    expected: set = field(default_factory=set)

    @property
    def missing(self):
        return sorted(self.expected - {run.seed for run in self.runs})


def group_runs(runs, expected=(), seeds=(), with_unfinished=False):
    """
    Args:
        runs:            Runs.
        expected:        (data set, group, seed) of the runs that should be there, in the order of the table.
        seeds:           the seeds that every group should have; by default all seeds of any group on its data set.
        with_unfinished: whether runs that did not finish count.

    Returns ([Group], notes): a sentence for each run and seed that is left out, and for each run that counts although
    it is unfinished or has other flags, and for data sets with several test sets. Runs of a group on several test sets,
    or with other --eval_views, make a Group for each. Raises UserError where a Group has two runs of a seed.
    """
    counted, notes = those_that_count(runs, with_unfinished)
    names, notes_on_data = names_of_data(counted)
    found = {}
    first = {}                                             # the first name of each data set
    for run, data in zip(counted, names, strict=True):
        found.setdefault((run.dataset, data, run.group), []).append(run)
        first.setdefault(run.dataset, data)
    planned = {}
    for dataset, name, seed in expected:
        planned.setdefault((dataset, name), set()).add(seed)
    settings = dict.fromkeys([*((run.dataset, run.group) for run in runs), *planned])
    methods = naming.methods(settings)
    groups = [Group(name, dataset, data, members, methods[dataset, name])
              for (dataset, data, name), members in found.items()]
    filled = {(group.dataset, group.name) for group in groups}
    groups += [Group(name, dataset, first.get(dataset, dataset), [], methods[dataset, name])
               for dataset, name in settings if (dataset, name) not in filled]
    for group in groups:
        require_one_run_of_a_seed(group)
        notes += differences(group.name, group.runs)
        group.expected = set(seeds) or planned.get((group.dataset, group.name)) or {
            run.seed for other in groups if other.test_set == group.test_set for run in other.runs}
        if group.missing:
            notes.append(f'{group.name} on {naming.dataset(group.test_set)}: seed(s) '
                         f'{", ".join(map(str, group.missing))} missing')
    if planned:
        names = dict.fromkeys(name for _, name in planned)        # a group counts once, at its first place
        order = {name: index for index, name in enumerate(names)}
        groups.sort(key=lambda group: order.get(group.name, len(order)))
    else:
        groups.sort(key=lambda group: (group.test_set, group.name.casefold()))
    return groups, notes + notes_on_data


def those_that_count(runs, with_unfinished):
    """(the runs that count, by group and seed; a note on each of the others, and on unfinished ones that count)."""
    counted = []
    notes = []
    for run in sorted(runs, key=lambda run: (run.dataset, run.group, run.seed, run.name)):
        if run.merged:
            notes.append(f'{run.name}: its settings have changed within the run, as its config.yaml lists; left out')
            continue
        is_finished = run.state == FINISHED
        counts = bool(run.rows) and (is_finished or with_unfinished)
        if counts:
            counted.append(run)
        if not (is_finished and counts):
            notes.append(f'{run.name}: {"no epoch was recorded" if is_finished else run.state}; '
                         + ('counted all the same' if counts else 'left out'))
    return counted, notes


def names_of_data(runs):
    """
    Returns ([the data set of each run in column names], notes).

    A name is <dataset>, and <dataset>@<hash> where the runs on this data set have several test sets, with +<views> at
    the end if only some of them have these --eval_views. In place of `folder` it begins with the name of the folder, if
    that is the same in all its runs, and no other run has a --dataset of this name.
    """
    names = {}
    notes = []
    datasets = dict.fromkeys(run.dataset for run in runs)
    for dataset in datasets:
        own = [run for run in runs if run.dataset == dataset]
        tests = test_sets(own)
        known = {test for test in tests if test}
        views = ['+'.join(dict.fromkeys(map(str, run.flags.get('eval_views') or ()))) for run in own]
        name = folder_name(own) if dataset == 'folder' and folder_name(own) not in datasets else dataset
        for run, test, view in zip(own, tests, views, strict=True):
            of_test = f'@{test or naming.UNKNOWN}' if len(known) > 1 else ''
            of_view = f'+{view}' if view and len(set(views)) > 1 else ''
            names[id(run)] = name + of_test + of_view
        if len(known) > 1:
            notes.append(f'{dataset}: different test sets, listed separately, by the beginnings of their hashes')
        if len(set(views)) > 1:
            notes.append(f'{dataset}: different --eval_views, listed separately')
        unknown = [run.name for run, test in zip(own, tests, strict=True) if not test]
        if unknown and len(known) == 1:
            notes.append(f'{dataset}: the test set is not recorded for {", ".join(unknown)}; it is taken to be the '
                         'same as for the others')
    return [names[id(run)] for run in runs], notes


def test_sets(runs):
    """
    [hash of each run's test set, None where it is not recorded]: of the classes and their numbers of images; where
    runs have other images of the same classes, of the images.
    """
    images = {}
    for run in runs:
        images.setdefault(run.test, set()).add(run.test_images)
    return [run.test_images if run.test_images and len(images[run.test] - {None}) > 1 else run.test for run in runs]


def folder_name(runs):
    """The name of the folder of images, if the runs have the same one; else `folder`."""
    names = {Path(run.flags.get('source_path') or '').name or 'folder' for run in runs}
    is_one = len(names) == 1 and not {'@', '+'} & {*''.join(names)}
    return names.pop() if is_one else 'folder'


def require_one_run_of_a_seed(group):
    """Raises UserError where two of the group's runs, sorted by seed, have the same one."""
    for one, other in itertools.pairwise(group.runs):
        if one.seed == other.seed:
            raise UserError(f'group {group.name}: seed {one.seed} occurs twice, {one.where} and {other.where}; leave '
                            'one out with --exclude')


def require_one_test_set(name, runs):
    """Raises UserError where runs of a group were evaluated on different test sets, so that they have no mean."""
    if len(set(names_of_data(runs)[0])) > 1:
        raise UserError(f'group {name}: its runs were evaluated on different test sets, and have no common mean')


def differences(name, runs):
    """
    A sentence for each flag in which the runs of a group differ, unless a seed or a machine may change it, and for data
    other than those of published results.
    """
    notes = [f'group {name}: {text}' for text in dict.fromkeys(run.other_data for run in runs) if text]
    for flag in dict.fromkeys(flag for run in runs for flag in run.flags):
        values = {str(run.flags[flag]) for run in runs if flag in run.flags}
        if len(values) > 1 and flag not in OF_A_SEED | parameters.may_differ():
            notes.append(f'group {name}: its runs differ in --{flag}: {", ".join(sorted(values))}')
    return notes

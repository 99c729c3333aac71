"""Runs -> groups of the seeds of one setting on one data set, and notes on the runs that are left out."""
from dataclasses import dataclass, field
from pathlib import Path

import parameters
from records.reading import FINISHED
from reports import naming
from utilities.errors import UserError

# flags, and columns of --rows, that may differ between the seeds of a setting, besides the flags of the machine
OF_A_SEED = {'seed', 'savename', 'deterministic', 'command', 'git_commit', 'versions'}


@dataclass
class Group:
    """
    The valid runs of one setting on one test set of a data set.

    method:   the name that naming.methods gives the setting.
    expected: the seeds that should be there.
    data:     the data set in column names: <dataset>@<hash> where its groups have several test sets, and with
              +<views> at the end where only some of its groups have these --eval_views.
    """
    name: str
    dataset: str
    runs: list
    method: str = ''
    expected: set = field(default_factory=set)
    data: str = ''

    @property
    def test(self):
        """The hash of the test split; None where no run has it recorded."""
        return next((run.test_set for run in self.runs if run.test_set), None)

    @property
    def views(self):
        """--eval_views as text, joined by +; empty for the images alone."""
        return next((views_of(run) for run in self.runs), '')

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
    it is unfinished or has other flags, and for data sets with several test sets. Runs of a group on several test sets
    make a Group for each. Raises UserError where a Group has two runs of a seed, or runs with other --eval_views.
    """
    notes, found, planned = [], {}, {}
    for run in runs:
        found.setdefault((run.dataset, run.group), []).append(run)
    for dataset, name, seed in expected:
        planned.setdefault((dataset, name), set()).add(seed)
    groups = []
    for (dataset, name), members in found.items():
        used, about = those_that_count(members, with_unfinished)
        notes += about
        for of_test_set in by_test_set(used) or [[]]:
            require_one_run_of_a_seed(name, of_test_set)
            require_same_views(name, of_test_set)
            notes += differences(name, of_test_set)
            groups.append(Group(name, dataset, of_test_set))
    groups += [Group(name, dataset, []) for dataset, name in planned if (dataset, name) not in found]
    methods = naming.methods((group.dataset, group.name) for group in groups)
    about_test_sets = separate_test_sets(groups)
    for group in groups:
        group.method = methods[group.dataset, group.name]
        group.expected = set(seeds) or planned.get((group.dataset, group.name)) or {
            run.seed for other in groups if other.data == group.data for run in other.runs}
        if group.missing:
            place = naming.dataset(group.data) if {'@', '+'} & {*group.data} else group.data
            notes.append(f'{group.name} on {place}: seed(s) {", ".join(map(str, group.missing))} missing')
    notes += about_test_sets + separate_views(groups)
    if planned:
        order = {name: index for index, (_, name) in enumerate(planned)}
        groups.sort(key=lambda group: order.get(group.name, len(order)))
    else:
        groups.sort(key=lambda group: (group.data, group.name.casefold()))
    return groups, notes


def those_that_count(members, with_unfinished):
    """(the runs of a group that count, by seed; a note on each of the others)."""
    used, notes = [], []
    for run in sorted(members, key=lambda run: (run.seed, run.name)):
        if run.merged:
            notes.append(f'{run.name}: its settings have changed within the run, as its config.yaml lists; left out')
            continue
        is_finished = run.state == FINISHED
        counts = bool(run.rows) and (is_finished or with_unfinished)
        if counts:
            used.append(run)
        if not (is_finished and counts):
            notes.append(f'{run.name}: {"no epoch was recorded" if is_finished else run.state}; '
                         + ('counted all the same' if counts else 'left out'))
    return used, notes


def by_test_set(runs):
    """
    The runs of a group in a list for each test set. Runs without a recorded one are in a list of their own, but with
    the others where these have one test set.
    """
    known = {run.test_set for run in runs if run.test_set}
    found = {}
    for run in runs:
        found.setdefault(run.test_set if len(known) > 1 else None, []).append(run)
    return [*found.values()]


def require_one_run_of_a_seed(name, runs):
    """Raises UserError where two of the runs, sorted by seed, have the same one."""
    for one, other in zip(runs, runs[1:], strict=False):
        if one.seed == other.seed:
            raise UserError(f'group {name}: seed {one.seed} occurs twice, {one.where} and {other.where}; leave '
                            'one out with --exclude')


def require_one_test_set(name, runs):
    """Raises UserError where runs of a group were evaluated on different test sets, so that they have no mean."""
    first = {run.test_set: run for run in reversed(runs) if run.test_set}
    if len(first) > 1:
        one, other = sorted(first.values(), key=runs.index)[:2]
        raise UserError(f'group {name}: {one.where} and {other.where} were evaluated on different test sets (hashes '
                        f'{one.test_set} and {other.test_set}: other classes or images), and have no common mean; '
                        'leave one out with --exclude, or train it again under another --group')


def separate_test_sets(groups):
    """
    Sets `data` of the groups, so that groups on different test sets are listed separately. Returns a sentence for
    each data set with several test sets, or with some that are not recorded.
    """
    notes = []
    for dataset in dict.fromkeys(group.dataset for group in groups):
        members = [group for group in groups if group.dataset == dataset]
        by_test = {}
        for group in members:
            if group.runs:
                by_test.setdefault(group.test, []).append(group.name)
        known = [test for test in by_test if test]
        name = name_of_data(dataset, members)
        for group in members:                                # one without runs is shown on the first test set
            test = group.test if group.runs else next(iter(by_test), None)
            group.data = f'{name}@{test or naming.UNKNOWN}' if len(known) > 1 else name
        if len(known) > 1:
            notes.append(f'{dataset}: different test sets, listed separately, by the beginnings of their hashes: '
                         + '; '.join(f'{naming.short_hash(test or naming.UNKNOWN)}{source_of(members, test)}: '
                                     f'{", ".join(names)}' for test, names in by_test.items()))
        elif known and None in by_test:
            notes.append(f'{dataset}: the test set is not recorded for {", ".join(by_test[None])}; it is taken to be '
                         'the same as for the others')
        notes += [f'{group.name}: the test set is not recorded for {", ".join(unknown)}; it is taken to be the same as '
                  'for the others' for group in members
                  if group.test and (unknown := [run.name for run in group.runs if not run.test_set])]
    return notes


def name_of_data(dataset, groups):
    """The name of a data set in tables: for `folder`, that of the folder, if all runs of the groups have the same."""
    folders = {Path(run.flags.get('source_path') or '').name for group in groups for run in group.runs}
    is_one = dataset == 'folder' and len(folders) == 1 and not {'@', '+'} & set(''.join(folders))
    return folders.pop() or dataset if is_one else dataset


def source_of(groups, test):
    """The --source_path of the runs on a test set, in brackets; empty where they have none or several."""
    sources = {run.flags.get('source_path') for group in groups if group.test == test for run in group.runs}
    return f' ({sources.pop()})' if len(sources) == 1 and all(sources) else ''


def views_of(run):
    return '+'.join(dict.fromkeys(map(str, run.flags.get('eval_views') or ())))


def require_same_views(name, runs):
    """Raises UserError where runs of a group were evaluated with other --eval_views, so that they have no mean."""
    for one, other in zip(runs, runs[1:], strict=False):
        if views_of(one) != views_of(other):
            raise UserError(f'group {name}: {one.where} and {other.where} were evaluated with different --eval_views '
                            f'({views_of(one) or "none"} and {views_of(other) or "none"}), and have no common mean; '
                            'leave one out with --exclude, or train it again under another --group')


def separate_views(groups):
    """
    Adds to `data` of the groups, so that groups with other --eval_views are listed separately. Returns a sentence for
    each data set whose groups have several.
    """
    notes = []
    for dataset in dict.fromkeys(group.dataset for group in groups):
        members = [group for group in groups if group.dataset == dataset and group.runs]
        by_views = {group.views: [] for group in members}
        for group in members:
            by_views[group.views].append(group.name)
        if len(by_views) > 1:
            for group in members:
                group.data += f'+{group.views}' if group.views else ''
            notes.append(f'{dataset}: different --eval_views, listed separately: ' + '; '.join(
                f'{views or "none"}: {", ".join(names)}' for views, names in by_views.items()))
    return notes


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


def tell_images_apart(runs):
    """Sets Run.has_twin where test splits of equal class names and numbers of images hold different images."""
    images = {}
    for run in runs:
        images.setdefault(run.test, set()).add(run.test_images)
    for run in runs:
        run.has_twin = bool(run.test_images) and len(images[run.test] - {None}) > 1

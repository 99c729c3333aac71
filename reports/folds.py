"""Run folders of cross-validation folds -> ensembles of the runs that belong together."""
import itertools
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

import parameters
from datasets import splits
from records import reading, run_folder
from records.columns import Column
from reports import groups, naming, selection
from utilities.errors import UserError

# flags in which the folds of a setting may differ
OF_A_MEMBER = groups.OF_A_SEED | parameters.may_differ() | {'fold', 'group'}


@dataclass
class Member:
    """
    A run with the row of its best epoch by validation. classes: {split: {class: number of images}}; test: the test
    classes' hash.
    """
    run: reading.Run
    config: dict
    best_row: dict
    checkpoint: Path
    classes: dict
    test: str

    @property
    def fold(self):
        return self.run.flags.get('fold', 0)

    @property
    def epoch(self):
        return self.best_row['epoch']


@dataclass
class Ensemble:
    """
    The runs of one setting and seed, by fold. name: their --group without _fold<k>. method: as naming.methods names it.
    """
    name: str
    dataset: str
    seed: int
    members: list
    method: str

    @property
    def n_expected(self):
        flags = self.members[0].run.flags
        return flags.get('n_training_folds') or (flags['n_folds'] if flags.get('split_scheme') in splits.FOLDED else 1)

    @property
    def n_folds_of(self):
        """The number of folds that are there, and how many there should be: '3/4'."""
        return f'{len(self.members)}/{self.n_expected}'

    def __str__(self):
        return f'{self.name} on {self.dataset}, seed {self.seed}'


def read_member(folder, known):
    """The Member of a run folder; `known` keeps the splits that were read, by hash. Raises UserError."""
    run, config = reading.read(folder), run_folder.read(folder)
    if run.state != reading.FINISHED:
        raise UserError(f'{folder}: {run.state}; finish it (python main.py --resume {folder}), or leave it out')
    if run.merged:
        raise UserError(f'{folder}: its settings have changed within the run, as its config.yaml lists; leave it out')
    chooser = Column('val', run.flags['storage_metrics'][0])
    if not any(chooser.name in row for row in run.rows):
        raise UserError(f'{folder}: it has no {chooser.name}, which chooses the best network; folds are trained with '
                        '--split_scheme class_folds or mlrc')
    best = selection.best_row(run, chooser, 'best_val')
    file = Path(folder) / f'checkpoint_{chooser.name}.pt'
    if not file.is_file():
        raise UserError(f'{folder}: there is no {file.name}, its best network by validation')
    if config['split_hash'] not in known:
        known[config['split_hash']] = read_classes(folder)
    return Member(run, config, best, file, *known[config['split_hash']])


def read_classes(folder):
    """(classes, hash of the test classes) in the splits.yaml of a run folder, as in Member."""
    parts = run_folder.read_splits(folder)['splits']
    if 'test' not in parts:
        raise UserError(f'{folder}: its splits.yaml has no test split')
    return {name: part['classes'] for name, part in parts.items()}, parts['test']['hash']


def gather(folders):
    """Run folders -> [Ensemble], in the order of their names. Raises UserError where they form none."""
    known, found = {}, {}
    for folder in tqdm(folders, desc='run folders', leave=False, disable=None):
        member = read_member(folder, known)
        name = member.run.group.removesuffix(f'_fold{member.fold}')
        found.setdefault((member.run.dataset, name, member.run.seed), []).append(member)
    methods = naming.methods((dataset, name) for dataset, name, _ in found)
    ensembles = [Ensemble(name, dataset, seed, sorted(members, key=lambda member: member.fold), methods[dataset, name])
                 for (dataset, name, seed), members in sorted(found.items())]
    firsts = {}
    for ensemble in ensembles:
        check(ensemble)
        first = firsts.setdefault(ensemble.dataset, ensemble)
        if first.members[0].test != ensemble.members[0].test:
            raise UserError(f'{first} and {ensemble}: they have other test classes and cannot be compared '
                            f'({first.members[0].run.where}, {ensemble.members[0].run.where}); evaluate them apart')
    return ensembles


def check(ensemble):
    """Raises UserError for members that are not folds of one setting, or that trained or validated on test classes."""
    first = ensemble.members[0]
    for one, other in itertools.pairwise(ensemble.members):
        if one.fold == other.fold:
            raise UserError(f'{ensemble}: fold {one.fold} occurs twice, {one.run.where} and {other.run.where}; leave '
                            'one out')
    for member in ensemble.members:
        if member.test != first.test or len({member.run.test_images, first.run.test_images} - {None}) > 1:
            raise UserError(f'{ensemble}: folds have different test classes or images, {first.run.where} and '
                            f'{member.run.where}')
        for split, doing in (('train', 'trained'), ('val', 'was validated')):
            seen = sorted(set(member.classes.get(split, {})) & set(member.classes['test']))
            if seen:
                raise UserError(f'{member.run.where}: it {doing} on {len(seen)} of the test classes, the first: '
                                f'{seen[0]}; an ensemble is evaluated on classes that are new to all of its networks')
        flags = first.run.flags, member.run.flags
        different = sorted(name for name in {**flags[0], **flags[1]} if name not in OF_A_MEMBER
                           and flags[0].get(name) != flags[1].get(name))
        if different:
            name = different[0]
            raise UserError(f'{ensemble}: its folds differ in --{" --".join(different)} ({first.run.where}: '
                            f'{flags[0].get(name)}, {member.run.where}: {flags[1].get(name)}); folds of one setting '
                            'share all flags but the fold')


def notes_on(ensembles):
    """Notes for the reader of the table: [(data set, sentence)]."""
    notes = []
    for ensemble in ensembles:
        if len(ensemble.members) < ensemble.n_expected:
            notes.append((ensemble.dataset, f'{ensemble.method}, seed {ensemble.seed}: {len(ensemble.members)} of '
                          f'{ensemble.n_expected} folds'))
        notes += [(ensemble.dataset, f'{ensemble.method}, seed {ensemble.seed}, fold {member.fold}: the network '
                   'before training was the best by validation') for member in ensemble.members if member.epoch == 0]
    settings = {}
    for ensemble in ensembles:
        for member in ensemble.members:
            settings.setdefault((ensemble.dataset, member.run.group), []).append(member.run)
    return notes + [(dataset, note) for (dataset, group), runs in settings.items()
                    for note in groups.differences(group, runs)]

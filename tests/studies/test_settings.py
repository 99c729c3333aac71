"""The settings that pass from the claims' searches to their runs."""
from pathlib import Path

import pytest

from records import reading
from records.reading import Run
from studies import settings
from utilities.errors import UserError

HEAD = 'trial,state,map_at_r,best_epochs,loss_triplet_margin,seconds,reason'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, 'FOLDER', tmp_path / 'settings')
    return tmp_path


def search(folder, name, lines):
    place = folder / f'Claims_Omniglot_{name}'
    place.mkdir(parents=True)
    (place / 'trials.csv').write_text('\n'.join([HEAD, *lines, '']))


def test_the_best_finished_trials_of_a_search(folder, capsys):
    search(folder / 'Studies', 'A_triplet', ['trial_0,complete,0.3,5 5,0.1,9,', 'trial_1,pruned,0.9,,0.2,9,slow',
                                             'trial_2,complete,0.5,5 4,0.3,9,', 'trial_3,complete,0.4,5 5,0.4,9,'])
    search(folder / 'Studies', 'B_triplet_rho', ['trial_0,complete,0.3,5 5,0.5,9,', 'trial_1,complete,0.4,5 5,0.6,9,'])
    settings.main(['candidates', '--studies', str(folder / 'Studies')])
    assert (folder / 'settings' / 'candidates.txt').read_text() == (
        'A triplet_1 --loss_triplet_margin=0.3\nA triplet_2 --loss_triplet_margin=0.4\n')
    search(folder / 'Later', 'A_triplet', ['trial_0,complete,0.3,5 5,0.7,9,'])
    search(folder / 'Later', 'A_margin', ['trial_0,complete,0.3,5 5,0.8,9,'])
    settings.main(['candidates', '--studies', str(folder / 'Later')])
    assert (folder / 'settings' / 'candidates.txt').read_text() == (         # lines of other searches stay
        'A margin_1 --loss_triplet_margin=0.8\nA triplet_1 --loss_triplet_margin=0.7\n'
        'A triplet_2 --loss_triplet_margin=0.4\n')
    settings.main(['grids', '--studies', str(folder / 'Studies')])
    assert (folder / 'settings' / 'grids.txt').read_text() == 'B triplet_rho --loss_triplet_margin=0.6\n'
    search(folder / 'Empty', 'A_triplet', ['trial_0,pruned,0.9,,0.2,9,slow'])
    for place, message in (('Empty', 'no trial has finished'), ('None', 'no searches of studies/Claims_Searches.sh')):
        with pytest.raises(UserError, match=message):
            settings.main(['candidates', '--studies', str(folder / place)])


def test_the_candidate_with_the_highest_mean_over_folds_at_the_last_epoch(folder, monkeypatch):
    (folder / 'settings').mkdir()
    with pytest.raises(UserError, match=r'candidates\.txt: missing'):
        settings.main(['best', '--runs', str(folder / 'runs')])
    (folder / 'settings' / 'candidates.txt').write_text('A triplet_1 --lr=0.1\nA triplet_2 --lr=0.2 --gamma=0.5\n')
    monkeypatch.setattr(reading, 'is_run_folder', Path.is_dir)
    monkeypatch.setattr(reading, 'read', lambda path: Run(path.name, path, {'group': path.name[:-3], 'seed': 0}, [
        {'epoch': epoch, 'val_map_at_r': value} for epoch, value in enumerate(values[path.name[:-3]])]))
    names = [f'Candidates_Omniglot_A_triplet_{place}_fold{fold}' for place in (1, 2) for fold in (0, 1)]
    values = dict(zip(names, ([.1, .6], [.1, .3], [.9, .5], [.9, .5]), strict=True))
    for name in names:
        if name == names[-1]:
            with pytest.raises(UserError, match='expected two folds of each candidate of triplet, half A'):
                settings.main(['best', '--runs', str(folder / 'runs')])
        (folder / 'runs' / f'{name}_s1').mkdir(parents=True)
    (folder / 'runs' / f'{names[0]}_s1.log').write_text('of Launch_Runs.py')
    settings.main(['best', '--runs', str(folder / 'runs')])
    assert (folder / 'settings' / 'best.txt').read_text() == 'A triplet --lr=0.2 --gamma=0.5\n'

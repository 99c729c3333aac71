"""--split_scheme time: training images before test images."""
import numpy as np
import pytest
import yaml

from datasets import base, splits, time_split
from tests.helpers import folder_of


def table(classes, times):
    return base.ImageTable([None] * len(classes), list(classes), times=[time_split.moment(time) for time in times])


def halves(opt, *columns, **flags):
    return splits.split(opt(split_scheme='time', dataset='folder', **flags), table(*columns))


def test_individuals_are_disjoint_or_shared(opt):
    columns = 'abacbadc', ['1', '9', '2', '8', '3', '7', '6', '5']
    assert halves(opt, *columns, test_from='5') == {'train': [0, 2, 4], 'test': [3, 6, 7]}
    assert halves(opt, *columns, test_from='5', time_split='shared') == {'train': [0, 2, 4], 'test': [1, 3, 5, 6, 7]}
    assert halves(opt, *columns, test_size=.25, time_split='shared') == {'train': [0, 2, 4, 5, 6, 7], 'test': [1, 3]}
    assert halves(opt, *columns, test_size=0) == {'train': list(range(8))}


@pytest.mark.parametrize('seed', range(3))
def test_nothing_in_training_is_as_late_as_a_test_image(seed, opt):
    """Also with ties, which are all in the same split; the classes are disjoint unless they may be shared."""
    random = np.random.default_rng(seed)
    classes = [f'{c:02d}' for c in random.integers(0, 40, 60)]
    times = [str(time) for time in random.integers(0, 12, 60)]
    for shared in ('disjoint', 'shared'):
        found = halves(opt, classes, times, test_size=.6, time_split=shared, use_tv_split=True)
        development = found['train'] + found['val']
        assert max(int(times[i]) for i in development) < min(int(times[i]) for i in found['test'])
        in_training = {classes[i] for i in development}
        assert not {classes[i] for i in found['train']} & {classes[i] for i in found['val']}
        start = sorted(map(int, times))[24]
        assert found['test'] == [i for i in range(60) if int(times[i]) >= start
                                 and (shared == 'shared' or classes[i] not in in_training)]


@pytest.mark.parametrize('earlier, later', [
    ('2024-05-31', '2024-06-01'), ('2024-05-31T09:00', '2024-05-31T10:00'), ('9', '10'), ('-1e3', '0.5'),
    ('1969-07-20', '1970-01-01'), ('2024-05-31T12:00+02:00', '2024-05-31T11:00+00:00'),
    ('2024-05-31', '2024-05-31 00:00:01'),
])
def test_numbers_and_dates_are_in_the_order_of_time(earlier, later):
    assert time_split.moment(earlier).value < time_split.moment(later).value


def test_a_run_split_by_dates(quick, patterns, run, tmp_path, capsys):
    """Class c is first seen on day c + 1 of May, its later images up to five days later; the run resumes."""
    rows = [f'{file},{file.parent.name},2024-05-{int(file.parent.name[-2:]) + int(file.stem) + 1:02d}'
            for file in sorted(patterns.rglob('*.png'))]
    (tmp_path / 'list.csv').write_text('\n'.join(['path,label,time', *rows]))
    flags = [*quick, '--csv', tmp_path / 'list.csv', '--split_scheme', 'time', '--test_from', '2024-05-08',
             '--evaluation_metrics', 'e_recall@1', '--n_epochs', '1']
    assert run(*flags) == 0
    # of day 8 or later: all images of classes 7 to 11; of the classes 2 to 6 there are 1, 2, 3, 4 and 5
    assert ('time: training until 2024-05-07, test from 2024-05-08; 15 images from then on are left out, since their '
            'classes have training images') in capsys.readouterr().out
    described = yaml.safe_load((folder_of(tmp_path) / 'splits.yaml').read_text())
    assert described['splits']['train']['n_images'] == 27 and described['splits']['test']['n_classes'] == 5
    assert described['time'] == {'last_training_time': '2024-05-07', 'first_test_time': '2024-05-08', 'n_left_out': 15}
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 0
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '3', '--time_split', 'shared') == 2
    assert 'cannot change within a run: --time_split shared (was disjoint)' in capsys.readouterr().err
    (tmp_path / 'list.csv').write_text('\n'.join(['path,label,time', *rows]).replace('2024-05-09', '2024-04-09'))
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '3') == 2
    assert 'must lead to the same data' in capsys.readouterr().err


@pytest.mark.parametrize('times, flags, sentence', [
    (['3', 'May'], [], 'line 3: time must be a number, or a date (and time) as in ISO 8601, such as 2024-05-31 or'),
    (['3', 'inf'], [], 'line 3: time must be'),
    (['3', '2024-05-31'], [], 'line 3: time is a date (2024-05-31), but in line 2 a number (3); write all times alike'),
    (['3', '4'], ['--test_from', '2024-05-31'], '--test_from 2024-05-31 is a date, but the column time has a number'),
    (['3', '4'], ['--test_from', '5'], 'the test split is empty (2 classes in all, --split_scheme time, --test_from 5'),
    (['3', '4'], ['--test_from', '3'], 'the train split is empty (2 classes in all, --split_scheme time'),
    (['3', '4'], ['--test_from', 'soon'], '--test_from: expected a number, or a date (and time) as in ISO 8601'),
    (['3', '4'], ['--test_from', '4', '--test_size', '.2'], 'both say where the test split begins; leave one of them'),
    (['3', '4'], ['--test_start', '.2'], '--test_start 0.2 goes with --split_scheme half, class_folds, closed_set,'),
    (['3', '4'], ['--split_scheme', 'half', '--time_split', 'shared'], '--time_split shared goes with --split_scheme'),
    (None, [], '--split_scheme time: --dataset folder has no times here; give --dataset folder and a --csv with a col'),
])
def test_what_is_refused(times, flags, sentence, quick, run, tmp_path, capsys, patterns):
    file = next(patterns.rglob('*.png'))
    rows = ['path,label,time', *(f'{file},{"ab"[i]},{time}' for i, time in enumerate(times))] if times else [
        'path,label', f'{file},a', f'{file},b']
    (tmp_path / 'list.csv').write_text('\n'.join(rows))
    assert run(*quick, '--csv', tmp_path / 'list.csv', '--split_scheme', 'time', *flags) == 2
    assert sentence in capsys.readouterr().err

"""--splits FILE: class lists of published splits, in runs and their records."""
import json
import shutil

import pytest
import yaml

import configuration
from datasets import split_file
from datasets.base import ImageTable
from tests.helpers import folder_of
from utilities.errors import UserError

CLASSES = [f'class_{c:02d}' for c in range(12)]
STEPS = {'1': {'train': CLASSES[:6], 'test': CLASSES[6:], 'fid': 19.2},
         '2': {'train': [0, 2, 4], 'val': [6], 'test': ['class_01', 3]}}


def file_of(folder, content, name='shifts.json'):
    (folder / name).write_text(json.dumps(content) if name.endswith('.json') else yaml.safe_dump(content))
    return str(folder / name)


@pytest.mark.parametrize('name', ['shifts.json', 'shifts.yaml'])
def test_each_image_is_in_the_split_of_its_class(name, opt, tmp_path):
    table = ImageTable([str(i) for i in range(36)], [CLASSES[i % 12] for i in range(36)])
    own = opt(splits=file_of(tmp_path, {1: STEPS['1'], 2: STEPS['2']}, name), splits_step='2')
    images = split_file.apply(own, table)
    assert {split: sorted({table.classes[i] for i in chosen}) for split, chosen in images.items()} == {
        'train': ['class_00', 'class_02', 'class_04'], 'val': ['class_06'], 'test': ['class_01', 'class_03']}
    assert all(len(chosen) == 3 * n for chosen, n in zip(images.values(), (3, 1, 2), strict=True))
    own.splits, own.splits_step = file_of(tmp_path, STEPS['1'], 'one_' + name), None
    assert [len(chosen) for chosen in split_file.apply(own, table).values()] == [18, 18]


@pytest.mark.parametrize('content, step, message', [
    (STEPS, None, 'has the steps 1, 2; choose one by --splits_step'),
    (STEPS, '3', 'choose one by --splits_step, not 3'),
    (STEPS['1'], '1', 'has no steps: leave --splits_step 1 out'),
    ({'train': CLASSES[:3], 'test': CLASSES[2:]}, None, 'the class class_02 is listed twice, for train and for test'),
    ({'train': ['crow'], 'test': [1, 12, -1]}, None, 'has no class crow, 12, -1; expected names such as class_00, or '
                                                     'whole numbers from 0 to 11'),
    ({'train': [*'abcdefg'], 'test': [1]}, None, 'a, b, c, d, e and 2 more'),
    ({'train': [], 'test': [1]}, None, 'train is empty'),
    ({'train': [1], 'test': 'class_02'}, None, 'test is not such a list'),
    ({'train': [True], 'test': [2]}, None, 'train is not such a list'),
    ([1, 2], None, 'train is missing'),
    ({'train': [1], 'test': [2], 'validation': [3], 'Val': [4]}, None, 'unknown: validation, Val; expected the lists')])
def test_other_contents_get_a_sentence(content, step, message, opt, tmp_path):
    own = opt(splits=file_of(tmp_path, content), splits_step=step)
    with pytest.raises(UserError) as error:
        split_file.apply(own, ImageTable(CLASSES, CLASSES))
    assert f'--splits {own.splits}' in str(error.value) and message in str(error.value)


def test_names_are_names_and_numbers_are_places_only_without_numeric_names(opt, tmp_path, capsys):
    table = ImageTable(*[[str(c) for c in range(1, 21)]] * 2)
    own = opt(splits=file_of(tmp_path, {'train': [10, '11'], 'test': [2, 20, 3]}))
    assert split_file.apply(own, table) == {'train': [9, 10], 'test': [1, 2, 19]} and capsys.readouterr().out == ''
    (tmp_path / 'zeros.yaml').write_text('train: [001]\ntest: [0]')
    for splits, names in ((file_of(tmp_path, {'train': [0], 'test': [2]}), 'class 0; expected'),
                          (str(tmp_path / 'zeros.yaml'), 'class 0; expected names such as 1, in quotes where')):
        with pytest.raises(UserError, match=f'has no {names}.* numbers are not taken as places'):
            split_file.apply(opt(splits=splits), table)
    split_file.apply(opt(splits=file_of(tmp_path, {'train': [0], 'test': [2]})), ImageTable(CLASSES, CLASSES))
    assert 'numbers are places in the sorted list of the classes, from 0 (class_00) to 11' in capsys.readouterr().out


@pytest.mark.parametrize('name, content', [('a.json', '{"train": ["a"], "train": ["b"], "test": ["c"]}'),
                                           ('a.yaml', 'train: [a]\ntest: [c]\ntrain: [b]')])
def test_a_key_that_occurs_twice_is_refused(name, content, opt, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match='the key train occurs twice'):
        split_file.apply(opt(splits=str(tmp_path / name)), ImageTable(CLASSES, CLASSES))


@pytest.mark.parametrize('content', [b'\x80\x04\x95', b'{', b'[' * 3_000])
def test_files_that_are_not_json_are_refused_and_pickles_never_loaded(content, opt, tmp_path):
    for name in ('a.json', 'a.pkl'):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match='not a JSON or YAML file'):
            split_file.apply(opt(splits=str(tmp_path / name)), ImageTable(CLASSES, CLASSES))
    with pytest.raises(UserError, match='No such file'):
        split_file.apply(opt(splits=str(tmp_path / 'b.json')), ImageTable(CLASSES, CLASSES))


def test_a_run_records_its_file_and_resumes_with_no_other(quick, run, tmp_path, capsys):
    file, folder = file_of(tmp_path, STEPS), folder_of(tmp_path)
    some = [*quick, '--evaluation_metrics', 'e_recall@1', '--bs', '6', '--splits', file,
            '--splits_step', '2']
    assert run(*some, '--n_epochs', '1') == 0
    config, splits = (yaml.safe_load((folder / name).read_text()) for name in ('config.yaml', 'splits.yaml'))
    assert config['splits_file'] == splits['splits_file'] and config['splits_file'].keys() == {'name', 'hash', 'step'}
    assert [*splits['splits']['test']['classes']] == ['class_01', 'class_03'] and 'val' in splits['splits']
    shutil.move(file, tmp_path / 'moved.json')                             # the same file at another place
    assert run('--resume', folder, '--n_epochs', '2', '--splits', tmp_path / 'moved.json') == 0
    (tmp_path / 'moved.json').write_text(json.dumps(STEPS) + '\n')         # other content, even with the same classes
    assert run('--resume', folder, '--n_epochs', '3') == 2
    assert 'is not the content that the run began with' in capsys.readouterr().err
    assert run('--resume', folder, '--n_epochs', '3', '--splits_step', '1') == 2
    assert run('--evaluate', folder) == 0                                  # an evaluation may use another file
    assert run('--evaluate', folder, '--split_scheme', 'half') == 0        # or none
    for flags, message in ((['--split_scheme', 'half'], 'takes the place of --split_scheme half'),
                           (['--test_size', '0.3'], 'it has no effect on --splits'),
                           (['--use_tv_split'], 'has a validation split'), (['--fold', '1'], '--fold 1 goes with')):
        assert run(*some, '--splits', tmp_path / 'moved.json', *flags) == 2
        assert message in capsys.readouterr().err, flags
    with pytest.raises(UserError, match='goes with --splits FILE'):
        configuration.parse(['--splits_step', '1'])

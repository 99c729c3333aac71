"""MAP@R per test class against a loop over the images; runs that have a line are skipped; what is left to run."""
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from records import reading
from retrieval.loading import embed, load
from studies import class_values
from utilities.errors import UserError

CODE = Path(__file__).parents[2]


def map_at_r_of_classes(embeddings, labels):
    """Musgrave et al., section 3.3, image by image."""
    found = {}
    for query, own in enumerate(labels):
        others = np.array([i for i in range(len(labels)) if i != query])
        near = others[np.argsort(np.linalg.norm(embeddings[others] - embeddings[query], axis=1), kind='stable')]
        n = np.sum(labels[others] == own)
        correct = labels[near[:n]] == own
        precision = np.cumsum(correct) / np.arange(1, n + 1)
        found.setdefault(own, []).append((precision * correct).sum() / n)
    return [np.mean(found[label]) for label in sorted(found)]


def test_the_values_of_classes(quick, run, patterns, tmp_path, monkeypatch):
    assert run(*quick, '--evaluation_metrics', 'e_recall@1', 'map_at_r', '--group', 'Claims_Own_A_one') == 0
    folder, file = tmp_path / 'runs' / 'folder' / 'Claims_Own_A_one_s1', tmp_path / 'classes.csv'
    class_values.main([str(folder), '--file', str(file)])
    (values, sizes), = class_values.read(file).values()
    paths = sorted(patterns.glob('images/*/*.png'))[36:]
    network, transform = load(folder, 'cpu')
    embeddings = embed(network, transform, [Image.open(path) for path in paths]).numpy()
    assert values == pytest.approx(map_at_r_of_classes(embeddings, np.repeat(np.arange(6), 6)), abs=6e-5)
    assert values.mean() == pytest.approx(reading.read(folder).rows[-1]['test_map_at_r'], abs=6e-5)
    assert sizes.tolist() == [6] * 6

    text = file.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(class_values, 'class_means', lambda part: (np.full(6, 2.0), np.full(6, 6)))
        with pytest.raises(UserError, match=r'MAP@R is 2\.000000 here, and 0\.\d+ in its records'):
            class_values.main([str(folder), '--file', str(tmp_path / 'other.csv')])
    shutil.rmtree(folder)                                            # its line is there, so that it is not read again
    class_values.main([str(folder), '--file', str(file)])
    assert file.read_text() == text
    with pytest.raises(UserError, match='not the folder of a run'):
        class_values.main([str(tmp_path / 'notes'), '--file', str(file)])
    for old, new, message in (('6 6 6', '6 6', '6 values for 5 classes'), ('group', 'method', 'line 2: not a line')):
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            class_values.read(file)


def test_the_values_of_classes_of_concatenated_folds(quick, run, patterns, tmp_path):
    folders = []
    for fold in (0, 1):
        group = f'Claims_Own_A_one_fold{fold}'
        assert run(*quick, '--split_scheme', 'class_folds', '--n_folds', 2, '--fold', fold, '--bs', 6,
                   '--evaluation_metrics', 'e_recall@1', 'map_at_r', '--group', group) == 0
        folders.append(str(tmp_path / 'runs' / 'folder' / f'{group}_s1'))
    file = tmp_path / 'classes.csv'
    class_values.main([*folders, '--file', str(file)])
    ((key, (values, sizes)),) = class_values.read(file).items()
    images = [Image.open(path) for path in sorted(patterns.glob('images/*/*.png'))[36:]]
    parts = []
    for folder in folders:
        network, transform = load(f'{folder}/checkpoint_val_e_recall@1.pt', 'cpu')
        parts.append(embed(network, transform, images).numpy())
    parts = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    assert values == pytest.approx(map_at_r_of_classes(np.hstack(parts), np.repeat(np.arange(6), 6)), abs=6e-5)
    assert key == ('Claims_Own_A_one', 1) and sizes.tolist() == [6] * 6
    with pytest.raises(UserError, match='seed 1: 1/2 folds'):
        class_values.main([folders[0], '--file', str(tmp_path / 'other.csv')])


def test_runs_that_have_rows_are_left_out(tmp_path):
    for name in ('studies', 'run_scripts'):
        (tmp_path / name).mkdir()
        for file in (CODE / name).glob('*.sh'):
            shutil.copy(file, tmp_path / name)
    (tmp_path / 'studies' / 'settings').mkdir()
    (tmp_path / 'studies' / 'settings' / 'best.txt').write_text(
        ''.join(f'{half} {loss} --lr=0.1\n' for half in 'AB' for loss in ('contrastive', 'multisimilarity')))

    def listed(sections):
        done = subprocess.run([tmp_path / 'studies' / 'Claims_Runs.sh', '--list'], capture_output=True, text=True,
                              env={'SECTIONS': sections, 'PATH': '/usr/bin:/bin'}, check=True)
        return [' '.join(line.partition('--group ')[2].split()[:3:2]) for line in done.stdout.splitlines()]

    every = listed('default folds')
    assert len(every) == len(set(every)) == 60 + 2 * 2 * 5 * 3
    (tmp_path / 'studies' / 'rows').mkdir()
    (tmp_path / 'studies' / 'rows' / 'claims.csv').write_text(
        'dataset,group,seed,epoch\nomniglot,Claims_Omniglot_A_margin_default,3,24\n')
    (tmp_path / 'studies' / 'rows' / 'claims_folds_B.csv').write_text(
        'dataset,group,seed,n_folds_of\nomniglot,Claims_Omniglot_B_contrastive_four,1,4\n')
    left = {f'Claims_Omniglot_B_contrastive_four_fold{fold} 1' for fold in range(4)}
    assert set(every) - set(listed('default folds')) == left | {'Claims_Omniglot_A_margin_default 3'}


def test_the_commands_of_the_page_list_runs_that_have_rows():
    page = (CODE / 'docs' / 'results.md').read_text(encoding='utf-8')
    command = re.search(r"^DATA=Datasets ROWS=none SECTIONS='default .*\n.* --list", page, re.MULTILINE)[0]
    environment = {'PATH': '/usr/bin:/bin', 'SECTIONS': 'rho'}
    repeated = subprocess.run(['bash', '-c', command], cwd=CODE, env=environment, capture_output=True, text=True,
                              check=True)
    assert len(repeated.stdout.splitlines()) > 600 and 'left out' not in repeated.stderr
    alone = subprocess.run(['studies/Claims_Runs.sh', '--list'], cwd=CODE, env=environment, capture_output=True,
                           text=True, check=True)
    assert not alone.stdout and alone.stderr.endswith('are left out; ROWS=none repeats them\n')

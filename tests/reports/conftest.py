"""Records of runs, and Result_Evaluations.py on them."""
import json

import numpy as np
import pytest

import Result_Evaluations
from records import run_folder
from utilities.files import write_csv

METRICS = ('e_recall@1', 'nmi', 'f1', 'map_at_r', 'rho_spectrum@1', 'dists@intra_over_inter')


@pytest.fixture
def make(tmp_path):
    """
    make(group, seed, ...): a run folder with records that a seed fixes; returns it.

    values: {column: [a value per epoch]}.
    """
    def write(group, seed, dataset='cub200', n_epochs=4, reached=None, splits=('train', 'test'), finished=True,
              without=(), name=None, test=None, values=None, **flags):
        random = np.random.default_rng([seed, len(group), *group.encode()])
        folder = tmp_path / 'runs' / dataset / (name or f'{group}_s{seed}')
        folder.mkdir(parents=True)
        reached = n_epochs if reached is None else reached
        rows = [{'epoch': epoch, 'train_loss': random.uniform() if epoch else None, 'lr': 1e-5, 'seconds': 1.0}
                | {f'{split}_{metric}': random.uniform() for split in splits for metric in METRICS
                   if f'{split}_{metric}' not in without}
                | {name: column[epoch] for name, column in (values or {}).items()} for epoch in range(reached + 1)]
        run_folder.write_yaml(folder / 'config.yaml', {'flags': {
            'dataset': dataset, 'group': group, 'seed': seed, 'n_epochs': n_epochs, 'lr': 1e-5} | flags,
            'split_hash': 'x', 'run_id': f'{group}{seed}', 'resumed': []} | ({'test_hash': test} if test else {}))
        (folder / 'splits.yaml').write_text('hash: x\n')
        write_csv(folder / 'log.csv', [{key: '' if value is None else repr(value) for key, value in row.items()}
                                       for row in rows])
        (folder / 'summary.json').write_text(json.dumps({'finished': finished, 'last_epoch': rows[-1]}))
        return folder
    return write


@pytest.fixture
def evaluate(tmp_path, capsys):
    """Runs Result_Evaluations.py on the made runs; returns (exit code, output, errors)."""
    def call(*arguments, source=None):
        code = Result_Evaluations.main([*(source or ['--runs', str(tmp_path / 'runs')]), *map(str, arguments)])
        return code, *capsys.readouterr()
    return call

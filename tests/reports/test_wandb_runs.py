"""Runs at W&B, by a project that stands in for the server's."""
import shutil
import types

import numpy as np
import pytest

from tests.reports.printed import cells, cells_on, expected


class FakeProject:
    """What wandb.Api().runs gives: runs with full histories; it can fail at one of them."""

    def __init__(self, runs, fails_at=None):
        self.runs, self.fails_at, self.loaded = runs, fails_at, []

    def __len__(self):
        return len(self.runs)

    def __iter__(self):
        for number, run in enumerate(self.runs):
            if number == self.fails_at:
                raise ConnectionError('the network is gone')
            def scan_history(page_size, run=run):
                self.loaded.append(run['id'])
                return iter(run['history'])
            yield types.SimpleNamespace(**run, lastHistoryStep=len(run['history']), scan_history=scan_history)


def public_run(seed, state='finished', n_epochs=150, dataset='cub200', group='CUB_Margin'):
    random = np.random.default_rng(seed)
    history = [{'_step': epoch, '_timestamp': 1.0, 'Test: discriminative_e_recall: e_recall@1': random.uniform(),
                'Test: discriminative_nmi: nmi': 'NaN' if epoch == 3 else random.uniform(),
                'Train: discriminative_rho_spectrum: rho_spectrum@1': random.uniform(),
                'Test: discriminative_rho_spectrum: rho_spectrum@0': {'_type': 'histogram'}}
               for epoch in range(n_epochs)]
    return {'id': f'id{seed}', 'name': f'{group}_s{seed}', 'group': group, 'state': state,
            'config': {'dataset': dataset, 'seed': seed, 'n_epochs': 150, '_wandb': {}}, 'history': history}


def test_a_project_at_wandb_with_the_public_key_names(evaluate, tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    runs = [public_run(0), public_run(1), public_run(2, state='crashed', n_epochs=20)]
    project = FakeProject(runs, fails_at=1)
    monkeypatch.setattr(wandb, 'Api', lambda timeout: types.SimpleNamespace(runs=lambda path, per_page: project))
    source = ['--project', 'someone/Revisit', '--cache', str(tmp_path / 'cache')]
    code, _, error = evaluate(source=source)
    assert code == 2 and 'stopped answering after 1 of 3 runs (the network is gone)' in error and 'start again' in error
    project.fails_at = None
    code, out, _ = evaluate('--select', 'best_test', '--per_metric', source=source)
    assert code == 0 and project.loaded == ['id0', 'id1', 'id2']         # the first came from the cache
    best = [max(row['Test: discriminative_e_recall: e_recall@1'] for row in run['history']) for run in runs[:2]]
    assert cells(out)['Margin'][0] == expected(best, percent=True)
    assert 'CUB_Margin_s2: crashed: 19 of 150 epochs; left out' in out
    runs[2]['state'] = 'finished'
    code, out, _ = evaluate('--metrics', 'train_rho_spectrum@1', source=source)
    assert code == 0 and project.loaded[3:] == ['id2'] and 'id2' not in out
    project.runs = []
    assert 'there are no runs in it' in evaluate(source=source)[2]
    assert 'expected ENTITY/PROJECT' in evaluate(source=['--project', 'x'])[2]
    del runs[0]['config']['seed']
    project.runs = runs[:1]
    shutil.rmtree(tmp_path / 'cache')
    code, _, error = evaluate(source=source)
    assert code == 2 and 'someone/Revisit/id0 (CUB_Margin_s0): its config at W&B has no seed' in error
    project.runs = runs
    assert evaluate('--exclude', 'id0', source=source)[0] == 0


def test_the_test_set_of_a_run_at_wandb_is_compared(evaluate, tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb')
    runs = [public_run(seed) for seed in (0, 1)]
    for run, test in zip(runs, 'ab', strict=True):
        run['config']['test_hash'] = test
    monkeypatch.setattr(wandb, 'Api', lambda timeout: types.SimpleNamespace(
        runs=lambda path, per_page: FakeProject(runs)))
    code, out, _ = evaluate(source=['--project', 'a/b', '--cache', str(tmp_path / 'cache')])
    assert code == 0 and 'different test sets, listed separately' in out
    assert [list(cells_on(f'CUB200-2011 (test set {test})', out)) for test in 'ab'] == [['Margin'], ['Margin']]

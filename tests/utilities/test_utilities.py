"""The ground floor: atomic files, generators, traces, records, checkpoints, run folders, backends, devices."""
import argparse
import math
import random
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from records import backends, checkpoint, lock, run_folder
from records.checkpoint import Checkpoint
from records.trace import Trace, scalar
from records.writing import Records
from tests.helpers import csv_rows, state_of
from utilities import device, files, stopping
from utilities.errors import RunFailed, UserError, choose
from utilities.randomness import derive, preserved, seed_everything


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path):
    file = tmp_path / 'a.txt'
    files.write_text(file, 'old')
    with pytest.raises(ZeroDivisionError), files.atomic(file) as temporary:
        temporary.write_text('half')
        raise ZeroDivisionError
    assert file.read_text() == 'old' and list(tmp_path.iterdir()) == [file]


def test_a_process_that_waits_for_a_lock_can_be_stopped(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lock, 'acquire', lambda path: (None, 'another process'))
    monkeypatch.setattr(stopping, 'requested', True)
    with pytest.raises(KeyboardInterrupt), lock.held(tmp_path, 'another process writes'):
        pass
    assert capsys.readouterr().out == 'another process writes\n'


def test_an_error_keeps_its_sentence_through_a_data_worker():
    wrapped = UserError('Caught UserError.\nTraceback:\n ...\nutilities.errors.UserError: a.png: bad\nFetch it.')
    assert str(wrapped) == 'a.png: bad\nFetch it.'
    with pytest.raises(UserError, match='--flag x: unknown; choose from a, b'):
        choose({'a': 1, 'b': 2}, 'x', '--flag')
    with pytest.raises(UserError, match='--flag margni: unknown; choose from triplet, margin; did you mean margin[?]'):
        choose({'triplet': 1, 'margin': 2}, 'margni', '--flag')


def test_derived_seeds_are_distinct_and_fit_every_generator():
    seeds = [derive(*numbers) for numbers in [(0,), (1,), (0, 0), (0, 1), (1, 0), (5, 4, 3), (2 ** 40, 1)]]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2 ** 63 for seed in seeds)
    assert seeds[:2] == [derive(0), derive(1)]


def test_preserved_generators():
    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed_everything(0)
    expected = draws()
    seed_everything(0)
    with preserved():
        draws()
    assert draws() == expected


def test_every_global_generator_is_seeded():
    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item()

    seed_everything(derive(3, 1))
    first = draw()
    assert draw() != first
    seed_everything(derive(3, 1))
    assert draw() == first


@pytest.mark.parametrize('step, bad', [(1, {'loss': math.nan}), (50, {'grad_norm': math.nan}), (51, {'loss': math.inf}),
                                       (60, {'grad_norm': math.inf})])
def test_a_step_that_is_not_finite_is_named(step, bad):
    trace = Trace(epoch=4)
    with pytest.raises(RunFailed, match=f'Epoch 4, step {step}: the loss is .*, its gradient norm'):
        for number in range(1, 61):
            values = {'loss': 1., 'grad_norm': 2.} | (bad if number == step else {})
            trace.add(**{name: torch.tensor(value) for name, value in values.items()}, tuples=7)
        trace.summary()


def test_a_trace_sums_up():
    trace = Trace(epoch=1)
    for value in range(120):
        trace.add(loss=torch.tensor(float(value), requires_grad=True), grad_norm=torch.tensor(1.), tuples=2)
    assert trace.summary() == {'train_loss': 59.5, 'train_grad_norm': 1, 'train_tuples': 2}
    for value, kind in ((None, 'of the type NoneType'), ('much', 'of the type str'),
                        (torch.ones(2), r'a value of the shape \[2\]')):
        with pytest.raises(UserError, match=f'self.log of a loss or miner: own is {kind}; expected a number'):
            scalar('own', value)


# Records

def log(records, epoch, recall=.5):
    return records.log(epoch, {'seconds': 1.5} | ({'train_loss': .1, 'lr': .01, 'train_tuples': 7} if epoch else {}),
                       {'test_e_recall@1': recall, 'test_nmi': math.nan, 'test_rho_spectrum@0': np.array([.75, .25])})


def test_records_are_written_in_every_form(opt, tmp_path, capsys):
    with Records(opt(), tmp_path, {}, 0) as records:
        log(records, 0)
        row = log(records, 1, recall=np.float64(1 / 3))
        records.log(2, {'train_loss': .1, 'lr': .01})                      # an epoch without evaluation
        records.summarise(argparse.Namespace(row=row, best={'test_e_recall@1': row}), finished=True)
    found = csv_rows(tmp_path / 'log.csv')
    assert list(found[0]) == ['epoch', 'train_loss', 'lr', 'seconds', 'test_e_recall@1', 'test_nmi']
    assert (found[0]['train_loss'], float(found[1]['test_e_recall@1']), found[1]['test_nmi']) == ('', 1 / 3, 'nan')
    assert (found[2]['epoch'], found[2]['train_loss'], found[2]['test_e_recall@1']) == ('2', '0.1', '')
    assert csv_rows(tmp_path / 'spectrum.csv')[1] == {'epoch': '1', 'split': 'test', '1': '0.75', '2': '0.25'}
    stored = sqlite3.connect(tmp_path / 'records.sqlite')
    assert stored.execute('SELECT epoch, "test_e_recall@1" FROM log').fetchall() == [(0, .5), (1, 1 / 3), (2, None)]
    assert stored.execute('SELECT number, value FROM spectrum WHERE epoch = 1').fetchall() == [(1, .75), (2, .25)]
    summary = __import__('json').loads((tmp_path / 'summary.json').read_text())
    assert summary['last_epoch']['epoch'] == 1 and summary['best_by_validation'] is None and summary['finished']
    assert summary['best_on_test'] == summary['last_epoch'] and summary['last_epoch']['test_nmi'] is None
    assert 'epoch   1  loss 0.1000  test_e_recall@1 0.3333' in capsys.readouterr().out


def test_without_tensorboard_a_line_says_so(opt, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backends.importlib.util, 'find_spec', lambda name: None)
    assert backends.select(opt(), tmp_path, {}, 0) == [] and 'TensorBoard is not installed' in capsys.readouterr().out
    with pytest.raises(UserError, match='--log_online: wandb is not installed: pip install wandb'):
        backends.check(opt(log_online=True))
    backends.check(opt(log_online=True, online_backend='none'))


# Checkpoints

UNCHANGED = (lambda settings, merging: [], lambda epoch: False)


def make(tmp_path, n=3):
    torch.manual_seed(0)
    model, criterion = torch.nn.Linear(n, 1), torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()])
    parts = {'model': model, 'criterion': criterion, 'optimizer': optimizer}
    return Checkpoint(tmp_path, {'lr': 1}, ['e_recall@1'], parts, state_of(*parts.values(), **parts))


def test_the_best_by_each_metric_and_split_are_kept(tmp_path):
    state = make(tmp_path)
    for epoch, (val, test) in enumerate([(.1, .3), (math.nan, .5), (.3, .4), (.2, .5)]):
        state.parts['model'].bias.data.fill_(epoch)
        state.save(epoch, {'epoch': epoch, 'val_e_recall@1': val, 'test_e_recall@1': test})
    best = {name: checkpoint.load(tmp_path / f'checkpoint_{name}.pt') for name in ('val_e_recall@1', 'test_e_recall@1')}
    assert [part['epoch'] for part in best.values()] == [2, 1]             # the first of equals
    by_val = best['val_e_recall@1']
    assert by_val['model']['bias'].item() == 2 and by_val['row']['test_e_recall@1'] == .4
    again = make(tmp_path)
    assert again.resume(*UNCHANGED) == 4 and str(again.best) == str(state.best) and again.row['epoch'] == 3
    assert again.parts['model'].bias.item() == 3
    assert checkpoint.find(tmp_path) == tmp_path / 'checkpoint_last.pt'


def test_a_checkpoint_that_does_not_fit_or_is_none_is_refused(tmp_path):
    assert make(tmp_path).resume(*UNCHANGED) == 0
    make(tmp_path).save(0, {'epoch': 0})
    with pytest.raises(UserError, match='--resume .*: its model does not fit the flags given now: .*size mismatch'):
        make(tmp_path, n=4).resume(*UNCHANGED)
    with pytest.raises(UserError, match='there is no checkpoint'):
        checkpoint.find(tmp_path / 'nowhere')
    torch.save({'a': torch.zeros(1)}, tmp_path / 'x.pt')
    with pytest.raises(UserError, match='weights of a backbone are passed'):
        checkpoint.load(tmp_path / 'x.pt')


# Run folders

def test_a_run_folder_is_made_whole_and_never_overwritten(opt, tmp_path, monkeypatch):
    description = {'hash': 'abc', 'splits': {}, 'image_hashes': {}}
    flags = opt(save_path=str(tmp_path), group='G', seed=4)
    names = [run_folder.create(flags, {'lr': 1e-5, 'tau': [1]}, ['--lr', '1e-5'], description).name for _ in range(3)]
    assert names == ['G_s4', 'G_s4_1', 'G_s4_2']
    folder = tmp_path / 'cub200' / 'G_s4'
    config = run_folder.read(folder)
    assert config['flags'] == {'lr': 1e-5, 'tau': [1]} and config['command'] == 'python main.py --lr 1e-5'
    assert config['split_hash'] == 'abc' and config['versions']['torch'] == torch.__version__.split('+')[0]
    assert config['versions']['threads'] == torch.get_num_threads()
    assert config['versions']['processor'] == run_folder.processor() != ''
    assert config['versions']['instructions'] == torch.backends.cpu.get_cpu_capability()
    assert {file.name for file in folder.iterdir()} == {'config.yaml', 'splits.yaml'}
    assert yaml.safe_load((folder / 'splits.yaml').read_text()) == description
    run_folder.note_resumption(folder, {'lr': 1e-4, 'tau': [1]}, [], 7, description)
    resumed, = run_folder.read(folder)['resumed']
    assert resumed['changed_flags'] == {'lr': {'from': 1e-5, 'to': 1e-4}} and resumed['at_epoch'] == 7
    with pytest.raises(UserError, match='the data have other classes or numbers of images'):
        run_folder.require_same_data(folder, {'hash': 'other'})
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='--save_path .*: no folder can be made there'):
        run_folder.create(opt(save_path=str(tmp_path / 'file')), {}, [], description)
    (folder / 'config.yaml').write_text('a: 1')
    with pytest.raises(UserError, match='not the config.yaml of a run folder'):
        run_folder.read(folder)


def test_a_name_that_another_process_takes_in_between(opt, tmp_path, monkeypatch):
    rename, taken = Path.rename, []

    def late(path, place):
        if not taken:
            taken.append(place)
            (place / 'other').mkdir(parents=True)
        return rename(path, place)

    monkeypatch.setattr(Path, 'rename', late)
    description = {'hash': 'abc', 'splits': {}, 'image_hashes': {}}
    assert run_folder.create(opt(save_path=str(tmp_path), group='G', seed=4), {}, [], description).name == 'G_s4_1'


def test_secrets_are_cut_out_of_the_command():
    kept = ['--bs', '2', '--group', 'wandb_key', '--lr', '1']               # a name that is also that of the flag
    given = [*kept[:2], '--wandb_key', 'k', '--wandb_key=k', *kept[2:]]
    assert run_folder.without_secrets(given, ('wandb_key',)) == kept


@pytest.mark.skipif(not shutil.which('git'), reason='needs git')
def test_the_commit_has_a_plus_where_files_differ_from_it(monkeypatch, tmp_path):
    code = tmp_path / 'code.py'
    code.write_text('1')
    for command in ('init -q', 'add code.py', '-c user.name=A -c user.email=a@b commit -q -m first'):
        subprocess.run(['git', *command.split()], cwd=tmp_path, check=True)
    monkeypatch.setattr(run_folder, '__file__', str(code))
    (tmp_path / 'untracked').write_text('')
    commit = run_folder.git_commit()
    assert re.fullmatch('[0-9a-f]{40,}', commit)
    code.write_text('2')
    assert run_folder.git_commit() == f'{commit}+'


def test_outside_a_git_checkout_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(run_folder, '__file__', str(tmp_path / 'x.py'))
    assert run_folder.git_commit() is None
    monkeypatch.setenv('PATH', '')
    assert run_folder.git_commit() is None


# Devices

def test_devices(opt, monkeypatch, capsys):
    chosen = []
    monkeypatch.setattr(device.processes, 'accelerator', lambda: None)
    monkeypatch.setattr(torch.backends.mps, 'is_available', lambda: False)
    flags = opt()
    for wanted in ('auto', 'cpu'):
        flags.device = wanted
        assert device.select(flags) == torch.device('cpu')
    assert capsys.readouterr() == ('', 'No GPU found: running on the CPU.\n')
    for wanted in ('cuda', 'mps'):
        flags.device = wanted
        with pytest.raises(UserError, match=f'--device {wanted}: not available'):
            device.select(flags)
    flags.gpu, flags.device, flags.given = [0, 1], 'cpu', []                 # of the run folder of several processes
    assert device.select(flags) == torch.device('cpu')
    flags.given = ['gpu']
    with pytest.raises(UserError, match='--gpu 0 1: a run uses one GPU'):
        device.select(flags)
    monkeypatch.setattr(device.processes, 'accelerator', lambda: 'cuda')
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'set_device', chosen.append)
    flags.device, flags.gpu = 'auto', [1]
    assert device.select(flags) == torch.device('cuda', 1) and chosen == [1]
    flags.gpu = [2]
    with pytest.raises(UserError, match='--gpu 2: this machine has 2 GPU'):
        device.select(flags)
    flags.given = []                                             # of a run folder, from a machine with more GPUs
    assert device.select(flags) == torch.device('cuda', 0)

"""Runs that are stopped, in any way and at any moment, and continued: they end as if they had never been stopped."""
import functools
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
from unittest import mock

import numpy as np
import pytest
import torch
import yaml

import main
from records import checkpoint, reading, run_folder
from tests.blank.plots import MAIN
from tests.conftest import draw_classes
from tests.helpers import ROOT, assert_same_end, executed, folder_of, rows_of, started, wait_for

# Killed at any write, before or after the file takes its place; a child process per attempt, forked from one that has
# imported everything. argv: a JSON list of command lines; each runs in a child that is killed at the n-th write.
KILLER = """
import json, os, signal, sys
import main

for arguments, kill_at, before in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        count, replace = 0, os.replace
        def counting(source, target):
            global count
            count += 1
            if count == kill_at and before:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        os.replace = counting
        code = main.main(arguments)
        print('writes', count, flush=True)
        os._exit(code)
    print('ended', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def attempts(folder, plan):
    """Runs the plan; returns the exit codes (negative: the signal) and how many writes those had that ended."""
    code, out, error = executed(folder, KILLER, json.dumps(plan))
    assert code == 0, error
    lines = [line.split() for line in out.splitlines() if line]
    return tuple([int(line[1]) for line in lines if line[0] == wanted] for wanted in ('ended', 'writes'))


def test_killed_at_any_write_and_resumed_it_ends_as_if_never_stopped(quick, tmp_path):
    arguments = [*quick, '--batch_mining', 'random', '--kernels', '2', '--evaluation_metrics',
                 'e_recall@1', 'map_at_r', 'rho_spectrum@0']
    codes, (n_writes,) = attempts(tmp_path, [[arguments, 0, False]])
    whole = folder_of(tmp_path)
    assert codes == [0] and n_writes > 15
    points = {f'n{n}{before}': (n, before) for n in range(1, n_writes + 1) for before in (True, False)}
    points = dict(list(points.items())[:8] + list(points.items())[8::5])
    plan = []
    for name, point in points.items():
        plan.append([[*arguments, '--group', name], *point])
        plan.append([['--resume', str(folder_of(tmp_path, f'{name}_s1'))], 0, False])
    codes, _ = attempts(tmp_path, plan)
    assert codes[::2] == [-signal.SIGKILL] * len(points)
    for (name, (n, _)), code in zip(points.items(), codes[1::2], strict=True):
        folder = folder_of(tmp_path, f'{name}_s1')
        if not folder.exists():
            assert n <= 2 and code == 2                          # killed while the folder was being made: no run yet
            continue
        assert code == 0
        assert_same_end(whole, folder)
        assert json.loads((folder / 'summary.json').read_text())['finished']
        assert not list(folder.glob('.*')), 'no temporary file is left'


def test_killed_again_and_again_at_random_moments(quick, tmp_path):
    """The children get random times, at first too short for anything; at last the run is through."""
    arguments = [*quick, '--n_epochs', '6', '--kernels', '2']
    start = functools.partial(started, tmp_path / 'printed', MAIN)
    assert start(*arguments).wait() == 0
    folder = folder_of(tmp_path, 'killed_s1')
    command = [*arguments, '--group', 'killed']
    random = np.random.default_rng(0)
    for attempt in range(30):
        process = start(*command)
        try:
            code = process.wait(random.uniform(0.2, 2 + attempt))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        else:
            assert code == 0
            break
        if folder.exists():
            command = ['--resume', str(folder)]
    assert code == 0
    assert_same_end(folder_of(tmp_path), folder)


def test_a_finished_run_is_extended_and_other_changes_are_noted(quick, run, tmp_path):
    assert run(*quick, '--n_epochs', '4', '--group', 'long', '--scheduler', 'step', '--tau', '3') == 0
    assert run(*quick, '--n_epochs', '2', '--scheduler', 'step', '--tau', '3') == 0
    folder = folder_of(tmp_path)
    assert run('--resume', folder) == 0                                   # nothing is left to do
    assert run('--resume', folder, '--n_epochs', '4') == 0
    assert_same_end(folder_of(tmp_path, 'long_s1'), folder)
    resumed = yaml.safe_load((folder / 'config.yaml').read_text())['resumed']
    assert [entry['changed_flags'] for entry in resumed] == [{}, {'n_epochs': {'from': 2, 'to': 4}}]
    assert run('--resume', folder, '--n_epochs', '5', '--lr', '0.1') == 0
    entry = yaml.safe_load((folder / 'config.yaml').read_text())['resumed'][-1]
    assert entry['changed_flags']['lr'] == {'from': .001, 'to': .1} and entry['at_epoch'] == 5
    assert '--lr 0.1' in entry['command']


@pytest.mark.parametrize('flags', [
    '--loss margin+proxyanchor --loss_weights 1 0.5 --batch_mining distance+none --loss_proxyanchor_lrmulti 10',
    '--loss contrastive+softmax --batch_mining all --xbm_size 50 --xbm_start 2',
    '--loss pml:ProxyNCALoss --batch_mining none --loss_pml_lr 0.1 --loss_pml_args "{softmax_scale: 2}" '
    '--optim rmsprop --embed_optim adam --loss_optim sgd --scheduler cosine',
    '--loss triplet --batch_mining pml:MultiSimilarityMiner --dr_weight 0.3',
    '--cascade 1 2 --embed_dim 24 --loss margin+softmax --batch_mining distance+none',
    '--matryoshka 4 16 --loss contrastive+softmax --batch_mining distance+none --xbm_size 30 --xbm_start 2',
    '--daml --daml_layers 20 --daml_delay 4 --loss margin+softmax --batch_mining distance+none',
    '--warmup 2 --optim adamw', '--warmup 1 --optim adamw',
    '--pool gem --embed_norm batch --embed_norm_affine --embed_init pca --warmup 1',
], ids=['sum', 'memory', 'library', 'direction', 'cascade', 'prefixes', 'synthetic negatives',
        'in the warm-up', 'after the warm-up', 'head'])
def test_parts_of_all_kinds_are_continued(flags, quick, run, tmp_path):
    if 'pml' in flags:
        pytest.importorskip('pytorch_metric_learning')
    arguments = [*quick, *shlex.split(flags)]
    assert run(*arguments, '--n_epochs', '2', '--group', 'whole') == 0
    assert run(*arguments, '--n_epochs', '1') == 0
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 0
    assert_same_end(folder_of(tmp_path, 'whole_s1'), folder_of(tmp_path))


@pytest.mark.parametrize('flags, change', [
    ('--loss contrastive --batch_mining all --xbm_size 50 --xbm_start 0', ('xbm_size', 50, 60)),
    ('--batch_mining parametric --miner_parametric_adapt --use_tv_split --tv_split_by_samples',
     ('miner_parametric_n_support', 30, 20)),
    ('', ('optim', 'adam', 'sgd')), ('', ('seed', 1, 2)), ('', ('loss_margin_beta', 1.2, 1.3)),
], ids=['memory', 'support', 'optimizer', 'seed', 'loss'])
def test_a_resume_names_the_flags_that_cannot_change(flags, change, quick, run, tmp_path, capsys):
    assert run(*quick, *flags.split(), '--n_epochs', '1') == 0
    flag, before, after = change
    config = (folder_of(tmp_path) / 'config.yaml').read_bytes()
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2', f'--{flag}', after) == 2
    error = capsys.readouterr().err
    assert f'cannot change within a run: --{flag} {after} (was {before})' in error
    assert 'state_dict' not in error and len(error.splitlines()) == 1
    assert (folder_of(tmp_path) / 'config.yaml').read_bytes() == config


@pytest.mark.parametrize('flags', [
    '--scheduler step --tau 2 4 --lr 0.01 --fc_lr 0.02 --decay 0.1 --gamma 0.5', '--scheduler cosine --n_epochs 6',
    '--scheduler none --loss_decay 0.3 --loss_margin_beta_lr 0.7', '--scheduler onecycle --onecycle_peak 0.5',
    '--scheduler cosine --lr_floor 0.2 --lr_warmup 4',
])
def test_flags_changed_at_a_resume_are_those_in_force(flags, quick, run, tmp_path, monkeypatch):
    """From the first resumed epoch on, rates and decays are those of a run that had the flags from its start."""
    seen = {}

    def trained(opt, built, loader, epoch):
        built.schedule.at((epoch - 1) * built.schedule.n_steps + 1)
        seen.setdefault(opt.group, {})[epoch] = [
            (group['lr'], group['weight_decay']) for group in built.optimizer.param_groups]
        return train_epoch(opt, built, loader, epoch)

    train_epoch = main.train_epoch
    monkeypatch.setattr(main, 'train_epoch', trained)
    arguments = [*quick, '--eval_every', '9']
    assert run(*arguments, '--scheduler', 'cosine', '--n_epochs', '2') == 0
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '5', *flags.split()) == 0
    assert run(*arguments, '--n_epochs', '5', *flags.split(), '--group', 'fresh') == 0
    assert len(seen['fresh']) > 4 and len({rates[0] for rates in seen['fresh'].values()}) > ('none' not in flags)
    for epoch in range(3, len(seen['fresh']) + 1):
        assert seen['quick'][epoch] == seen['fresh'][epoch]
    rows, fresh = ({int(row['epoch']): row for row in rows_of(folder_of(tmp_path, name))}
                   for name in ('quick_s1', 'fresh_s1'))
    assert float(rows[3]['lr']) == float(fresh[3]['lr']) > 0               # of the last step of the epoch


def test_a_merged_resume_goes_on_with_what_fits_and_is_kept_apart(quick, run, tmp_path, monkeypatch, capsys):
    """Also where it is stopped before its first epoch ends, and continued without the flags."""
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1']
    assert run(*arguments, '--n_epochs', '1') == 0
    folder, whole = folder_of(tmp_path), folder_of(tmp_path, 'whole')
    shutil.copytree(folder, whole)
    changed = ['--bs', '8', '--augmentation', 'adv', '--loss_margin_margin', '.3', '--adam_betas', '.8', '.99']
    assert run('--resume', folder, '--n_epochs', '3', *changed) == 2
    assert 'add --merge_argparse_when_resuming' in capsys.readouterr().err
    changed.append('--merge_argparse_when_resuming')
    assert run('--resume', folder, *changed, '--embed_dim', '8', '--use_tv_split') == 2
    error = capsys.readouterr().err
    assert 'cannot change within a run: --use_tv_split True (was False), --embed_dim 8 (was 16)' in error
    with monkeypatch.context() as patch:
        patch.setattr(main, 'train_epoch', mock.Mock(side_effect=KeyboardInterrupt))
        assert run('--resume', folder, '--n_epochs', '3', *changed) == 130
    assert run('--resume', folder) == 0 and run('--resume', whole, '--n_epochs', '3', *changed) == 0
    assert 'start fresh' not in capsys.readouterr().out
    assert_same_end(whole, folder)
    group, = {state['betas'] for state in checkpoint.load(folder / 'checkpoint_last.pt')['optimizer']['param_groups']}
    assert group == (.8, .99)
    begun, = run_folder.read(folder)['merged']
    assert begun['at_epoch'] == 2 and begun['flags']['bs'] == {'from': 12, 'to': 8} and len(begun['flags']) == 4
    assert reading.read(folder).group.startswith('quick (augmentation adv, bs 8, ')
    assert run('--reproduce', folder, '--n_epochs', '0') == 0
    assert 'changed its settings within the run: augmentation adv, bs 8' in capsys.readouterr().out
    assert run(*arguments, '--bs', '8', '--n_epochs', '0', '--auto_resume', '--untrained', folder) == 0
    assert rows_of(folder_of(tmp_path, 'quick_s1_2'))[0] == rows_of(folder)[0]


def test_a_merged_resume_names_the_parts_that_start_fresh(quick, run, tmp_path, capsys):
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1', '--data_sampler', 'd2_coreset',
                 '--data_batchmatch_bigbs', '20']
    assert run(*arguments, '--n_epochs', '1') == 0
    changed = ['--optim', 'adamw', '--loss', 'contrastive', '--batch_mining', 'all', '--xbm_size', '20', '--xbm_start',
               '0', '--data_sampler_lowproj_dim', '4', '--ema', '.9', '--amp', 'bfloat16', '--freeze', '1']
    capsys.readouterr()
    assert run('--resume', folder_of(tmp_path), '--merge_argparse_when_resuming', '--n_epochs', '2', *changed) == 0
    assert "start fresh: criterion, optimizer, the sampler's memory bank\n" in capsys.readouterr().out
    states = checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    assert states['optimizer']['param_groups'][0]['decoupled_weight_decay']
    assert states['storage']['embeddings'].shape[1] == 4
    distances = [(states['ema'][name] - value).abs().max() for name, value in states['model'].items()
                 if 'running' not in name]
    assert max(distances) < .01                                   # the average began at the weights of epoch 1
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '3') == 0
    assert 'start fresh' not in capsys.readouterr().out


def test_a_run_starts_from_a_trained_network(quick, run, tmp_path, capsys):
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1', 'nmi']
    assert run(*arguments, '--lr', '.01') == 0
    trained, folder = folder_of(tmp_path), folder_of(tmp_path, 'on_s1')
    start = [*arguments, '--start_from', trained, '--group', 'on', '--n_epochs', '1', '--loss', 'contrastive']
    assert run(*start, '--batch_mining', 'all') == 0
    names = ('test_e_recall@1', 'test_nmi')
    assert [rows_of(folder)[0][name] for name in names] == [rows_of(trained)[2][name] for name in names]
    digest = hashlib.sha256((trained / 'checkpoint_last.pt').read_bytes()).hexdigest()
    assert run_folder.read(folder)['files'] == {'start_from': digest[:16]}
    capsys.readouterr()
    for flags, sentence in (
            (['--embed_dim', '8'], 'do not fit the network of this run; it has --embed_dim 16 (here 8)'),
            (['--start_from', tmp_path], f'--start_from: {tmp_path}: there is no checkpoint')):
        assert run(*start, '--batch_mining', 'all', *flags) == 2 and sentence in capsys.readouterr().err
    shutil.rmtree(trained)
    assert run('--resume', folder, '--n_epochs', '2') == 0         # it has its own weights


def test_a_resume_never_loses_records(quick, run, tmp_path, capsys):
    assert run(*quick) == 0
    folder = folder_of(tmp_path)
    names = ('log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json')
    before = {name: (folder / name).read_bytes() for name in names}
    assert run('--resume', folder, '--n_epochs', '1') == 2 and 'has trained 2 epochs already' in capsys.readouterr().err
    (folder / 'checkpoint_last.pt').unlink()
    assert run('--resume', folder) == 2
    assert 'records up to epoch 2, but no checkpoint_last.pt' in capsys.readouterr().err
    assert before == {name: (folder / name).read_bytes() for name in names}


def test_resume_refuses_what_is_no_run_or_does_not_fit(quick, run, tmp_path, capsys):
    def refused(*arguments):
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) <= 2 and 'Traceback' not in error
        return error

    assert run(*quick) == 0
    folder = folder_of(tmp_path)
    assert 'not a run folder' in refused('--resume', tmp_path)
    error = refused('--resume', folder, '--embed_dim', '7')
    assert 'cannot change within a run: --embed_dim 7 (was 16)' in error
    (tmp_path / 'other.yaml').write_text('embed_dim: 7')
    assert refused('--resume', folder, '--config', tmp_path / 'other.yaml') == error
    (tmp_path / 'other').mkdir()
    assert 'other classes or numbers of images' in refused(
        '--resume', folder, '--source_path', draw_classes(tmp_path / 'other' / 'images', 14, 6).parent)
    assert 'give one of them' in refused('--resume', folder, '--reproduce', folder)
    (folder / 'checkpoint_last.pt').write_bytes(b'broken')
    assert 'not a checkpoint' in refused('--resume', folder)


def test_a_flag_of_an_earlier_version_is_refused_only_where_it_had_an_effect(quick, run, tmp_path, capsys):
    assert run(*quick, '--n_epochs', '1') == 0
    folder = folder_of(tmp_path)
    for changed, code in (({'augment_on_gpu': False, 'class_sample_rate': 1.0, 'knn_approx': True}, 0),
                          ({'class_sample_rate': 0.5}, 2),
                          ({'class_sample_rate': 1.0, 'augment_on_gpu': True}, 2)):
        config = run_folder.read(folder)
        flags = config['flags'] | changed
        run_folder.write_checked(folder / 'config.yaml', config | {'flags': flags})
        capsys.readouterr()
        assert run('--resume', folder, '--n_epochs', '2') == code
        name, value = [*changed.items()][-1]
        sentence = f'{folder}: it has --{name} {value}, a flag that this version no longer has'
        assert (sentence in capsys.readouterr().err) == bool(code)


def test_resume_refuses_a_file_of_a_flag_that_has_changed(quick, run, tmp_path, monkeypatch, capsys):
    """Also where the checkpoint has its weights; another place of the same file is fine, and a missing one."""
    assert run(*quick, '--n_epochs', '0') == 0
    backbone = {name.removeprefix('backbone.'): value for name, value in checkpoint.load(
        folder_of(tmp_path) / 'checkpoint_last.pt')['model'].items() if name.startswith('backbone.')}
    torch.save(backbone, tmp_path / 'weights.pt')
    assert run(*quick, '--n_epochs', '1', '--weights', tmp_path / 'weights.pt', '--group', 'own') == 0
    folder = folder_of(tmp_path, 'own_s1')
    shutil.move(tmp_path / 'weights.pt', tmp_path / 'moved.pt')
    assert run('--resume', folder, '--n_epochs', '2', '--weights', tmp_path / 'moved.pt') == 0
    torch.save(backbone | {'more': torch.zeros(1)}, tmp_path / 'moved.pt')
    assert run('--resume', folder, '--n_epochs', '3') == 2
    assert 'the file of --weights has changed since the run began' in capsys.readouterr().err
    (tmp_path / 'moved.pt').unlink()
    assert run('--resume', folder, '--n_epochs', '3') == 0


def test_resume_refuses_changed_data_of_equal_classes(quick, run, patterns, tmp_path, capsys):
    """Files, labels, boxes, groups and order count; the place of the data and columns that nothing reads do not."""
    rows = [[f'images/{c}/{i}.png', c, str(i), '0', '0', '20', '20'] for c in ('class_00', 'class_01', 'class_02',
                                                                              'class_03') for i in range(6)]

    def write(changed, header='path,label,group,x1,y1,x2,y2'):
        (tmp_path / 'list.csv').write_text('\n'.join([header, *map(','.join, changed)]))

    def with_value(column, value, at=0):
        return [[*row[:column], value, *row[column + 1:]] if i == at else row for i, row in enumerate(rows)]

    write(rows)
    assert run(*quick, '--csv', tmp_path / 'list.csv', '--bs', '4', '--n_epochs', '1', '--label_noise', '.2',
               '--eval_level', 'class', 'across', '--evaluation_metrics', 'e_recall@1') == 0
    labels = [row[1] for row in rows]
    labels[0], labels[6] = labels[6], labels[0]
    for changed, what in ((with_value(5, '19'), 'boxes'), (with_value(2, '7'), 'groups'), (rows[::-1], 'files, labels'),
                          ([[row[0], label, *row[2:]] for row, label in zip(rows, labels, strict=True)], 'labels'),
                          (with_value(0, 'images/class_05/0.png'), 'files, or another order of images,')):
        write(changed)
        capsys.readouterr()
        assert run('--resume', folder_of(tmp_path), '--n_epochs', '2') == 2
        assert f'the data have other {what}' in capsys.readouterr().err
    shutil.copytree(patterns / 'images', tmp_path / 'moved' / 'images')
    write([[*row, 'x'] for row in rows], 'path,label,group,x1,y1,x2,y2,remark')
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '2', '--source_path', tmp_path / 'moved') == 0


@pytest.mark.parametrize('how', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_resumable_run(how, quick, tmp_path):
    log = tmp_path / 'printed'
    process = started(log, ROOT / 'main.py', *quick, '--n_epochs', '500', '--kernels', '2')
    folder = folder_of(tmp_path)
    wait_for(lambda: (folder / 'log.csv').exists() and len(rows_of(folder)) >= 4)
    os.kill(process.pid, how)
    assert process.wait(timeout=60) == 130 and f'To continue: python main.py --resume {folder}' in log.read_text()
    assert str(ROOT) not in log.read_text()                                # no traceback through this program
    epoch = checkpoint.load(folder / 'checkpoint_last.pt')['epoch']
    assert main.main(['--resume', str(folder), '--n_epochs', str(epoch + 1)]) == 0

"""Runs that are stopped, in any way and at any moment, and continued: they end as if they had never been stopped."""
import hashlib
import json
import shlex
import shutil
import signal
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import save_file

import configuration
import main
import parameters
from flags import command_line
from records import checkpoint, reading, run_folder
from tests.conftest import draw_classes, quick_flags
from tests.helpers import (
    assert_resumes_exactly,
    assert_same_end,
    executed,
    folder_of,
    kept_by,
    rows_of,
)

FEW = ['--evaluation_metrics', 'e_recall@1', 'nmi', 'rho_spectrum@0']

# Killed at any write, before or after the file takes its place; a child process per attempt, forked from one that has
# imported everything. argv: a JSON list of command lines; each runs in a child that is killed at the n-th write.
KILLER = """
import json, os, signal, sys
import configuration
import main
import parameters

main.parameters.build()
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
    arguments = [*quick, *FEW, '--batch_mining', 'random', '--iterations_per_epoch', '1']
    codes, (n_writes,) = attempts(tmp_path, [[arguments, 0, False]])
    whole = folder_of(tmp_path)
    assert codes == [0] and n_writes > 15
    points = {f'n{n}{before}': (n, before) for n in range(1, n_writes + 1) for before in (True, False)}
    points = dict(list(points.items())[:6] + list(points.items())[6::11])
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


@pytest.fixture(scope='module')
def trained(patterns, tmp_path_factory):
    """The folder of the run `quick`, of a schedule that the number of epochs determines."""
    place = tmp_path_factory.mktemp('trained')
    assert main.main([*quick_flags(patterns, place), *FEW, '--scheduler', 'cosine']) == 0
    return folder_of(place)


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the folder of a finished run."""
    return shutil.copytree(trained, folder_of(tmp_path))


@pytest.fixture
def refused(run, capsys):
    """refused(arguments): the error of a command line, of one or two lines."""
    def refused(*arguments):
        capsys.readouterr()
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) <= 2 and 'Traceback' not in error and 'state_dict' not in error
        return error
    return refused


def test_a_finished_run_is_extended_and_other_changes_are_noted(quick, run, tmp_path):
    quick = [*quick, *FEW, '--scheduler', 'step', '--tau', '1']
    assert run(*quick, '--group', 'long') == 0 and run(*quick, '--n_epochs', '1') == 0
    folder = folder_of(tmp_path)
    assert run('--resume', folder) == 0                                   # nothing is left to do
    assert run('--resume', folder, '--n_epochs', '2') == 0
    assert_same_end(folder_of(tmp_path, 'long_s1'), folder)
    resumed = yaml.safe_load((folder / 'config.yaml').read_text())['resumed']
    assert [entry['changed_flags'] for entry in resumed] == [{}, {'n_epochs': {'from': 1, 'to': 2}}]
    assert run('--resume', folder, '--n_epochs', '3', '--lr', '0.1', '--merge_argparse_when_resuming') == 0
    entry = yaml.safe_load((folder / 'config.yaml').read_text())['resumed'][-1]
    assert entry['changed_flags']['lr'] == {'from': .001, 'to': .1} and entry['at_epoch'] == 3
    assert '--lr 0.1' in entry['command']


@pytest.mark.parametrize('flags', [
    '--cascade 1 2 --embed_dim 24 --loss margin+softmax+contrastive --batch_mining distance+none+all --xbm_size 50 '
    '--xbm_start 2 --loss_weights 1 0.5 1 --optim rmsprop --embed_optim adam --loss_optim sgd --scheduler cosine',
    '--loss pml:ProxyNCALoss+triplet --batch_mining none+pml:MultiSimilarityMiner --loss_pml_lr 0.1 --loss_pml_args '
    '"{softmax_scale: 2}" --dr_weight 0.3 --warmup 1 --optim adamw',
    '--matryoshka 4 16 --loss contrastive+softmax --batch_mining distance+none --xbm_size 30 --xbm_start 2 '
    '--pool gem --embed_norm batch --embed_norm_affine --embed_init pca --warmup 1',
    '--daml --daml_layers 20 --daml_delay 4 --loss margin+proxyanchor --batch_mining distance+none --warmup 2 '
    '--loss_proxyanchor_lrmulti 10',
    '--loss linear_classifier+center --batch_mining none --loss_weights 1 0.1 --loss_linear_classifier_lr 0.01',
    '--loss triplet+margin --batch_mining parametric --miner_parametric_adapt --miner_parametric_update_every 1 '
    '--use_tv_split --tv_split_by_samples --tv_split_perc 0.5',
    '--loss triplet --batch_mining parametric --miner_parametric_adapt --miner_parametric_update_every 1 '
    '--miner_parametric_learning reinforce --use_tv_split --tv_split_by_samples --tv_split_perc 0.5',
    '--data_sampler fid_batchmatch --data_mb_mom 0.5 --data_sampler_lowproj_dim 8 --data_batchmatch_bigbs 24 '
    '--batch_mining random',
    '--distill ema --ema 0.7 --micro_bs 5 --views 2 --unsupervised --samples_per_class 1',
], ids=['cascade and optimizers', 'library after the warm-up', 'prefixes and head',
        'synthetic negatives in the warm-up', 'centres', 'policies', 'policies by reinforce',
        'memory bank of a sampler', 'average of views'])
def test_parts_of_all_kinds_are_continued(flags, quick, run, tmp_path):
    if 'pml' in flags:
        pytest.importorskip('pytorch_metric_learning')
    assert_resumes_exactly(run, tmp_path, [*quick, *FEW, *shlex.split(flags)])


def test_a_resume_names_the_flags_that_cannot_change(copied, refused, tmp_path):
    config = (copied / 'config.yaml').read_bytes()
    for flag, before, after in (('xbm_size', 0, 60), ('miner_parametric_n_support', 30, 20), ('optim', 'adam', 'sgd'),
                                ('seed', 1, 2), ('loss_margin_beta', 1.2, 1.3), ('embed_dim', 16, 7), ('ema', None, .6),
                                ('amp', 'none', 'bfloat16')):
        error = refused('--resume', copied, '--n_epochs', '3', f'--{flag}', after)
        assert f'cannot change within a run: --{flag} {after} (was {before})' in error
    (tmp_path / 'other.yaml').write_text('amp: bfloat16\nn_epochs: 3')
    assert refused('--resume', copied, '--config', tmp_path / 'other.yaml') == error
    assert (copied / 'config.yaml').read_bytes() == config


@pytest.mark.parametrize('flag', ['--resume', '--reproduce'])
def test_a_checkpoint_in_the_place_of_a_run_folder_is_named(flag, copied, refused):
    file = copied / 'checkpoint_last.pt'
    assert f'{flag} {file}: expected a run folder, not a file; a checkpoint starts a run' in refused(flag, file)


@pytest.mark.parametrize('flags', [
    '--scheduler step --tau 2 3 --lr 0.01 --fc_lr 0.02 --decay 0.1 --gamma 0.5', '--scheduler onecycle --n_epochs 5',
    '--scheduler none --loss_decay 0.3 --loss_margin_beta_lr 0.7', '--scheduler cosine --lr_floor 0.2 --lr_warmup 4',
])
def test_flags_changed_at_a_resume_are_those_in_force(flags, copied, quick, run, tmp_path, monkeypatch):
    """From the first resumed epoch on, rates and decays are those of a run that had the flags from its start."""
    seen = {}

    def trained(opt, built, loader, epoch):
        built.schedule.at((epoch - 1) * built.schedule.n_steps + 1)
        seen.setdefault(opt.group, {})[epoch] = [
            (group['lr'], group['weight_decay']) for group in built.optimizer.param_groups]
        return train_epoch(opt, built, loader, epoch)

    train_epoch = main.train_epoch
    monkeypatch.setattr(main, 'train_epoch', trained)
    flags = ['--n_epochs', '4', '--eval_every', '9', *flags.split()]
    assert run('--resume', copied, '--merge_argparse_when_resuming', *flags) == 0
    assert run(*quick, *FEW, *flags, '--group', 'fresh') == 0
    assert len(seen['fresh']) > 3 and len({rates[0] for rates in seen['fresh'].values()}) > ('none' not in flags)
    for epoch in range(3, len(seen['fresh']) + 1):
        assert seen['quick'][epoch] == seen['fresh'][epoch]
    rows, fresh = ({int(row['epoch']): row for row in rows_of(folder_of(tmp_path, name))}
                   for name in ('quick_s1', 'fresh_s1'))
    assert float(rows[3]['lr']) == float(fresh[3]['lr']) > 0               # of the last step of the epoch


def test_a_merged_resume_goes_on_with_what_fits_and_is_listed(quick, run, tmp_path, monkeypatch, capsys):
    """Also where it is stopped before its first epoch ends, and continued without the flags."""
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1']
    assert run(*arguments, '--n_epochs', '1') == 0
    folder, whole = folder_of(tmp_path), folder_of(tmp_path, 'whole')
    shutil.copytree(folder, whole)
    changed = ['--bs', '8', '--clip_grad', '1', '--loss_margin_margin', '.3', '--optim_args', '{betas: [.8, .99]}',
               '--augmentation', 'red']
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
    groups = checkpoint.load(folder / 'checkpoint_last.pt')['optimizer']['param_groups']
    assert all([*group['betas']] == [.8, .99] for group in groups), groups[0]['betas']
    begun, = run_folder.read(folder)['merged']
    assert begun['at_epoch'] == 2 and begun['flags']['bs'] == {'from': 12, 'to': 8} and len(begun['flags']) == 5
    assert reading.read(folder).merged and reading.read(whole).merged


def test_a_merged_resume_names_the_parts_that_start_fresh(quick, run, tmp_path, capsys):
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1', '--data_sampler', 'd2_coreset',
                 '--data_batchmatch_bigbs', '20']
    assert run(*arguments, '--n_epochs', '1') == 0
    changed = ['--optim', 'adamw', '--loss', 'contrastive', '--batch_mining', 'all', '--xbm_size', '20', '--xbm_start',
               '0', '--data_sampler_lowproj_dim', '4', '--ema', '.9', '--amp', 'bfloat16', '--warmup', '1']
    capsys.readouterr()
    assert run('--resume', folder_of(tmp_path), '--merge_argparse_when_resuming', '--n_epochs', '2', *changed) == 0
    assert "start fresh: criterion, optimizer, sampler\n" in capsys.readouterr().out
    states = checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    assert states['optimizer']['param_groups'][0]['decoupled_weight_decay']
    assert kept_by(folder_of(tmp_path), 'sampler.storage')['embeddings'].shape[1] == 4
    distances = [(states['ema'][name] - value).abs().max() for name, value in states['model'].items()
                 if 'running' not in name]
    assert max(distances) < .01                                   # the average began at the weights of epoch 1
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '3') == 0
    assert 'start fresh' not in capsys.readouterr().out


def test_a_run_starts_from_a_trained_network(copied, quick, refused, run, tmp_path):
    folder, names = folder_of(tmp_path, 'on_s1'), ('test_e_recall@1', 'test_nmi')
    start = [*quick, *FEW, '--start_from', copied, '--group', 'on', '--n_epochs', '1', '--loss', 'contrastive',
             '--batch_mining', 'all']
    assert run(*start) == 0
    assert [rows_of(folder)[0][name] for name in names] == [rows_of(copied)[2][name] for name in names]
    digest = hashlib.sha256((copied / 'checkpoint_last.pt').read_bytes()).hexdigest()
    assert run_folder.read(folder)['files'] == {'start_from': digest[:16]}
    assert 'its weights do not fit the network of this run' in refused(*start, '--embed_dim', '8')
    assert f'--start_from: {tmp_path}: there is no checkpoint' in refused(*start, '--start_from', tmp_path)
    shutil.rmtree(copied)
    assert run('--resume', folder, '--n_epochs', '2') == 0         # it has its own weights


@pytest.mark.parametrize('wrap', [
    lambda state: state, lambda state: {'net': {f'module.{name}': value for name, value in state.items()}, 'epoch': 3},
    lambda state: {'teacher': {name.replace('.', '._orig_mod.', 1): value for name, value in state.items()}}])
def test_a_run_starts_from_weights_that_another_program_saved(wrap, copied, quick, refused, run, tmp_path):
    state = checkpoint.load(copied / 'checkpoint_last.pt')['model']
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / 'own.safetensors')
    assert run(*quick, *FEW, '--start_from', tmp_path / 'own.safetensors', '--group', 'safe', '--n_epochs', '0') == 0
    torch.save(wrap(state), file := tmp_path / 'own.pth')
    start = [*quick, *FEW, '--start_from', file, '--group', 'on', '--n_epochs', '0']
    assert run(*start) == 0
    assert rows_of(folder_of(tmp_path, 'safe_s1'))[0]['test_e_recall@1'] == rows_of(copied)[2]['test_e_recall@1']
    assert rows_of(folder_of(tmp_path, 'on_s1'))[0]['test_e_recall@1'] == rows_of(copied)[2]['test_e_recall@1']
    assert 'do not fit the network of this run (--weights takes' in refused(*start, '--embed_dim', '8')
    del state['f_embed.weight']
    torch.save(wrap(state), file)
    assert 'f_embed.weight' in refused(*start)


def test_a_resume_never_loses_records(copied, refused):
    names = ('log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json')
    before = {name: (copied / name).read_bytes() for name in names}
    assert 'has trained 2 epochs already' in refused('--resume', copied, '--n_epochs', '1')
    (copied / 'checkpoint_last.pt').unlink()
    assert 'records up to epoch 2, but no checkpoint_last.pt' in refused('--resume', copied)
    assert before == {name: (copied / name).read_bytes() for name in names}


def test_resume_refuses_what_is_no_run_or_does_not_fit(copied, refused, tmp_path):
    assert 'not a run folder' in refused('--resume', tmp_path)
    (tmp_path / 'other').mkdir()
    assert 'other classes or numbers of images' in refused(
        '--resume', copied, '--source_path', draw_classes(tmp_path / 'other' / 'images', 14, 6).parent)
    assert 'give one of them' in refused('--resume', copied, '--reproduce', copied)


def test_recorded_flags_that_no_longer_exist_are_left_out_with_one_note(copied, run, capsys):
    config = run_folder.read(copied)
    gone = {'adam_betas': [0.9, 0.99], 'knn_approx': True}
    run_folder.write_yaml(copied / 'config.yaml', config | {'flags': config['flags'] | gone})
    capsys.readouterr()
    assert run('--resume', copied, '--n_epochs', '3') == 0
    assert capsys.readouterr().err == (f'Note: {copied}: it was recorded with flags that do not exist here, which are '
                                       'left out: --adam_betas, --knn_approx\n')
    assert not run_folder.read(copied)['flags'].keys() & gone.keys()
    assert run('--resume', copied, '--n_epochs', '4') == 0 and 'do not exist' not in capsys.readouterr().err


@pytest.mark.parametrize('flag', ['--resume', '--reproduce', '--evaluate'])
def test_a_run_that_was_trained_with_a_removed_flag_is_refused(flag, copied, refused):
    config = run_folder.read(copied)
    run_folder.write_yaml(copied / 'config.yaml', config | {'flags': config['flags'] | {'mahalanobis': True}})
    assert (f'{copied}: it was trained with --mahalanobis True, which no longer exists; use the code of the git tag '
            'before-0.2') in refused(flag, copied)


def test_a_removed_flag_with_its_default_is_dropped_without_a_word(copied, run, capsys):
    config = run_folder.read(copied)
    gone = configuration.REMOVED | dict.fromkeys(configuration.REMOVED_WITHOUT_EFFECT, 'any value')
    pictures = {'pictures': ['utility', 'umap']}
    run_folder.write_yaml(copied / 'config.yaml', config | {'flags': config['flags'] | gone | pictures})
    capsys.readouterr()
    assert run('--resume', copied, '--n_epochs', '3') == 0
    assert capsys.readouterr().err == '' and run_folder.read(copied)['flags']['pictures'] == ['none']
    assert not run_folder.read(copied)['flags'].keys() & gone.keys()
    assert not gone.keys() & {*command_line.known_flags(parameters.build())}


def test_resume_refuses_a_file_of_a_flag_that_has_changed(copied, quick, refused, run, tmp_path):
    """Also where the checkpoint has its weights; another place of the same file is fine, and a missing one."""
    backbone = {name.removeprefix('backbone.'): value for name, value in checkpoint.load(
        copied / 'checkpoint_last.pt')['model'].items() if name.startswith('backbone.')}
    torch.save(backbone, tmp_path / 'weights.pt')
    assert run(*quick, *FEW, '--n_epochs', '0', '--weights', tmp_path / 'weights.pt', '--group', 'own') == 0
    folder = folder_of(tmp_path, 'own_s1')
    shutil.move(tmp_path / 'weights.pt', tmp_path / 'moved.pt')
    assert run('--resume', folder, '--n_epochs', '1', '--weights', tmp_path / 'moved.pt') == 0
    torch.save(backbone | {'more': torch.zeros(1)}, tmp_path / 'moved.pt')
    assert 'the file of --weights has changed since the run began' in refused('--resume', folder, '--n_epochs', '2')
    (tmp_path / 'moved.pt').unlink()
    assert run('--resume', folder, '--n_epochs', '2') == 0


def test_resume_refuses_changed_data_of_equal_classes(quick, refused, run, patterns, tmp_path):
    """Files, labels, boxes, groups and order count; the place of the data and columns that nothing reads do not."""
    rows = [[f'images/{c}/{i}.png', c, str(i), '0', '0', '20', '20'] for c in ('class_00', 'class_01', 'class_02',
                                                                              'class_03') for i in range(6)]

    def write(changed, header='path,label,group,x1,y1,x2,y2'):
        (tmp_path / 'list.csv').write_text('\n'.join([header, *map(','.join, changed)]))

    def with_value(column, value, at=0):
        return [[*row[:column], value, *row[column + 1:]] if i == at else row for i, row in enumerate(rows)]

    write(rows)
    assert run(*quick, '--csv', tmp_path / 'list.csv', '--bs', '4', '--n_epochs', '0',
               '--eval_level', 'class', 'across', '--evaluation_metrics', 'e_recall@1') == 0
    labels = [row[1] for row in rows]
    labels[0], labels[6] = labels[6], labels[0]
    for changed, what in ((with_value(5, '19'), 'boxes'), (with_value(2, '7'), 'groups'), (rows[::-1], 'files, labels'),
                          ([[row[0], label, *row[2:]] for row, label in zip(rows, labels, strict=True)], 'labels'),
                          (with_value(0, 'images/class_05/0.png'), 'files, or another order of images,')):
        write(changed)
        assert f'the data have other {what}' in refused('--resume', folder_of(tmp_path), '--n_epochs', '1')
    shutil.copytree(patterns / 'images', tmp_path / 'moved' / 'images')
    write([[*row, 'x'] for row in rows], 'path,label,group,x1,y1,x2,y2,remark')
    assert run('--resume', folder_of(tmp_path), '--n_epochs', '1', '--source_path', tmp_path / 'moved') == 0


def test_what_starts_fresh_starts_fresh_in_the_optimizer_too(quick, run, tmp_path, capsys):
    """Class weights of another loss, of the same shape, under another name: no moments and no step of the old ones."""
    arguments = [*quick, '--evaluation_metrics', 'e_recall@1', '--batch_mining', 'none']
    assert run(*arguments, '--loss', 'proxyanchor', '--n_epochs', '1') == 0
    folder = folder_of(tmp_path)
    before = checkpoint.load(folder / 'checkpoint_last.pt')
    shape, = {tuple(value.shape) for value in before['criterion'].values()}
    capsys.readouterr()
    assert run('--resume', folder, '--merge_argparse_when_resuming', '--n_epochs', '2', '--loss', 'softmax') == 0
    assert "start fresh: criterion, the criterion's part of optimizer\n" in capsys.readouterr().out
    after = checkpoint.load(folder / 'checkpoint_last.pt')
    assert {tuple(value.shape) for value in after['criterion'].values()} == {shape}
    group, = (group for group in after['optimizer']['param_groups'] if group['name'] == 'criterion')
    steps = {number: int(state['step']) for number, state in after['optimizer']['state'].items()}
    assert {steps.pop(number) for number in group['params']} == {3} and {*steps.values()} == {6}

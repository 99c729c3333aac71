"""Whole runs: the run folder, every part, failures that leave nothing wrong behind, evaluation only."""
import json
import shlex
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import criteria
import main
from records import checkpoint, run_folder
from tests.conftest import draw_classes, quick_flags
from tests.helpers import after_training, assert_same_end, content_of, folder_of, printed_metrics, rows_of
from tests.shared_batches import miner_of, summed
from utilities import plotting

FEW = ['--evaluation_metrics', 'e_recall@1']


def test_the_run_folder(quick, run, tmp_path, capsys, all_plots):
    assert run(*quick, '--use_tv_split', '--tv_split_perc', '0.7', '--bs', '8', '--pictures', 'retrieval',
               '--no_train_metrics', 'false') == 0
    folder = folder_of(tmp_path)
    names = {path.name for path in folder.iterdir()} - {'tensorboard'}
    assert names == {'config.yaml', 'splits.yaml', 'log.csv', 'spectrum.csv', 'records.sqlite', 'summary.json', 'plots',
                     'retrieval_test.png', 'checkpoint_last.pt', 'checkpoint_train_e_recall@1.pt',
                     'checkpoint_val_e_recall@1.pt', 'checkpoint_test_e_recall@1.pt'}
    rows = rows_of(folder, without=())
    assert [row['epoch'] for row in rows] == ['0', '1', '2'] and rows[0]['train_loss'] == '' != rows[1]['train_loss']
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    wanted = [metric for metric in config['flags']['evaluation_metrics'] if metric != 'rho_spectrum@0']
    assert list(rows[0]) == ['epoch', 'train_loss', 'lr', 'seconds',
                             *[f'{split}_{metric}' for split in ('train', 'val', 'test') for metric in wanted]]
    splits = yaml.safe_load((folder / 'splits.yaml').read_text())
    assert config['split_hash'] == splits['hash'] and config['test_hash'] == splits['splits']['test']['hash']
    assert list(splits['splits']['val']['classes']) == ['class_04', 'class_05']
    summary = json.loads((folder / 'summary.json').read_text())
    assert summary['finished'] and summary['last_epoch']['epoch'] == 2 and summary['selected_by'] == 'e_recall@1'
    for chosen, name in (('best_by_validation', 'val_e_recall@1'), ('best_on_test', 'test_e_recall@1')):
        best = max(float(row[name]) for row in rows)
        assert summary[chosen][name] == best and len(summary[chosen]) == len(rows[0])
        assert checkpoint.load(folder / f'checkpoint_{name}.pt')['row'][name] == best
    plots = {path.stem for path in (folder / 'plots').iterdir()}
    assert plots == {'curves'}
    panel = np.asarray(Image.open(folder / 'retrieval_test.png').convert('RGB'))
    right = [int(plotting.RIGHT[place:place + 2], 16) for place in (1, 3, 5)]
    assert (panel == right).all(axis=2).any()                             # something right was retrieved
    out = capsys.readouterr().out
    assert f'run folder: {folder}' in out and 'retrieval_test.png' in out and 'epoch   2  loss' in out
    assert run(*quick, '--n_epochs', '0') == 0 and folder_of(tmp_path, 'quick_s1_1').exists()     # never overwritten


def test_training_learns(quick, run, tmp_path):
    assert run(*quick, '--n_epochs', '8', '--iterations_per_epoch', '8', '--eval_every', '8',
               '--loss', 'multisimilarity', '--storage_metrics', 'e_recall@1', 'map_at_r') == 0
    first, *_, last = rows_of(folder_of(tmp_path))
    assert float(last['test_map_at_r']) > float(first['test_map_at_r']) + .1
    assert (folder_of(tmp_path) / 'checkpoint_test_map_at_r.pt').exists()


def with_superclasses(tmp_path):
    """The flags of a CSV file of the images of `quick`, with super-classes of two levels."""
    rows = [f'images/class_{c:02d}/{i}.png,class_{c:02d},{c // 2},{c // 4}' for c in range(12) for i in range(6)]
    (tmp_path / 'list.csv').write_text('\n'.join(['path,label,superclass,superclass_2', *rows]))
    return ['--csv', str(tmp_path / 'list.csv')]


def test_the_same_seed_gives_the_same_run(quick, run, tmp_path):
    losses = ['triplet', 'margin', 'proxyanchor', 'happier', 'hier', 'nir', 'quadruplet', 's2sd']
    flags = shlex.split(summed(losses, map(miner_of, losses)))
    for _ in range(2):
        assert run(*quick, *FEW, *with_superclasses(tmp_path), *flags, '--n_epochs', '1') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'quick_s1_1'))


def test_what_needs_no_data_is_refused_before_they_are_read(quick, run, tmp_path, capsys):
    for flags, sentence in ((['--batch_mining', 'none'], '--loss margin needs a miner: set --batch_mining'),
                            (['--loss', 'softmax+npair'], '--loss npair does not work with --batch_mining distance'),
                            (['--loss', 'margn'], '--loss margn: unknown'),
                            (['--daml', '--xbm_size', '500'], '--daml does not work with --xbm_size')):
        assert run(*quick, '--source_path', tmp_path / 'nowhere', *flags) == 2
        assert sentence in capsys.readouterr().err


def test_runs_that_differ_only_in_kernels_are_identical(quick, run, tmp_path):
    for kernels in (0, 2):
        assert run(*quick, *FEW, '--n_epochs', '1', '--kernels', kernels, '--batch_mining', 'random') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'quick_s1_1'))


@pytest.fixture(scope='module')
def trained(patterns, tmp_path_factory):
    """The folder of the run `quick` of one epoch, which tests do not change."""
    place = tmp_path_factory.mktemp('trained')
    assert main.main([*quick_flags(patterns, place), '--n_epochs', '1']) == 0
    return folder_of(place)


def test_reproduce_starts_anew_with_the_same_settings(trained, run, tmp_path, capsys):
    again = ['--reproduce', trained, '--save_path', tmp_path / 'runs']
    assert run(*again) == 0
    assert_same_end(trained, folder_of(tmp_path))
    assert run(*again, '--seed', '2', '--n_epochs', '0') == 0
    assert rows_of(folder_of(tmp_path, 'quick_s2'))[0] != rows_of(trained)[0]
    assert 'Note:' not in capsys.readouterr().out
    assert run(*again, '--use_tv_split', '--bs', '8', '--n_epochs', '0') == 0
    assert 'Note: the data have other classes or numbers of images (hash' in capsys.readouterr().out


@pytest.mark.parametrize('flags, sentence', [
    (['--bs', '9'], '--bs 9 is not divisible by --samples_per_class 2'),
    (['--bs', '14'], 'needs 7 classes per batch, but there are only 6 training'),
    (['--loss', 'triplet', '--batch_mining', 'none'], '--loss triplet needs a miner'),
    (['--data_sampler', 'hierarchical'], '--data_sampler hierarchical needs the super-class of each training class'),
    (['--loss', 'happier'], '--loss happier needs the super-classes of the training classes'),
    (['--patience', '25'], '--patience stops by a validation split, never by the test split, and no validation split '
                           'is evaluated: add --use_tv_split or --split_scheme class_folds'),
    (['--split_scheme', 'class_folds', '--n_folds', '7'], '--n_folds 7: only 6 of the 12 classes are not test classes'),
    (['--split_scheme', 'mlrc', '--n_folds', '7'], 'the val split is empty (12 classes in all, --split_scheme mlrc'),
    (['--split_scheme', 'predefined'], '--split_scheme predefined: folder has no official split'),
    (['--splits_to_eval', 'val'], '--splits_to_eval val: there is no such split'),
    (['--source_path', 'nowhere'], '--dataset folder: expected nowhere/images (--source_path nowhere):'),
    (['--weights', 'nowhere.pth'], '--weights nowhere.pth: No such file'),
    (['--nonsense'], '--nonsense: unknown flag'),
    (['--loss', 'triplett'], '; did you mean triplet?'),
    (['--loss', 'margin+tripel'], '--loss tripel: unknown'),
    (['--loss', 'pml:TripelLoss'], '--loss pml:TripelLoss: pytorch-metric-learning'),
    (['--batch_mining', 'x'], '--batch_mining x: unknown'),
    (['--data_sampler', 'x'], '--data_sampler x: unknown'),
    (['--evaluation_metrics', 'recall'], '--evaluation_metrics recall: unknown'),
    (['--dataset', 'x'], '--dataset x: unknown'),
    (['--augmentation', 'x'], '--augmentation x: unknown'),
    (['--arch', 'conv4_normalise'], '_frozen and _normalize may be appended; did you mean conv4_normalize?'),
    (['--not_pretrained', 'false'], '--arch conv4 has no pretrained weights'),
])
def test_what_the_user_must_change_exits_with_2_and_leaves_no_folder(flags, sentence, quick, run, tmp_path, capsys):
    assert run(*quick, *flags) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.splitlines()) <= 2 and not (tmp_path / 'runs').exists()


def test_folds_share_their_test_classes_and_validate_on_their_own(quick, run, tmp_path):
    found = []
    for fold in ('0', '1'):
        assert run(*quick, '--split_scheme', 'class_folds', '--n_folds', '3', '--fold', fold, '--splits_to_eval', 'val',
                   '--samples_per_class', '3', '--savename', f'fold{fold}', '--patience', '1', '--n_epochs', '1',
                   '--evaluation_metrics', 'e_recall@1', 'map_at_r') == 0
        folder = folder_of(tmp_path, f'fold{fold}')
        found.append(yaml.safe_load((folder / 'splits.yaml').read_text()))
        assert 'val_map_at_r' in rows_of(folder)[-1] and 'test_map_at_r' not in rows_of(folder)[-1]
        assert run_folder.read(folder)['split_hash'] == found[-1]['hash']
    first, second = (part['splits'] for part in found)
    assert first['test'] == second['test'] and found[0]['hash'] != found[1]['hash']
    assert list(first['val']['classes']) == ['class_00', 'class_01']
    assert list(second['val']['classes']) == ['class_02', 'class_03']
    # the networks of all folds are judged on the test classes afterwards
    best = folder_of(tmp_path, 'fold0') / 'checkpoint_val_e_recall@1.pt'
    assert run('--evaluate', best, '--splits_to_eval', 'test') == 0


def test_a_broken_image_stops_the_run_and_leaves_no_folder(quick, run, tmp_path, patterns, capsys):
    shutil.copytree(patterns / 'images', tmp_path / 'data' / 'images')
    (tmp_path / 'data' / 'images' / 'class_00' / '0.png').write_bytes(b'broken')
    quick = [*quick, '--no_train_metrics', 'false']
    for kernels in (0, 2):
        assert run(*quick, '--source_path', tmp_path / 'data', '--kernels', kernels) == 2
        error = capsys.readouterr().err
        assert 'class_00/0.png: not a readable image' in error and len(error.splitlines()) == 1
        assert not list((tmp_path / 'runs' / 'folder').iterdir())
    assert run(*quick, '--source_path', tmp_path / 'data', '--skip_bad_images', '--n_epochs', '0') == 0


class Explodes(torch.nn.Module):
    """Its loss is not finite from some step on."""
    steps = 0

    def __init__(self, opt):
        super().__init__()

    def forward(self, batch, labels, **kwargs):
        Explodes.steps += 1
        return batch.sum() * (float('inf') if Explodes.steps == 5 else 1)


def test_values_in_errors_are_cut_and_hold_no_control_characters(run, capsys):
    assert run('--loss', f'\x1b[31m{"x" * 5000}') == 2
    error = capsys.readouterr().err
    assert error.startswith('main.py: error: --loss \\x1b[31mxxx') and len(error) < 2100 and '\x1b' not in error
    assert run('--loss', 'x ' * 5000) == 2 and len(capsys.readouterr().err) < 2100


def test_a_loss_that_is_not_finite_keeps_the_last_finite_checkpoint(quick, run, tmp_path, capsys, monkeypatch):
    module = type('explodes', (), {'Criterion': Explodes, 'REQUIRES_BATCHMINER': False})
    monkeypatch.setitem(criteria.CRITERIA, 'explodes', module)
    monkeypatch.setattr(Explodes, 'steps', 0)
    assert run(*quick, *FEW, '--loss', 'explodes') == 1
    error = capsys.readouterr().err
    assert 'Epoch 2, step 2: the loss is' in error and f'{folder_of(tmp_path)}/checkpoint_last.pt' in error
    state = checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    assert state['epoch'] == 1 and all(value.isfinite().all() for value in state['model'].values())
    assert run('--resume', folder_of(tmp_path)) == 0                      # Explodes goes on beyond its fifth step


def test_patience_stops_on_a_validation_metric_and_stays_stopped(quick, run, tmp_path):
    flags = [*quick, *FEW, '--use_tv_split', '--bs', '8', '--lr', '0', '--n_epochs', '9', '--patience', '2',
             '--arch', 'conv4_frozen_normalize']
    assert run(*flags) == 0                                                # nothing improves: stops after epoch 3
    assert [row['epoch'] for row in rows_of(folder_of(tmp_path))] == ['0', '1', '2', '3']
    assert run('--resume', folder_of(tmp_path)) == 0
    assert len(rows_of(folder_of(tmp_path))) == 4


def test_warmup_trains_the_embedding_layer_only(quick, run, tmp_path):
    quick = [*quick, *FEW]
    assert run(*quick, '--n_epochs', '0') == 0
    assert run(*quick, '--n_epochs', '1', '--warmup', '1', '--loss', 'proxyanchor') == 0
    before, after = (checkpoint.load(folder_of(tmp_path, name) / 'checkpoint_last.pt')['model']
                     for name in ('quick_s1', 'quick_s1_1'))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {'f_embed.weight', 'f_embed.bias'}                   # and no BatchNorm statistics


def test_data_are_checked_before_weights_are_downloaded(quick, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.hub, 'load_state_dict_from_url', lambda *_, **__: 1 / 0)
    arguments = [*quick, '--not_pretrained', 'false', '--arch', 'torchvision:resnet18', '--input_size', '32']
    for flags, sentence in ((['--split_scheme', 'class_folds', '--n_folds', '7'], '--n_folds 7: only 6'),
                            ([], '--arch torchvision:resnet18: its pretrained weights could not be downloaded')):
        assert run(*arguments, *flags) == 2
        assert sentence in capsys.readouterr().err


def test_evaluate_only_prints_what_was_recorded(trained, run, tmp_path, capsys):
    before = content_of(trained)
    rows = rows_of(trained)
    best = checkpoint.load(trained / 'checkpoint_test_e_recall@1.pt')['epoch']
    for place, row in ((trained, rows[-1]), (trained / 'checkpoint_test_e_recall@1.pt', rows[best])):
        capsys.readouterr()
        assert run('--evaluate', place) == 0
        printed = printed_metrics(capsys.readouterr().out)
        assert {name: printed[name] for name in row if name.startswith('test_')} == {
            name: value for name, value in row.items() if name.startswith('test_')}
    assert run('--evaluate', trained, '--evaluation_metrics', 'mAP', 'e_recall@1', '--splits_to_eval', 'test') == 0
    assert list(printed_metrics(capsys.readouterr().out)) == ['test_mAP', 'test_e_recall@1']
    assert before == content_of(trained)
    assert run('--evaluate', tmp_path) == 2


def test_evaluation_ranks_by_the_distance_of_the_trained_criterion(quick, run, tmp_path, capsys):
    assert run(*quick, *FEW, '--loss', 'hyperbolic', '--batch_mining', 'none') == 0
    recorded = rows_of(folder_of(tmp_path))[-1]['test_e_recall@1']
    capsys.readouterr()
    for flags, same in (((), True), (('--eval_features',), False)):
        assert run('--evaluate', folder_of(tmp_path), '--evaluation_metrics', 'e_recall@1', *flags) == 0
        assert (printed_metrics(capsys.readouterr().out)['test_e_recall@1'] == recorded) == same


def test_secrets_are_never_written(quick, run, tmp_path, monkeypatch, capsys):
    pytest.importorskip('wandb')
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))                     # no ~/.netrc is written either
    monkeypatch.delenv('WANDB_MODE')
    monkeypatch.setenv('WANDB_BASE_URL', 'http://127.0.0.1:9')              # does not answer
    (tmp_path / 'c.yaml').write_text('wandb_key: ' + 's' * 40)
    assert run(*quick, *FEW, '--log_online', '--wandb_key', 't' * 40, '--config', tmp_path / 'c.yaml', '--n_epochs', '0'
               ) == 0
    assert 'W&B runs offline (http://127.0.0.1:9 does not answer' in capsys.readouterr().out
    assert (folder_of(tmp_path) / 'wandb').exists()
    for path in tmp_path.rglob('*'):
        content = path.read_bytes() if path.is_file() and path.name != 'c.yaml' else b''
        assert b's' * 40 not in content and b't' * 40 not in content, path


# Flags and data that do not go together

def test_a_note_on_flags_without_effect_goes_to_standard_error_and_the_run_goes_on(quick, run, tmp_path, capsys):
    quick = [*quick, '--n_epochs', '0']
    assert run(*quick, '--loss', 'softmax', '--loss_triplet_margin', '0.3', '--gamma', '0.1', '--scheduler',
               'none') == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        'Note: without effect in this run: --scheduler none, --gamma 0.1, --loss_triplet_margin 0.3']
    assert 'without effect' not in captured.out
    assert run('--reproduce', folder_of(tmp_path)) == 0 and 'without effect' not in capsys.readouterr().err


def test_a_flag_without_effect_is_named_once_also_if_a_part_replaces_its_value(quick, run, tmp_path, capsys):
    assert run(*quick, *FEW, '--n_epochs', '0') == 0
    capsys.readouterr()
    assert run(*quick, *FEW, '--n_epochs', '3', '--not_pretrained', '--start_from', folder_of(tmp_path)) == 0
    assert capsys.readouterr().err.count('without effect in this run: --not_pretrained True') == 1


def test_a_scalar_of_an_epochs_record_does_not_mean_that_the_epoch_has_trained(quick, run, monkeypatch, capsys):
    record = main.record
    monkeypatch.setattr(main, 'record', lambda records, built, state, epoch, trained, evaluated: record(
        records, built, state, epoch, trained | {'own/scalar': 1.}, evaluated))
    assert run(*quick, '--n_epochs', '1', '--clip_grad', '1') == 0 and 'without effect' not in capsys.readouterr().err


def without(arguments, *flags):
    """The arguments without these flags, of one value each."""
    places = {arguments.index(flag) + step for flag in flags for step in (0, 1)}
    return [argument for place, argument in enumerate(arguments) if place not in places]


def batch_of(folder):
    flags = run_folder.read(folder)['flags']
    return flags['bs'], flags['samples_per_class']


def test_a_batch_that_fits_a_small_set_is_chosen_told_and_recorded(quick, run, tmp_path, capsys):
    small = [*without(quick, '--bs', '--samples_per_class'), *FEW, '--n_epochs', '1']
    assert run(*small) == 0
    assert '(36 of 6 classes)' in capsys.readouterr().out
    assert batch_of(folder_of(tmp_path)) == (36, 6)
    assert run(*small, '--bs', '36', '--samples_per_class', '6', '--group', 'explicit') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'explicit_s1'))
    assert run('--reproduce', folder_of(tmp_path), '--group', 'again', '--n_epochs', '0') == 0
    assert batch_of(folder_of(tmp_path, 'again_s1')) == (36, 6)
    capsys.readouterr()
    assert run(*small, '--bs', '112') == 2
    assert 'needs 56 classes per batch, but there are only 6' in capsys.readouterr().err
    (tmp_path / 'c.yaml').write_text('samples_per_class: 2')
    assert run(*small, '--config', tmp_path / 'c.yaml') == 2


def test_a_single_training_class_is_named_not_the_batch(quick, run, tmp_path, capsys):
    two = draw_classes(tmp_path / 'two' / 'images', 2, 6).parent
    for flags in (without(quick, '--bs', '--samples_per_class'), quick):
        assert run(*flags, '--source_path', two, '--n_epochs', '1') == 2
        error = capsys.readouterr().err
        assert 'there is only one training class, class_00' in error and '--bs' not in error
    assert not list((tmp_path / 'runs').rglob('config.yaml'))


def test_without_training_the_batch_size_does_not_matter(quick, run, tmp_path):
    quick = [*quick, *FEW, '--n_epochs', '0']
    assert run(*quick, '--bs', '112', '--data_sampler', 'fid_batchmatch') == 0
    assert batch_of(folder_of(tmp_path)) == (112, 2)
    assert run(*quick, '--bs', '9', '--samples_per_class', '1') == 0


def test_all_classes_train(quick, run, tmp_path, capsys):
    everything = [*quick, '--split_scheme', 'half', '--test_size', '0', '--pictures', 'retrieval',
                  '--no_train_metrics', 'false', *FEW, '--n_epochs', '1']
    assert run(*everything) == 0
    folder = folder_of(tmp_path)
    assert list(yaml.safe_load((folder / 'splits.yaml').read_text())['splits']) == ['train']
    assert (folder / 'retrieval_train.png').exists() and (folder / 'checkpoint_train_e_recall@1.pt').exists()
    assert float(rows_of(folder)[-1]['train_e_recall@1']) > 0
    assert run(*everything, '--use_tv_split', '--bs', '8', '--no_train_metrics', '--patience', '3') == 0
    assert (folder_of(tmp_path, 'quick_s1_1') / 'retrieval_val.png').exists()
    capsys.readouterr()
    assert run(*everything, '--no_train_metrics') == 2 and 'leaves nothing to evaluate' in capsys.readouterr().err
    assert run(*everything, '--splits_to_eval', 'test') == 2


def test_new_images_that_nothing_is_trained_on(quick, run, tmp_path, capsys):
    assert run(*quick, '--split_scheme', 'class_folds', '--n_folds', '3', '--fold', '1', '--bs', '8',
               '--evaluation_metrics', 'e_recall@1', '--n_epochs', '0') == 0
    folder = folder_of(tmp_path)
    new = ['--split_scheme', 'half', '--test_size', '1']
    capsys.readouterr()
    assert run('--evaluate', folder, *new) == 0
    assert list(printed_metrics(capsys.readouterr().out)) == ['test_e_recall@1']
    assert after_training(folder, 'embeddings', tmp_path / 'out.npz', *new) == 0
    written = np.load(tmp_path / 'out.npz', allow_pickle=False)
    assert len(written['labels']) == 72 and written['paths'][0].endswith('class_00/0.png')
    assert [*written['class_names'][::6]] == [f'class_{c:02d}' for c in range(12)]
    (tmp_path / 'new.csv').write_text('path,label,split\n' + ''.join(
        f'images/class_0{c}/{i}.png,{c},{"query" if i else "gallery"}\n' for c in range(3) for i in range(3)))
    assert run('--evaluate', folder, '--csv', tmp_path / 'new.csv', '--split_scheme', 'predefined') == 0
    for flags in (['--pca', '2'], ['--eval_reference', 'train']):
        assert run('--evaluate', folder, *new, *flags) == 2
        assert f'{" ".join(flags)} needs the training split' in capsys.readouterr().err
    assert run(*quick, *new) == 2 and 'leaves nothing to train on' in capsys.readouterr().err


@pytest.fixture
def lone(tmp_path):
    """A --source_path of 12 classes of one image."""
    return draw_classes(tmp_path / 'lone' / 'images', 12, 1).parent


def test_one_image_per_class_is_refused(quick, run, lone, tmp_path, capsys):
    assert run(*quick, '--source_path', lone, '--no_train_metrics', 'false') == 2
    assert 'no evaluated image (train, test) has a positive' in capsys.readouterr().err
    assert run(*quick, '--bs', '6', '--samples_per_class', '1', '--loss', 'triplet') == 2
    assert '--samples_per_class 1: ' in capsys.readouterr().err and not (tmp_path / 'runs').exists()
    quick = [*quick, *FEW, '--bs', '6', '--samples_per_class', '1', '--n_epochs', '1']
    assert run(*quick, '--loss', 'softmax') == 0
    assert run(*quick, '--loss', 'triplet', '--data_sampler', 'full_random') == 0


@pytest.mark.parametrize('sampler', ['class_random', 'balanced', 'greedy_coreset', 'd2_coreset', 'fid_batchmatch'])
def test_batches_of_one_class_are_refused(sampler, quick, run, tmp_path, capsys):
    quick = [*quick, *FEW, '--n_epochs', '1', '--data_sampler', sampler, '--samples_per_class', '4']
    for batch in (['--bs', '4'], ['--bs', '8', '--views', '2']):
        assert run(*quick, '--loss', 'triplet', *batch) == 2
        error = capsys.readouterr().err
        assert f'--samples_per_class 4: with {" ".join(batch[:2])}' in error and ('and --views 2' in error) == (
            '--views' in batch)
        assert 'a batch has one class only, and --loss triplet compares images of at least two' in error
    assert not (tmp_path / 'runs').exists()


@pytest.mark.parametrize('flags', ['--loss softmax', '--loss supcon --xbm_size 24', '--loss triplet --bs 8',
                                   '--loss triplet --data_sampler full_random', '--loss triplet --n_epochs 0'])
def test_batches_of_one_class_are_taken_where_they_work(flags, quick, run):
    assert run(*quick, *FEW, '--n_epochs', '1', '--bs', '4', '--samples_per_class', '4', *flags.split()) == 0


def test_weights_that_are_all_zero_are_refused(quick, run, tmp_path, capsys):
    quick = [*quick, *FEW, '--n_epochs', '1']
    for loss, weights in (('softmax', ['0']), ('softmax+supcon', ['0', '0.0'])):
        assert run(*quick, '--loss', loss, '--loss_weights', *weights) == 2
        assert 'nothing would be trained; give at least one other than 0' in capsys.readouterr().err
    assert not (tmp_path / 'runs').exists()
    assert run(*quick, '--loss', 'softmax', '--loss_weights', '-1') == 0


def test_a_query_without_a_positive_is_counted_in_a_sentence(quick, run, tmp_path, capsys):
    source = draw_classes(tmp_path / 'few' / 'images', 12, 3)
    for c, i in ((11, 1), (11, 2), (10, 1), (10, 2)):
        (source / f'class_{c}' / f'{i}.png').unlink()
    assert run(*quick, *FEW, '--source_path', source.parent, '--n_epochs', '0') == 0
    assert ('(without an image of their class in the gallery, and left out of the retrieval metrics: 2)'
            in capsys.readouterr().out)


def test_no_picture_is_named_that_is_not_there(quick, run, lone, tmp_path, capsys):
    quick = [*without(quick, '--pictures'), '--n_epochs', '0']
    assert run(*quick, '--source_path', lone, '--storage_metrics', 'nmi', '--pictures', 'classes') == 0
    assert not (folder_of(tmp_path) / 'retrieval_test.png').exists()
    assert 'retrieved images' not in capsys.readouterr().out
    assert after_training(folder_of(tmp_path), 'pictures', tmp_path / 'pictures', '--pictures', 'none') == 2
    assert 'pictures ' in (error := capsys.readouterr().err) and 'nothing to draw with --pictures none' in error
    assert after_training(folder_of(tmp_path), 'pictures', tmp_path / 'pictures', '--pictures', 'spectrum',
                          'retrieval') == 0
    out = capsys.readouterr().out
    assert 'spectrum_test.png' in out and 'Not drawn: retrieval: the test split' in out


def test_a_key_that_stands_twice_in_the_config_of_a_run_is_refused(trained, run, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / 'edited')
    text = (folder / 'config.yaml').read_text()
    second = text[:text.index('\n  bs:')].count('\n') + 3                  # the line of the flag after the added one
    twice = text.replace('flags:\n', 'flags:\n  bs: 50\n', 1)
    for changed, sentence in (
            (twice, f'not readable: line {second}: the key bs occurs twice'),
            (f'{text}bs: 50\n', 'the flag bs stands beside flags:, where it has no effect')):
        (folder / 'config.yaml').write_text(changed)
        for flag in ('--evaluate', '--resume'):
            assert run(flag, folder) == 2
            assert f'config.yaml: {sentence}' in capsys.readouterr().err


def test_learning_rates_of_zero_and_beyond_float32(quick, run, capsys):
    assert run(*quick, *FEW, '--lr', '0', '--n_epochs', '1') == 0
    assert 'Note: --lr 0 trains no weight of the network\n' in capsys.readouterr().err
    assert run(*quick, *FEW, '--lr', '1e38') == 1
    assert 'too large for float32 numbers: give a lower --lr' in capsys.readouterr().err

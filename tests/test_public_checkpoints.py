"""Checkpoints of the public code of Roth et al., in the form in which it writes them, where a trained network goes."""
import argparse
import pickle
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

import retrieval
from records import checkpoint
from tests.helpers import folder_of, printed_metrics, with_blocks
from utilities.errors import UserError

pretrainedmodels = pytest.importorskip('pretrainedmodels')

# the flags of a run of the public code, with what its main.py adds to them
FLAGS = {
    'dataset': 'folder', 'use_tv_split': False, 'tv_split_by_samples': False, 'tv_split_perc': 0.8,
    'augmentation': 'base', 'lr': 1e-05, 'fc_lr': -1, 'decay': 0.0004, 'n_epochs': 150, 'kernels': 0, 'bs': 24,
    'seed': 1, 'scheduler': 'step', 'gamma': 0.3, 'tau': [1000], 'optim': 'adam', 'loss': 'margin',
    'batch_mining': 'distance', 'embed_dim': 6, 'not_pretrained': True, 'arch': 'resnet50_frozen_normalize',
    'no_train_metrics': False, 'evaluate_on_gpu': False, 'evaluation_metrics': ['e_recall@1', 'dists@intra'],
    'storage_metrics': ['e_recall@1'], 'evaltypes': ['discriminative'], 'gpu': [0], 'savename': '',
    'source_path': '/home/them/Datasets/folder', 'save_path': '/home/them/Training_Results/folder/RESNET50_2020-6-1',
    'data_sampler': 'class_random', 'samples_per_class': 2, 'data_mb_mom': -1, 'data_mb_lr': 1,
    'miner_distance_upper_cutoff': 1.4, 'loss_margin_beta': 0.6, 'loss_softtriplet_lambda': 8, 'log_online': False,
    'wandb_key': 'theirs', 'project': 'Sample_Project', 'group': 'Sample_Group',
    'device': torch.device('cuda'), 'pretrained': False, 'n_classes': 100, 'rho_spectrum_embed_dim': 6, 'epoch': 2}
OWN = {'pretrained', 'n_classes', 'rho_spectrum_embed_dim'}            # of these, what is no flag here


class Network(torch.nn.Module):
    """As the public code's: images in the input format of their backbone -> embeddings."""

    def __init__(self, opt):
        super().__init__()
        arch = opt.arch.partition('_')[0]
        self.pars, self.model = opt, vars(pretrainedmodels)[arch](num_classes=1000, pretrained=None)
        self.model.last_linear = torch.nn.Linear(self.model.last_linear.in_features, opt.embed_dim)
        if arch == 'resnet50':
            self.layer_blocks = torch.nn.ModuleList([self.model.layer1, self.model.layer2, self.model.layer3,
                                                     self.model.layer4])

    def forward(self, x):
        maps = self.model.features(x)
        z = self.model.last_linear(torch.nn.functional.adaptive_avg_pool2d(maps, 1).flatten(1))
        return torch.nn.functional.normalize(z, dim=-1) if 'normalize' in self.pars.arch else z


class Progress_Saver:  # noqa: N801, the name in the public code
    """The attribute of the public class: {group: {name: {'content': values, 'saved_idx': number}}}."""

    def __init__(self):
        self.groups = {'discriminative_e_recall': {'e_recall@1': {
            'content': [np.float64(0.4), 0.5, np.float32(0.6), np.int64(1)], 'saved_idx': 3}}}


def save(path, opt, network, monkeypatch, **options):
    """Writes a file as the public code's set_checkpoint, in whose process there is a module utilities.logger."""
    module = types.ModuleType('utilities.logger')
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, 'utilities.logger', module)
        patch.setattr(Progress_Saver, '__module__', 'utilities.logger')
        module.Progress_Saver = Progress_Saver
        torch.save({'state_dict': network.state_dict(), 'opt': opt, 'progress': {
            name: Progress_Saver() for name in ('Train', 'Test', 'Model Grad')}, 'aux': None}, path, **options)
    return path


def theirs(folder, monkeypatch, seed=0, legacy=False, **flags):
    """(the file, the network in it) of the public code."""
    opt = argparse.Namespace(**FLAGS | flags)
    torch.manual_seed(seed)
    network = Network(opt)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-.1, .1)
            module.running_var.uniform_(.5, 2)
    path = folder / 'checkpoint_Test_discriminative_e_recall@1.pth.tar'
    return save(path, opt, network.eval(), monkeypatch, _use_new_zipfile_serialization=not legacy), network


@pytest.mark.parametrize('arch, legacy', [('resnet50_frozen_normalize', False), ('bninception_frozen', True)])
def test_the_network_gives_the_embeddings_of_theirs(arch, legacy, tmp_path, monkeypatch, capsys):
    path, network = theirs(tmp_path, monkeypatch, arch=arch, legacy=legacy)
    found, transform = retrieval.load(path, 'cpu')
    noted = capsys.readouterr().err
    assert noted.count('\n') == 1 and 'do not exist here, which are left out: --' in noted
    assert {name.strip('-, \n') for name in noted.partition('out: ')[2].split(', ')} == OWN
    images = torch.stack([transform(Image.fromarray(np.random.default_rng(i).integers(
        0, 256, (256, 300, 3), np.uint8))) for i in range(2)])
    if arch.startswith('bninception'):                       # there: normalised in RGB, and then reversed
        given = ((images - torch.tensor([.502, .4588, .4078]).view(3, 1, 1)) / .0039).flip(1)
    else:
        given = ((images - torch.tensor([.485, .456, .406]).view(3, 1, 1))
                 / torch.tensor([.229, .224, .225]).view(3, 1, 1))
    with torch.no_grad():
        expected = network(given)
        # the public mean and deviation of BN-Inception are rounded to four digits
        tolerance = .02 * expected.abs().max().item() if 'bninception' in arch else 1e-5
        torch.testing.assert_close(found(images), expected, rtol=0, atol=tolerance)
    assert found.settings['embed_dim'] == 6 and 'utilities.logger' not in sys.modules


def test_it_is_evaluated_starts_a_run_and_teaches_one(patterns, quick, run, tmp_path, monkeypatch, capsys):
    with_blocks(monkeypatch, [1, 1, 1, 1])                   # instead of 3, 4, 6 and 3, in their network, too
    path, network = theirs(tmp_path, monkeypatch)
    here = ['--source_path', patterns, '--input_size', '32', '--device', 'cpu']
    assert run('--evaluate', path, *here) == 0
    out, err = capsys.readouterr()
    assert f'{path}, epoch 3' in out and err.count('Note: ') == 1
    measured = printed_metrics(out)
    assert {name.partition('_')[2] for name in measured} == {'e_recall@1', 'dists@intra'}
    given = [*quick, '--arch', FLAGS['arch'], '--embed_dim', '6', '--input_size', '32']
    few = ['--evaluation_metrics', 'e_recall@1', 'dists@intra', '--n_epochs', '0']
    assert run(*given, *few, '--start_from', path, '--group', 'started') == 0
    assert f'started from {path}, epoch 3' in capsys.readouterr().out
    state = checkpoint.load(folder_of(tmp_path, 'started_s1') / checkpoint.LAST)['model']
    assert run(*given, *few, '--weights', path, '--group', 'pretrained') == 0
    assert f'Note: --weights {path}: the names begin with model., which is dropped; ' in capsys.readouterr().err
    pretrained = checkpoint.load(folder_of(tmp_path, 'pretrained_s1') / checkpoint.LAST)['model']
    assert all(value.equal(state[name]) == (not name.startswith('f_embed')) for name, value in pretrained.items())
    assert state['f_embed.weight'].equal(network.model.last_linear.weight)
    assert state['backbone.layer3.0.bn1.running_var'].equal(network.model.layer3[0].bn1.running_var)
    assert run(*quick, '--input_size', '32', '--embed_dim', '5', '--n_epochs', '1', '--iterations_per_epoch', '1',
               '--evaluation_metrics', 'e_recall@1', '--distill', path, '--group', 'taught') == 2
    assert 'takes images of 224 pixels' in capsys.readouterr().err
    assert run(*quick, '--input_size', '224', '--bs', '4', '--embed_dim', '5', '--n_epochs', '1',
               '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1', '--distill', path) == 0
    assert f'teacher: {FLAGS["arch"]} of {path}, epoch 3' in capsys.readouterr().out


class Executed:
    """Pickled, it is a call that makes a file when it is unpickled."""

    def __reduce__(self):
        return open, ('executed', 'w')


def test_nothing_else_is_unpickled_and_other_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'checkpoint_of_others.pth.tar'
    opt, weights = argparse.Namespace(epoch=0), {'model.last_linear.weight': torch.ones(2, 2)}
    for content, sentence in (
            ({'state_dict': weights, 'opt': opt, 'progress': Executed()}, 'a pickle of objects other than tensors'),
            ({'state_dict': weights, 'opt': argparse.Namespace(epoch=Executed())}, 'objects other than tensors'),
            ({'state_dict': weights, 'opt': {}}, 'expected the entries state_dict'),
            (weights, r'expected the entries state_dict \(its weights\) and opt')):
        for zipped in (True, False):
            torch.save(content, path, _use_new_zipfile_serialization=zipped)
            with pytest.raises(UserError, match=f'{path}: .*{sentence}'):
                checkpoint.load(path)
    for content, sentence in ((pickle.dumps(weights), 'not a checkpoint'), (b'', 'an empty file'), (b'abc', 'text')):
        path.write_bytes(content)
        with pytest.raises(UserError, match=f'{path}: .*{sentence}'):
            checkpoint.load(path)
    file, _ = theirs(tmp_path, monkeypatch)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(content)
    with pytest.raises(UserError, match='damaged, or not a checkpoint'):
        checkpoint.load(file)
    file.write_bytes(content[:1000])
    with pytest.raises(UserError, match='a file that is cut off'):
        checkpoint.load(file)
    assert not (tmp_path / 'executed').exists()

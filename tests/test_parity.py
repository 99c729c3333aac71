"""Networks and samplers that are written to the contract of the public code of Roth et al., and benchmarks.parity."""
import argparse
import importlib
import json
import types

import numpy as np
import pytest
import torch

import architectures
import datasampler
from tests.helpers import ROOT, assert_same_end, executed, fill, folder_of, hand_over, images_of, state_of
from tests.test_public_parts import MINER, PROXIES, TRIPLES
from utilities.errors import UserError
from utilities.randomness import seed_everything

NETWORK = '''
import torch
import torch.nn as nn


class Network(torch.nn.Module):
    def __init__(self, opt):
        super(Network, self).__init__()
        self.pars, self.name, self.pretrained = opt, opt.arch, opt.pretrained
        self.model = nn.Module()
        self.model.layer1, self.model.norm = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)
        self.model.layer2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        if 'frozen' in opt.arch:
            for module in filter(lambda m: type(m) == nn.BatchNorm2d, self.model.modules()):
                module.eval()
                module.train = lambda _: None
        self.feature_dim = opt.penultimate_dim = 8
        self.model.last_linear = self.model.fc = nn.Linear(self.feature_dim, opt.embed_dim)
        self.layer_blocks = nn.ModuleList([self.model.layer1, self.model.norm, self.model.layer2])
        self.out_adjust = None

    def forward(self, x, warmup=False, **kwargs):
        for block in self.layer_blocks:
            x = block(x)
        maps = torch.relu(x)
        y = nn.functional.adaptive_max_pool2d(maps, 1) if 'max' in self.name else maps.view(*maps.shape[:2], -1).mean(2)
        y = y.view(y.size(0), -1)
        z = self.model.fc(y)
        if 'normalize' in self.pars.arch:
            z = torch.nn.functional.normalize(z, dim=-1)
        return {returned}
'''
RETURNED = {'tuple': 'z, (y, maps)', 'alone': 'z',
            'dict': "{'embeds': z, 'avg_features': y, 'features': maps, 'extra_embeds': maps}"}
SAMPLER = '''
import random
import numpy as np
import torch
REQUIRES_STORAGE = True


class Sampler(torch.utils.data.sampler.Sampler):
    def __init__(self, opt, image_dict, image_list):
        self.image_dict, self.image_list, self.half = image_dict, image_list, opt.bs // 2
        self.name, self.requires_storage, self.update_storage = 'far', True, not opt.data_storage_no_update
        self.sampler_length = len(image_list) // opt.bs

    def __iter__(self):
        for i in range(self.sampler_length):
            yield self.epoch_indices[i]

    def __len__(self):
        return self.sampler_length

    def precompute_indices(self):
        from joblib import Parallel, delayed
        self.epoch_indices = Parallel(n_jobs=2)(delayed(self.far)() for _ in range(self.sampler_length))

    def far(self):
        distances = (self.storage - self.storage[np.random.randint(len(self.storage))]).norm(dim=1)
        chosen = distances.argsort(descending=True)[:self.half].tolist()
        return chosen + [random.choice(self.image_dict[self.image_list[index][-1]])[-1] for index in chosen]

    def create_storage(self, dataloader, model, device):
        _ = model.eval(), model.to(device)
        with torch.no_grad():
            found = [model(batch[1].type(torch.FloatTensor).to(device)) for batch in dataloader]
        self.storage = torch.cat([embeds[0] if isinstance(embeds, tuple) else embeds for embeds in found]).cpu()

    def full_storage_update(self, dataloader, model, device):
        before = self.storage
        self.create_storage(dataloader, model, device)
        self.moved = self.storage - before

    def replace_storage_entries(self, embeddings, indices):
        self.storage[indices] = embeddings
'''
UNDECLARED = PROXIES.replace("'lr': opt.lr * 10", "'lr': opt.lr * opt.loss_own_lrmulti")
# As snr and multisimilarity of the public code in a batch without an active triplet or a hard pair
EASY = '''
import torch
ALLOWED_MINING_OPS, REQUIRES_BATCHMINER, REQUIRES_OPTIM = None, False, False


class Criterion(torch.nn.Module):
    def __init__(self, opt):
        super(Criterion, self).__init__()
        self.margin = opt.loss_snr_margin

    def forward(self, batch, labels):
        terms = torch.relu(batch.sum(dim=1) * 0 - self.margin)
        return {loss}
'''
PLAIN = '''
import random
import torch


class Sampler(torch.utils.data.sampler.Sampler):
    def __init__(self, opt, image_dict, image_list, **kwargs):
        self.image_dict, self.bs, self.sampler_length = image_dict, opt.bs, len(image_list) // opt.bs
        self.name, self.requires_storage = 'plain', False

    def __iter__(self):
        for _ in range(self.sampler_length):
            classes = [random.choice(list(self.image_dict)) for _ in range(self.bs // 2)]
            yield [random.choice(self.image_dict[label])[-1] for label in classes for _ in range(2)]

    def __len__(self):
        return self.sampler_length
'''


def module_of(text):
    module = types.ModuleType('own')
    exec(text, vars(module))
    return module


def network_of(monkeypatch, opt, returned='tuple', text=NETWORK, **flags):
    """(the class of the file, the EmbeddingNetwork made of it)."""
    module = module_of(text.replace('{returned}', RETURNED[returned]))
    monkeypatch.setitem(architectures.ARCHITECTURES, 'own', module)
    flags = opt(**{'embed_dim': 5, 'input_size': 12, 'input_mean': [0], 'input_std': [1]} | flags)
    torch.manual_seed(0)
    return module.Network(argparse.Namespace(**vars(flags), pretrained=False)), architectures.select(flags)


@pytest.mark.parametrize('returned, arch', [('tuple', 'own'), ('tuple', 'own_double_normalize_frozen'),
                                            ('alone', 'own_normalize'), ('dict', 'own_double_normalize_frozen')])
def test_a_public_network_gives_its_own_embeddings_and_features(returned, arch, opt, monkeypatch):
    theirs, ours = network_of(monkeypatch, opt, returned, arch=arch)
    theirs.load_state_dict({name.removeprefix('backbone.network.'): value for name, value in ours.state_dict().items()
                            if name.startswith('backbone')} | {
        f'model.{layer}.{name}': value for layer in ('fc', 'last_linear')
        for name, value in ours.f_embed.state_dict().items()})
    images = torch.rand(4, 3, 12, 12).to(memory_format=torch.channels_last)
    for training in (False, True):
        theirs.train(training), ours.train(training)
        output = theirs(images.contiguous())
        if returned == 'dict':
            expected, features = output['embeds'], output['avg_features']
        else:
            expected, features = (output[0], output[1][0]) if returned == 'tuple' else (output, None)
        embeddings, pooled = ours(images)
        torch.testing.assert_close(embeddings, expected)
        torch.testing.assert_close(ours.embedded(pooled), expected)
        if features is not None:
            torch.testing.assert_close(pooled, features)
    embeddings[:, 0].sum().backward()
    assert all(parameter.grad.any() for name, parameter in ours.named_parameters())
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))


def test_a_public_network_whose_embeddings_are_something_else_is_refused(opt, monkeypatch):
    for change, sentence in (
            (('= self.model.fc(y)', '= self.model.fc(y) * 2 + 1'), 'should be the output of self.model.last_linear'),
            (('opt.embed_dim)', '7)'), r'\[2, 7\] of two images of 12 pixels .* --embed_dim 5 dimensions')):
        text = NETWORK.replace(*change)
        assert text != NETWORK
        monkeypatch.setitem(architectures.ARCHITECTURES, 'own', module_of(text.replace('{returned}', 'z')))
        with pytest.raises(UserError, match=f'--arch own_normalize: .*{sentence}'):
            architectures.select_backbone(opt(arch='own_normalize', embed_dim=5, input_size=12))
    for flags in ({'embed_norm': 'batch'}, {'embed_layers': [3]}, {'cascade': [1]}):
        with pytest.raises(UserError, match=f'--{[*flags][0]}: --arch own .* embedding layer of its own'):
            network_of(monkeypatch, opt, arch='own', **flags)


def test_a_public_bninception_has_its_input_format(opt, monkeypatch):
    module = module_of(NETWORK.replace('{returned}', RETURNED['tuple']))
    for name in ('own', 'own_bninception'):
        monkeypatch.setitem(architectures.ARCHITECTURES, name, module)
    own, caffe = (architectures.select_backbone(opt(arch=name, input_size=12)) for name in ('own', 'own_bninception'))
    assert caffe.bgr and np.allclose(caffe.std, 1 / 255) and not own.bgr and np.allclose(own.mean[0], 0.485)


def sampler_of(monkeypatch, opt, text=SAMPLER, **flags):
    monkeypatch.setitem(datasampler.SAMPLERS, 'own', module_of(text))
    return datasampler.select(opt(data_sampler='own', bs=6, **flags), images_of([4, 4, 4]))


def test_a_public_sampler_gets_its_memory_bank_filled_and_updated_as_by_the_public_main(opt, monkeypatch, tmp_path):
    first, second, batch = torch.rand(12, 3), torch.rand(12, 3), torch.rand(2, 3)
    for refill in (False, True):
        sampler = sampler_of(monkeypatch, opt, data_idx_full_prec=refill)
        state = state_of(sampler=sampler)
        fill(sampler.storage, lambda: first)
        assert torch.equal(sampler.sampler.storage, first)
        seed_everything(1)
        batches = [*sampler]
        seed_everything(1)
        assert batches == [*sampler] and len(batches) == len(sampler) == 2           # no worker with a seed of its own
        sampler.storage.stepped(batch, None, torch.tensor([3, 5]), 1)
        expected = first.clone()
        expected[[3, 5]] = batch
        assert torch.equal(sampler.sampler.storage, expected)
        fill(sampler.storage, lambda: second)
        assert torch.equal(sampler.sampler.storage, second if refill else expected)
        other = sampler_of(monkeypatch, opt, data_idx_full_prec=refill)
        hand_over(state, state_of(sampler=other), tmp_path)
        assert hasattr(other.sampler, 'moved') == refill and other.storage.is_filled
        assert torch.equal(other.sampler.storage, sampler.sampler.storage)
    kept = sampler_of(monkeypatch, opt, data_storage_no_update=True)
    fill(kept.storage, lambda: first)
    kept.storage.stepped(batch, None, torch.tensor([3, 5]), 1)
    assert torch.equal(kept.sampler.storage, first)


def test_a_public_sampler_may_have_an_array_as_memory_bank(opt, monkeypatch, tmp_path):
    method = '''
    def update_storage(self, embeddings, indices):
        self.storage[indices] = embeddings.numpy()
'''
    array = SAMPLER.replace(']).cpu()', ']).numpy()').replace(', self.update_storage =', ', self.no_update =') + method
    sampler, other = (sampler_of(monkeypatch, opt, array) for _ in range(2))
    state = state_of(sampler=sampler)
    fill(sampler.storage, lambda: torch.zeros(12, 3))
    sampler.storage.stepped(torch.ones(1, 3), None, torch.tensor([4]), 1)         # the method, as some files have it
    hand_over(state, state_of(sampler=other), tmp_path)
    assert other.sampler.storage.sum() == 3 and (other.sampler.storage[4] == 1).all()


def test_a_run_with_a_public_network_and_sampler_resumes_with_the_same_bits(quick, run, monkeypatch, tmp_path):
    monkeypatch.setitem(architectures.ARCHITECTURES, 'own', module_of(NETWORK.replace('{returned}', RETURNED['dict'])))
    monkeypatch.setitem(datasampler.SAMPLERS, 'own', module_of(SAMPLER))
    flags = [*quick, '--arch', 'own_frozen_normalize', '--data_sampler', 'own',
             '--evaluation_metrics', 'e_recall@1', '--warmup', '1', '--ema', '0.9']
    assert run(*flags) == 0
    assert run(*flags, '--group', 'half', '--n_epochs', '1') == 0
    assert run('--resume', folder_of(tmp_path, 'half_s1'), '--n_epochs', '2') == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'half_s1'))
    assert run('--evaluate', folder_of(tmp_path)) == 0


def test_the_parts_of_a_folder_are_counted_and_those_that_fail_are_named(tmp_path):
    parts = {'criteria/own_undeclared': UNDECLARED,
             # under names of this program's own, whose flags they read
             'criteria/triplet': TRIPLES.replace('{convert}', 'labels'),
             'criteria/proxynca': PROXIES.replace('opt.lr * 10', 'opt.lr * opt.loss_proxynca_lrmulti'),
             'criteria/snr': EASY.replace('{loss}', 'terms.sum() / (terms > 0).sum()'),
             'criteria/multisimilarity': EASY.replace('{loss}', 'torch.stack([x for x in terms if x > 0]).mean()'),
             'batchminer/semihard': MINER.replace('opt,', "vars(opt)['loss_' + opt.loss + '_margin'],"),
             'batchminer/distance': MINER.replace('opt,', 'opt.miner_distance_upper_cutoff,'),
             'datasampler/class_random': PLAIN,
             'batchminer/own_none': MINER.replace('return triplets', 'return None'),
             'datasampler/own_bank': SAMPLER,
             'architectures/own_tuple': NETWORK.replace('{returned}', RETURNED['tuple']),
             'criteria/helpers': 'def halved(batch):\n    return batch / 2\n',
             'architectures/own_trained': NETWORK.replace('self.out_adjust = None', 'self.load_state_dict('
                                                          'torch.hub.load_state_dict_from_url("https://x.invalid/x"))'),
             'architectures/own_broken': NETWORK.replace('opt.pretrained', 'no_such_name')}
    for name, text in parts.items():
        (tmp_path / 'code' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'code' / f'{name}.py').write_text(text.replace('{returned}', 'z'))
    code, out, errors = executed(
        tmp_path, 'import json, sys; from benchmarks import parity; parity.main(json.loads(sys.argv[1]))',
        json.dumps([str(tmp_path / 'code'), '--n_epochs', '1', '--kernels', '0', '--evaluation_metrics', 'e_recall@1']))
    assert code == 0, errors
    lines = [line.removeprefix(f'{tmp_path}/code/') for line in out.splitlines()]
    assert lines[0] == 'criteria: 2 of 5', out
    assert lines[1].startswith('  multisimilarity.py: RuntimeError: stack expects a non-empty TensorList (multisim')
    assert lines[2].startswith('  own_undeclared.py: the flag --loss_own_lrmulti is read, which parameters.py ')
    assert "which parameters.py does not declare; declare it there: add('--loss_own" in lines[2]
    assert lines[3].startswith('  snr.py: main.py: the run failed: Epoch 1, step 1: the loss is nan')
    assert lines[4] == 'batchminer: 2 of 3' and '  own_none.py: --batch_mining own_none: it returned None' in lines[5]
    assert lines[6:8] == ['datasampler: 2 of 2', 'architectures: 2 of 3']
    assert lines[8].startswith("  own_broken.py: NameError: name 'no_such_name' is not defined (own_broken.py, line ")
    assert not [*(tmp_path / 'code').rglob('__pycache__')] and len(lines) == 9


def test_a_folder_without_parts_is_refused(tmp_path):
    parity = importlib.import_module('benchmarks.parity')
    with pytest.raises(UserError, match='expected a folder with criteria, batch_mining'):
        parity.main([str(tmp_path)])
    assert parity.exit_code('benchmarks.parity', lambda: parity.main([str(ROOT / 'docs')])) == 2



"""What of a backbone is trained: --freeze, --lora_rank, and the blocks that --layer_decay counts."""
import copy
import functools

import pytest
import timm
import torch

import architectures
import criteria
import optimization
from architectures import depth, low_rank
from records import checkpoint
from tests.helpers import assert_resumes_exactly, folder_of, printed_metrics, rows_of
from tests.helpers import random_network as select
from utilities.errors import UserError

VIT = 'timm:vit_tiny_patch16_224'


def vit(opt, **flags):
    torch.manual_seed(0)
    return select(opt, VIT, input_size=32, embed_dim=8, **flags)


def network(opt, arch):
    with torch.device('meta'):
        return architectures.select_backbone(opt(arch=arch, not_pretrained=True)).network


@pytest.mark.parametrize('arch, n_blocks, stem, last', [
    ('conv4', 3, ['0'], ['3']), ('resnet50', 16, ['conv1', 'bn1'], ['layer4.2']),
    ('mobilenet_v2', 18, ['features.0'], ['features.18']), ('googlenet', 11, ['conv1'], ['inception5b']),
    ('bninception', 12, ['conv1_7x7_s2', 'conv1_7x7_s2_bn'], None), (VIT, 12, ['patch_embed'], ['blocks.11', 'norm']),
    ('timm:convnext_atto', 15, ['stem'], ['stages.3.blocks.1', 'head']),
    ('timm:swin_tiny_patch4_window7_224', 15, ['patch_embed'], ['layers.3.blocks.1', 'norm']),
    ('torchvision:vit_b_32', 12, ['conv_proj'], ['encoder.layers.encoder_layer_11', 'encoder.ln']),
])
def test_blocks(arch, n_blocks, stem, last, opt):
    built = network(opt, arch)
    found = depth.blocks(built)
    assert (len(found) - 1, found[0]) == (n_blocks, stem) and (last is None or found[-1] == last)
    depths = depth.depths(built)
    assert list(depths) == [name for name, _ in built.named_parameters()]
    assert set(depths.values()) == set(range(n_blocks + 1))
    assert arch == 'bninception' or list(depths.values()) == sorted(depths.values())


def test_the_blocks_are_those_of_the_module_that_root_names():
    built = torch.nn.ModuleDict({'before': torch.nn.Linear(2, 2), 'trunk': torch.nn.Sequential(
        *(torch.nn.Linear(2, 2) for _ in range(3)))})
    assert depth.blocks(built)[0] == ['before']
    built.ROOT = 'trunk'
    assert depth.blocks(built) == [['trunk.0'], ['trunk.1'], ['trunk.2']]


@pytest.mark.parametrize('part, frozen', [('stem', ['0']), ('0', ['0']), ('1', ['0', '1']), ('3', list('0123')),
                                          ('backbone', list('0123'))])
@pytest.mark.parametrize('warmup', [0, 1])
def test_what_is_frozen_stays_frozen(part, frozen, warmup, opt):
    """Through warm-up epochs and changes of the mode, parameters, their gradients and the BatchNorm statistics."""
    flags = opt(arch='conv4', not_pretrained=True, freeze=part, lr=.1, decay=.1, loss='triplet', optim='adamw',
                warmup=warmup)
    model = architectures.select(flags)
    optimizer, schedule = optimization.select(flags, model, criteria.select(flags, lambda *_: None))
    before = copy.deepcopy(model.backbone.state_dict())
    for epoch in (1, 2):
        model.start_epoch(epoch)
        model.eval()
        model.train()
        schedule.at((epoch - 1) * schedule.n_steps + 1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.rand(4, 3, 32, 32))[0].pow(2).sum().backward()
            optimizer.step()
    changed = {name.split('.')[0] for name, value in model.backbone.state_dict().items()
               if not torch.equal(value, before[name])}
    assert changed == set('0123') - set(frozen)
    assert model.f_embed.weight.grad.abs().sum() > 0


def test_dropout_of_the_frozen_part_is_off_and_the_class_token_belongs_to_the_stem(opt):
    model = vit(opt, freeze='2')
    model.start_epoch(1)
    trained = {name for name, parameter in model.backbone.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith(('blocks.0.', 'blocks.1.', 'patch_embed.', 'cls_token', 'pos_embed'))
                   for name in trained)
    assert {'blocks.2.attn.qkv.weight', 'norm.weight'} <= trained
    assert [model.backbone.blocks[i].training for i in range(4)] == [False, False, True, True]


def test_a_frozen_stem_keeps_the_statistics_of_a_layer_that_was_replaced(opt):
    """Where several processes synchronise BatchNorm, its layers are replaced after the network has been built."""
    model = select(opt, 'torchvision:resnet18', freeze='stem')
    model.backbone.bn1 = torch.nn.BatchNorm2d(64)
    model.start_epoch(1)
    assert not model.backbone.bn1.training and model.backbone.layer1[0].bn1.training


def test_too_many_blocks_are_refused(opt, run, quick, capsys):
    with pytest.raises(UserError, match='--freeze 4: --arch conv4 has 3 blocks after the stem'):
        select(opt, 'conv4', freeze='4')
    assert run(*quick, '--freeze', 'head') == 2
    assert '--freeze: expected none, backbone, stem or a number of blocks, not head' in capsys.readouterr().err


def test_adapters_start_as_the_frozen_network_and_merge_into_its_layers(opt):
    frozen, adapted = vit(opt, freeze='backbone').eval(), vit(opt, lora_rank=3).eval()
    images = torch.rand(2, 3, 32, 32)
    assert all(torch.equal(*pair) for pair in zip(frozen(images), adapted(images), strict=True))
    trained = {name: parameter for name, parameter in adapted.backbone.named_parameters() if parameter.requires_grad}
    assert len(trained) == 12 * 2 * 2 and all('attn.' in name for name in trained)
    assert sum(map(torch.numel, trained.values())) == 12 * 3 * ((192 + 576) + (192 + 192))
    before = copy.deepcopy(adapted.state_dict())
    optimizer = torch.optim.SGD(adapted.parameters(), lr=.1, weight_decay=.1)
    adapted.start_epoch(1)
    for _ in range(2):
        optimizer.zero_grad()
        adapted(images)[0].pow(2).sum().backward()
        optimizer.step()
    changed = {name for name, value in adapted.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f'backbone.{name}' for name in trained} | {'f_embed.weight', 'f_embed.bias'}
    adapted.eval()
    expected, state = adapted(images)[0], adapted.backbone.state_dict()
    by_hand = state['blocks.5.attn.qkv.parametrizations.weight.original'] + (
        state['blocks.5.attn.qkv.parametrizations.weight.0.b'] @ state['blocks.5.attn.qkv.parametrizations.weight.0.a'])
    low_rank.merge(adapted.backbone)
    assert set(adapted.state_dict()) == set(frozen.state_dict())
    assert torch.equal(adapted.backbone.blocks[5].attn.qkv.weight, by_hand)
    torch.testing.assert_close(adapted(images)[0], expected)
    frozen.load_state_dict(adapted.state_dict())
    torch.testing.assert_close(frozen(images)[0], expected)


def test_adapters_take_effect_where_the_library_reads_the_weight_itself(opt, monkeypatch):
    """BEiT passes the weight of qkv to a function instead of calling the layer."""
    monkeypatch.setattr(timm, 'create_model', functools.partial(timm.create_model, depth=1, embed_dim=24, num_heads=2))
    model = select(opt, 'timm:beit_base_patch16_224', lora_rank=1)
    adapter = model.backbone.blocks[0].attn.qkv.parametrizations.weight[0]
    model(torch.rand(1, 3, 224, 224))[0].pow(2).sum().backward()
    assert adapter.b.grad.abs().sum() > 0


def test_adapters_need_attention(opt):
    with pytest.raises(UserError, match='--lora_rank 4: --arch conv4 has no attention with linear layers'):
        select(opt, 'conv4', lora_rank=4)
    with pytest.raises(UserError, match='--lora_rank 100000: expected at most 64, the width of the attention layers'):
        select(opt, 'timm:test_vit', lora_rank=100_000)


def test_a_run_with_frozen_blocks_resumes_exactly(quick, run, tmp_path):
    assert_resumes_exactly(run, tmp_path, [*quick, '--freeze', '1', '--warmup', '1', '--optim', 'adamw',
                                           '--evaluation_metrics', 'e_recall@1'])


def test_a_run_with_adapters_resumes_exactly_and_is_evaluated_from_its_checkpoint(quick, run, tmp_path, capsys):
    assert_resumes_exactly(run, tmp_path, [
        *quick, '--arch', 'timm:test_vit_normalize', '--input_size', '32', '--lora_rank', '2', '--layer_decay', '0.8',
        '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1'])
    folder = folder_of(tmp_path)
    capsys.readouterr()
    assert run('--evaluate', folder) == 0
    assert printed_metrics(capsys.readouterr().out)['test_e_recall@1'] == rows_of(folder)[-1]['test_e_recall@1']
    states = checkpoint.load(folder / 'checkpoint_last.pt')
    assert len(states['optimizer']['state']) == 6 * 2 * 2 + 2 + 1             # adapters, embedding layer, beta

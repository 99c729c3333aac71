"""--visual_prompts: the network equals a loop over its blocks with prompts inserted by hand, which train."""
import copy
import functools

import pytest
import torch

import architectures
from tests.helpers import assert_resumes_exactly, folder_of, rows_of
from utilities.errors import UserError

timm = pytest.importorskip('timm')
SIZE, WIDTH, N_PROMPTS = 56, 48, 3
# name, number of tokens before the patches, --prompt_depth
VITS = [('vit_small_patch14_reg4_dinov2', 5, 1), ('vit_small_patch16_dinov3', 5, 2),
        ('vit_base_patch16_siglip_224', 0, 0), ('vit_base_patch32_clip_224', 1, 2),
        ('vit_small_patch16_rope_mixed_224', 1, 0), ('eva02_tiny_patch14_224', 1, 1)]


@pytest.fixture
def small(monkeypatch):
    """Networks of timm with three narrow blocks, and weights with which attention and LayerScale matter."""
    monkeypatch.setattr(timm, 'create_model', functools.partial(timm.create_model, depth=3, embed_dim=WIDTH,
                                                                num_heads=3))

    def build(opt, arch, **flags):
        size = SIZE if 'patch14' in arch else 64
        torch.manual_seed(0)
        model = architectures.select(opt(arch=f'timm:{arch}_normalize', not_pretrained=True, input_size=size, **{
            'prompts': N_PROMPTS, 'embed_dim': 8} | flags)).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.backbone.named_parameters():
                if 'prompts' not in name:
                    parameter.copy_(.3 * torch.randn(parameter.shape, generator=generator) + ('norm' in name))
        return model, torch.rand(2, 3, size, size, generator=generator)
    return build


def by_hand(plain, prompts, images):
    """
    The tokens after the last norm of the network `plain`, with prompts[i] (or None) in block i. Instead of counting
    tokens without a position, this rotates the prompts by an angle of zero: sine 0 and cosine 1.
    """
    found = plain._pos_embed(plain.patch_embed(images))
    tokens, rope = found if isinstance(found, tuple) else (found, None)
    n_prefix = plain.num_prefix_tokens
    prefix, patches, own = plain.norm_pre(tokens)[:, :n_prefix], plain.norm_pre(tokens)[:, n_prefix:], None
    if rope is not None:
        half = rope[..., :N_PROMPTS, ::2]
        still = torch.cat([torch.zeros_like(half), torch.ones_like(half)], dim=-1)
        rope = torch.cat([still, rope], dim=-2)
    for number, block in enumerate(plain.blocks):
        own = own if prompts[number] is None else prompts[number].expand(len(images), -1, -1)
        of_block = {} if rope is None else {'rope': rope[number] if rope.dim() == 4 else rope}
        out = block(torch.cat([prefix, own, patches], dim=1), **of_block)
        prefix, own, patches = out.split([n_prefix, N_PROMPTS, patches.shape[1]], dim=1)
    return plain.norm(torch.cat([prefix, patches], dim=1))


@pytest.mark.parametrize('arch, n_prefix, depth', VITS)
def test_the_blocks_get_the_prompts_and_the_pooling_does_not(arch, n_prefix, depth, opt, small):
    prompted, images = small(opt, arch, prompt_depth=depth)
    plain, _ = small(opt, arch, prompts=0)
    assert plain.backbone.num_prefix_tokens == n_prefix
    prompts = [getattr(block, 'prompts', None) for block in prompted.backbone.blocks]
    assert [values is not None for values in prompts] == [number < (depth or 3) for number in range(3)]
    state = {name: value for name, value in prompted.backbone.state_dict().items() if 'prompts' not in name}
    assert all(torch.equal(value, plain.backbone.state_dict()[name]) for name, value in state.items())
    with torch.no_grad():
        tokens = by_hand(plain.backbone, prompts, plain.normalised(images))
        features = prompted(images)[1]
        torch.testing.assert_close(prompted.maps(prompted.backbone, plain.normalised(images)),
                                   plain.backbone.fc_norm(tokens), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(features, plain.backbone.forward_head(tokens), rtol=1e-4, atol=1e-4)
        assert (features - plain(images)[1]).abs().max() > 1e-2                            # the prompts have an effect
        for values in prompts[:depth or 3]:
            values.copy_(values.flip(0))                                                   # they have no positions
        torch.testing.assert_close(prompted(images)[1], features, rtol=1e-4, atol=1e-4)


def test_only_prompts_adapters_and_head_are_trained(opt, small):
    model, images = small(opt, 'vit_small_patch16_dinov3', lora_rank=2)
    trained = {name for name, parameter in model.backbone.named_parameters() if parameter.requires_grad}
    assert {name for name in trained if 'attn.' not in name} == {f'blocks.{number}.prompts' for number in range(3)}
    assert not model.has_fixed_features()
    bound = (6 / (3 * 16 * 16 + WIDTH)) ** .5
    assert .7 * bound < max(block.prompts.abs().max() for block in model.backbone.blocks) <= bound
    before, twin = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=.1, weight_decay=.1)
    model.start_epoch(1)
    for _ in range(2):
        optimizer.zero_grad()
        model(images)[0].pow(3).sum().backward()
        optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f'backbone.{name}' for name in trained} | {'f_embed.weight', 'f_embed.bias'}
    assert all(torch.equal(value, before[name]) for name, value in twin.state_dict().items())   # as --ema copies it


def test_cascaded_embeddings_leave_the_prompts_out(opt, small):
    model, images = small(opt, 'vit_small_patch16_dinov3', cascade=[2])
    seen = []
    model.backbone.blocks[1].register_forward_hook(lambda block, inputs, tokens: seen.append(tokens))
    embedding = model(images)[0][:, :4]
    patches = seen[0][:, 5 + N_PROMPTS:]
    assert patches.shape[1] == 16
    torch.testing.assert_close(embedding, torch.nn.functional.normalize(model.inner.layers[0](patches.mean(dim=1))))


@pytest.mark.parametrize('arch, flags, sentence', [
    ('timm:test_resnet', {}, '--visual_prompts 3: --arch timm:test_resnet cannot take them; choose a ViT of timm'),
    ('timm:beit_base_patch16_224', {}, 'or give --lora_rank for windowed or relative attention'),
    ('timm:test_vit', {'prompt_depth': 7}, '--prompt_depth 7: --arch timm:test_vit has 6 blocks; 0 means all')])
def test_other_networks_are_refused(arch, flags, sentence, opt):
    with pytest.raises(UserError, match=sentence), torch.device('meta'):
        architectures.select(opt(arch=arch, not_pretrained=True, prompts=3, **flags))


def test_a_run_with_prompts_resumes_exactly_and_in_pieces(quick, run, tmp_path):
    assert_resumes_exactly(run, tmp_path, [
        *quick, '--arch', 'timm:test_vit_normalize', '--input_size', '32', '--visual_prompts', '4', '--micro_bs', '5',
        '--amp', 'bfloat16', '--ema', '0.9', '--iterations_per_epoch', '1', '--evaluation_metrics', 'e_recall@1',
        'map_at_r'])
    first, *_, last = rows_of(folder_of(tmp_path))
    assert first['test_map_at_r'] != last['test_map_at_r']

"""The published recipes of configs/papers: they train a tiny network of the same family, and each flag acts."""
import math
import re

import pytest
import torch

import architectures
import configuration
import parts
from criteria import hier, proxyanchor
from datasets import transforms
from datasets.loading import TrainingLoader
from tests.helpers import ROOT

FILES = sorted((ROOT / 'configs' / 'papers').glob('*.yaml'))
PAGE = (ROOT / 'docs' / 'run_scripts.md').read_text(encoding='utf-8')
# what makes a step small, where a recipe has the flag
SMALL = {'bs': '12', 'samples_per_class': '2', 'micro_bs': '5', 'embed_dim': '16', 'amp': 'bfloat16',
         'loss_hier_k': '3', 'loss_hier_n_proxies': '16', 'loss_s2sd_target_dims': '24', 'loss_nir_lrmulti': '50',
         'eval_resize': '36'}


def parse(file, *arguments):
    return configuration.parse(['--config', str(file), *arguments])


@pytest.fixture(scope='module')
def table(patterns, tmp_path_factory):
    """A CSV file of the patterns, whose classes are in pairs of super-classes."""
    lines = [f'images/class_{c:02d}/{i}.png,c{c:02d},super{c // 2}' for c in range(12) for i in range(6)]
    file = tmp_path_factory.mktemp('table') / 'table.csv'
    file.write_text('\n'.join(['path,label,superclass', *lines]) + '\n')
    return file


def tiny(opt):
    """The --arch of a small network of the same family, with the same suffixes."""
    name, suffixes = architectures.parse(opt.arch)
    is_vit = 'vit' in name or 'deit' in name
    return ('timm:test_vit' if is_vit else 'timm:test_resnet') + ''.join(sorted(suffixes))


@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
def test_it_parses_and_the_network_is_known(file):
    opt = parse(file)
    assert file.stem.endswith(opt.dataset) and opt.n_epochs > 1
    architectures.find(opt.arch)
    text = file.read_text()
    assert all('#' in line for line in text.splitlines() if not line.startswith('dataset:')), 'a value without a source'


ONE_EACH = {re.sub('_(cub200|cars196|inshop|online_products)$', '', file.stem): file for file in FILES}.values()


@pytest.mark.parametrize('file', ONE_EACH, ids=lambda file: file.stem)
def test_two_steps_with_a_tiny_network(file, patterns, table):
    pytest.importorskip('timm')
    opt = parse(file)
    small = [word for flag, value in SMALL.items() if flag in opt.given for word in (f'--{flag}', value)]
    opt = parse(file, *small, '--dataset', 'folder', '--csv', str(table), '--source_path', str(patterns), '--arch',
                tiny(opt), '--not_pretrained', '--device', 'cpu', '--kernels', '0', '--input_size', '32',
                '--iterations_per_epoch', '2', '--loss_nir_nf_fc_width', '16', '--loss_s2sd_feat_distill_delay', '0')
    built = parts.build(opt)
    trained = [parameter for group in built.optimizer.param_groups for parameter in group['params'] if group['lr'] > 0]
    before = [parameter.detach().clone() for parameter in trained]
    built.model.start_epoch(opt.warmup + 1)
    for step, batch in enumerate(TrainingLoader(opt, built.data.train, built.sampler).epoch(1), start=1):
        built.schedule.at(step)
        _, scalars = built.step(*batch, step, 1)
    assert step == 2 and scalars
    idle = configuration.unread(opt, trained=True, evaluated=False)
    assert not {*parse(file).given} & idle.keys()
    moved = [not one.equal(other) for one, other in zip(before, trained, strict=True)]
    frozen = sum(not parameter.requires_grad for parameter in trained)
    assert sum(moved) > .9 * (len(moved) - frozen) and all(parameter.isfinite().all() for parameter in trained)


def test_the_page_has_the_reported_number_of_every_recipe():
    """?: not found; *: of another dimension, network or weights than the file's."""
    lines = re.search(r'^\| file \|.*\n(?:\|.*\n)+', PAGE, re.MULTILINE)[0].splitlines()
    head, _, *rows = ([cell.strip(' `') for cell in line.split('|')[1:-1]] for line in lines)
    found = {f'{name}_{data}': (number, backbone) for name, _, backbone, *numbers in rows
             for data, number in zip(head[3:], numbers, strict=True) if number}
    assert set(found) == {file.stem for file in FILES}
    for file in FILES:
        header, (number, backbone) = ' '.join(re.findall('^# (.*)', file.read_text(), re.MULTILINE)), found[file.stem]
        reported, source = re.search(r'Reported R@1: (not found|[\d.]+\d)(.*)', header).groups()
        assert number.strip('*') == ('?' if reported == 'not found' else reported), file.stem
        assert ('*' in number) == bool(re.search(r'^ \(with|which names|not theirs', source)), file.stem
        assert f'with {backbone}.' in header


def test_numbers_of_the_publications():
    """A few of each kind, read from the publications' own files: rates, batches, steps, and what is derived."""
    def flags(name):
        return parse(ROOT / 'configs' / 'papers' / f'{name}.yaml')

    opt = flags('proxyanchor_resnet50_cars196')
    assert (opt.bs, opt.lr, opt.warmup, opt.tau, opt.gamma, opt.clip_grad_value) == (
        120, 1e-4, 5, [10, 20, 30, 40, 50], .5, 10)
    for data, lr, proxies in [('cub200', .004, 400), ('online_products', .024, 240), ('inshop', .024, 2400)]:
        opt = flags(f'proxynca_pp_{data}')
        assert opt.lr == lr and opt.lr * opt.loss_proxynca_pp_lrmulti == pytest.approx(proxies)
    opt = flags('recallatk_vit_b16_online_products')
    assert (opt.bs, opt.micro_bs, opt.samples_per_class, opt.lr, opt.tau) == (4000, 100, 4, 5e-5, [25, 50])
    for data, n_pairs in [('cub200', 72), ('cars196', 72), ('online_products', 2), ('inshop', 2)]:
        opt = flags(f'hyp_dino_{data}')
        assert opt.loss_weights == [n_pairs] and opt.lr == 1e-5 and opt.clip_grad == 3 and opt.crop_scale == [.2, 1]
    opt = flags('hier_dino_inshop')
    assert opt.fc_lr == pytest.approx(100 * 5e-6) and opt.adam_eps == 1e-4
    for data, decay in [('cub200', .01), ('cars196', .01), ('online_products', 1e-4), ('inshop', 1e-4)]:
        vit, dino, resnet = networks = [flags(f'hier_{network}_{data}') for network in ('vit', 'dino', 'resnet50')]
        assert all(opt.loss_decay == opt.decay == decay for opt in networks)
        assert vit.freeze == dino.freeze == 'stem' and resnet.freeze == 'none' and resnet.pool == 'avg_max'
    for name in ('deit_cub200', 'deit_online_products', 'resnet50_cub200', 'resnet50_online_products'):
        opt = flags(f'roadmap_{name}')
        assert 'deit' not in name or opt.decay == 5e-4
        crop = transforms.select(opt, 224)[0].transforms[0 if opt.crop_scale else 1]
        assert (list(crop.scale), list(crop.ratio)) == ([.16, 1], [.75, 1.33])
    opt = flags('softtriple_cars196')
    assert opt.loss_softtriplet_lrmulti * 1e-4 == pytest.approx(1e-2)
    assert opt.tau == [19, 39] and opt.iterations_per_epoch == math.ceil(8054 / opt.bs)


@pytest.mark.parametrize('file', [file for file in ONE_EACH if file.stem.startswith('hier_')],
                         ids=lambda file: file.stem)
def test_hier_and_its_base_loss_are_balanced_as_by_the_authors(file):
    """
    The authors compute both losses from points of the ball, whose gradients they scale. The embeddings of these
    networks have norms near the square root of their dimension, which is above the clip.
    """
    opt = parse(file)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(12, opt.embed_dim, generator=generator, dtype=torch.float64, requires_grad=True)
    proxies = torch.randn(5, opt.embed_dim, generator=generator, dtype=torch.float64)
    assert opt.loss == 'proxyanchor+hier' and batch.norm(dim=1).min() > opt.loss_hier_clip_r
    labels, flags = torch.arange(12) % 5, (opt.loss_proxyanchor_margin, opt.loss_proxyanchor_alpha)
    points = hier.with_riemannian_gradient(hier.to_ball(batch, opt.loss_hier_c, opt.loss_hier_clip_r), opt.loss_hier_c)
    theirs, ours = (torch.autograd.grad(proxyanchor.proxyanchor_loss(part, labels, proxies, *flags), batch)[0]
                    for part in (points, batch))
    torch.testing.assert_close(opt.loss_weights[0] * ours, theirs, rtol=1e-3, atol=0)
    assert opt.loss_weights[1] == .5
    short = torch.nn.functional.normalize(batch).detach()
    norms = hier.to_ball(short, opt.loss_hier_c, opt.loss_hier_clip_r).square().sum(dim=1)
    torch.testing.assert_close((1 - opt.loss_hier_c * norms) ** 2 / 4, torch.full_like(norms, .205), rtol=0, atol=5e-4)

"""evaluation/embedding.py: what is changed there acts wherever a network embeds, and kept features are never stale."""
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import hflip, resize

import configuration
import evaluation
import hubconf
import parts
import retrieval
import Retrieve_Images
from architectures.embedding_network import EmbeddingNetwork
from datasets.pipeline import Pipeline
from evaluation import embedding
from evaluation.embedding import network_input
from records import checkpoint
from tests.helpers import after_training, assert_same_end, export_here, folder_of, printed_metrics, rows_of
from utilities.errors import UserError

FROZEN = ['--freeze', 'backbone', '--arch', 'conv4_frozen_normalize', '--no_train_metrics', 'false',
          '--evaluation_metrics', 'e_recall@1', 'map_at_r', 'dists@intra']
WITHOUT_KEPT = ['--keep_features', 'false', '--group', 'again']


def by_hand(folder, paths):
    """The mean embeddings of the images at `paths`, of their mirror images and of the images of 26 and 38 pixels."""
    network, transform = retrieval.load(folder, 'cpu')
    images = torch.stack([transform(Image.open(path)) for path in paths])
    views = [images, torch.stack([hflip(image) for image in images]),
             *(resize(images, [size] * 2) for size in (26, 38))]
    with torch.no_grad():
        return torch.stack([network.model(view)[0] for view in views]).mean(dim=0)


def test_views_act_wherever_a_network_embeds(quick, run, tmp_path, capsys, monkeypatch):
    """One that is given twice counts once."""
    flags = [*quick, *FROZEN, '--augmentation', 'base', '--n_epochs', '3', '--eval_views', '0.8', '1', '1.2', 'flip',
             '0.8', '--input_size', '32', '--pool', 'avg', '--arch', 'conv4_frozen']
    assert run(*flags) == 0
    assert run(*flags, *WITHOUT_KEPT) == 0
    folder = folder_of(tmp_path)
    assert_same_end(folder, folder_of(tmp_path, 'again_s1'))

    assert after_training(folder, 'embeddings', tmp_path / 'out.npz', '--splits_to_eval', 'test') == 0
    written = np.load(tmp_path / 'out.npz')
    paths = written['paths'].tolist()
    expected = by_hand(folder, paths)
    torch.testing.assert_close(torch.from_numpy(written['embeddings']), expected, rtol=0, atol=1e-5)
    metrics = evaluation.compute(['e_recall@1', 'map_at_r', 'dists@intra'], expected, written['labels'])
    wanted = {f'test_{name}': value for name, value in metrics.items()}
    row = rows_of(folder)[-1]
    assert {name: float(row[name]) for name in wanted} == pytest.approx(wanted, abs=1e-5)
    for evaluate in (lambda: run('--evaluate', folder), lambda: after_training(folder)):
        capsys.readouterr()
        assert evaluate() == 0
        printed = printed_metrics(capsys.readouterr().out)
        assert {name: float(printed[name]) for name in wanted} == pytest.approx(wanted, abs=1e-4)       # 4 digits

    network, transform = retrieval.load(folder, 'cpu')
    torch.testing.assert_close(retrieval.embed(network, transform, paths), expected, rtol=0, atol=1e-5)
    machine = ['--device', 'cpu', '--kernels', '0']
    assert Retrieve_Images.main(['index', str(folder), *paths[1:], '--out', str(tmp_path / 'index'), *machine]) == 0
    found = retrieval.Index(tmp_path / 'index')
    np.testing.assert_allclose(np.asarray(found.embeddings), expected[1:], rtol=0, atol=1e-5)
    asked = ['query', str(tmp_path / 'index'), paths[0], '--json', str(tmp_path / 'found.json'), *machine]
    assert Retrieve_Images.main(asked) == 0
    nearest = json.loads((tmp_path / 'found.json').read_text())[0]['nearest']
    distances = torch.cdist(expected[:1], expected[1:])[0].sort().values
    assert [one['distance'] for one in nearest] == pytest.approx(distances[:len(nearest)].tolist(), abs=1e-4)

    export_here(monkeypatch)
    hub = hubconf.network(folder)
    pixels = (torch.stack([transform(Image.open(path)) for path in paths]) * 255).round().to(torch.uint8)
    torch.testing.assert_close(hub(pixels), expected, rtol=0, atol=1e-5)


def test_views_of_the_evaluation_do_not_change_the_training(quick, run, tmp_path):
    """Neither by the memory bank of a sampler, nor by an embedding layer that is fitted to the training images."""
    flags = [*quick, '--n_epochs', '1', '--pool', 'avg', '--embed_init', 'pca', '--data_sampler', 'greedy_coreset',
             '--data_batchmatch_bigbs', '24']
    for more in (['--group', 'none'], ['--group', 'views', '--eval_views', 'flip']):
        assert run(*flags, *more) == 0
    one, other = (checkpoint.load(folder_of(tmp_path, f'{group}_s1') / 'checkpoint_last.pt')['model']
                  for group in ('none', 'views'))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize('arch', ['conv4', 'conv4_normalize'])
def test_norms_of_embeddings_of_several_depths(arch, quick):
    """Those of the embeddings, or of the last depth where each is normalised."""
    opt = configuration.parse([*quick, '--arch', arch, '--cascade', '1', '--cascade_fractions', '0.5'])
    built = parts.build(opt)
    found = embedding.embed(opt, built.model, built.data.evaluation['test'], 'test')
    features = embedding.embed(opt, built.model, built.data.evaluation['test'], 'test', features=True).embeddings
    with torch.inference_mode():
        raw = found.embeddings if arch == 'conv4' else built.model.f_embed(features)
    np.testing.assert_allclose(found.norms, raw.norm(dim=1), rtol=1e-5)


def test_queries_that_are_in_the_gallery_are_validated_as_they_are_evaluated(quick, patterns, tmp_path):
    """All images of the validation split are queries, and some of them are the gallery."""
    rows = ['path,label,split,is_query,is_gallery']
    for file in sorted(patterns.rglob('*.png')):
        part = ('train', 'val', 'test')[int(file.parent.name[-2:]) % 3]
        rows.append(f'{file},{file.parent.name},{part},true,{int(file.stem) < 4}')
    (tmp_path / 'list.csv').write_text('\n'.join(rows))
    opt = configuration.parse([*quick, '--csv', str(tmp_path / 'list.csv'), '--bs', '8', '--arch', 'conv4',
                               '--eval_normalize'])
    built = parts.build(opt)
    found = evaluation.validate(opt, built.model, built.data, ['e_recall@1', 'nmi'])
    row, _ = evaluation.evaluate(opt, built.model, built.data)
    assert found == {name: row[f'val_{name}'] for name in found} and found['e_recall@1'] > 0


@pytest.mark.parametrize('flags', [
    ['--augmentation', 'none', '--ema', '.5'],
    ['--augmentation', 'base'],
    ['--augmentation', 'none', '--eval_every', '4'],
], ids=' '.join)
def test_a_backbone_is_unfrozen_for_an_epoch(flags, quick, run, tmp_path, monkeypatch, capsys):
    """It is trained in the second of four epochs, and frozen again."""
    start = EmbeddingNetwork.start_epoch

    def start_epoch(network, epoch):
        network.backbone.requires_grad_(epoch == 2)
        network.kept = [] if epoch == 2 else ['']
        start(network, epoch)
    monkeypatch.setattr(EmbeddingNetwork, 'start_epoch', start_epoch)
    flags = [*quick, *FROZEN, '--n_epochs', '4', '--lr', '0.1', *flags]
    assert run(*flags) == 0
    assert 'are computed once' in capsys.readouterr().out
    assert run(*flags, *WITHOUT_KEPT) == 0
    assert_same_end(folder_of(tmp_path), folder_of(tmp_path, 'again_s1'))


def test_bad_views_are_refused_by_a_sentence(quick, run, capsys):
    for views, sentence in ((['mirror'], '--eval_views: expected flip or a positive number, not mirror'),
                            (['-1'], '--eval_views: expected flip or a positive number, not -1'),
                            (['1e308'], '--eval_views 1e+308: it makes images of more than 10,000 pixels a side'),
                            (['1', '900'], '--eval_views 900: it makes images of more than 10,000 pixels a side'),
                            (['0.8'], '--eval_views 0.8: the network cannot process images of this size'),
                            (['2'], '--eval_views 2: --arch conv4_normalize has another number of features')):
        assert run(*quick, '--eval_views', *views) == 2
        error = capsys.readouterr().err
        assert sentence in error and len(error.splitlines()) == 1


def kept(quick, *flags):
    """(opt, Parts) of a run that keeps features of all images."""
    opt = configuration.parse([*quick, *FROZEN, '--augmentation', 'none', *flags])
    built = parts.build(opt)
    parts.keep_features(opt, built)
    return opt, built


def test_another_transform_has_features_of_its_own(quick):
    opt, built = kept(quick)
    images = built.data.evaluation['test']
    before = embedding.embed(opt, built.model, images, 'test').embeddings
    images.transform = Pipeline([*images.transform.transforms, blackened])
    found = embedding.embed(opt, built.model, images, 'test').embeddings
    again = embedding.embed(opt, built.model, images, 'test').embeddings
    images.features = None
    assert torch.equal(found, embedding.embed(opt, built.model, images, 'test').embeddings)
    assert torch.equal(found, again) and not torch.allclose(found, before, atol=1e-3)


def blackened(image):
    pixels = np.array(image)
    pixels[:8] = 0
    return Image.fromarray(pixels)


def test_features_take_the_place_of_images_for_their_network_and_its_moving_average_only(quick):
    opt, built = kept(quick, '--ema', '.5')
    train = built.data.train
    other = parts.build(opt).model
    with torch.no_grad():
        other.backbone[0][0].weight.mul_(2)
    images, labels, indices = next(iter(train.features.of(train).loader([[(3, 123), (30, 4), (4, 5)]])))
    pixels = torch.stack([train[index][0] for index in (3, 30, 4)])
    with torch.inference_mode():
        embeddings, features = built.model(pixels)
        assert torch.equal(images, features) and indices.tolist() == [3, 30, 4]
        assert labels.tolist() == [train[index][1] for index in (3, 30, 4)]
        for network in (built.model, built.ema.average):
            assert torch.equal(embedding.embed_batch(network, images)[0], embeddings)
            assert train.features.of(train, network)
        assert not train.features.of(train, other)
        test = built.data.evaluation['test']
        found = embedding.embed(opt, other, test, 'test').embeddings
        torch.testing.assert_close(found, other(torch.stack([image for image, _, _ in test]))[0])
    with pytest.raises(UserError, match='the pixels of images are needed .* give --keep_features false'):
        network_input(images, opt.device)
    assert pickle.loads(pickle.dumps(train)).features is None                      # as for a data worker

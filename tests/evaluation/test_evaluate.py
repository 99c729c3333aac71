"""The evaluation's flags in whole runs: what is embedded, what it is searched in, intervals, pictures."""
import csv
import functools
import json
import re
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

import criteria
import evaluation
from evaluation.pictures import PICTURES
from records import checkpoint, reading
from tests.blank.plots import PLOT, RETRIEVAL
from tests.conftest import draw_classes
from tests.helpers import GPU, after_training, folder_of, printed_metrics, rows_of
from utilities import plotting


def test_clusters_every_other_epoch_and_in_the_last(quick, run, tmp_path):
    assert run(*quick, '--n_epochs', '3', '--cluster_every', '2', '--evaluation_metrics', 'e_recall@1', 'nmi') == 0
    rows = rows_of(folder_of(tmp_path))
    assert [row['test_nmi'] != '' for row in rows] == [True, False, True, True]
    assert all(row['test_e_recall@1'] for row in rows)
    assert not [*folder_of(tmp_path).rglob('*.png')]                        # --pictures none


def test_intervals_stand_beside_their_metric(quick, run, tmp_path, capsys, all_plots):
    assert run(*quick, '--n_epochs', '0', '--bootstrap', '40', '--evaluation_metrics', 'e_recall@1', 'map_at_r', 'nmi',
               'dists@intra') == 0
    row, = rows_of(folder_of(tmp_path))
    for name in ('e_recall@1', 'map_at_r'):
        low, value, high = (float(row[f'test_{name}{end}']) for end in ('_low', '', '_high'))
        assert low <= value <= high
    assert 'test_nmi_low' not in row and 'test_dists@intra_low' not in row
    assert run(*quick, '--n_epochs', '0', '--pictures', 'metrics', '--group', 'drawn', '--evaluation_metrics',
               'e_recall@1', 'dists@intra') == 0
    plots = folder_of(tmp_path, 'drawn_s1') / 'plots'
    assert {'curves.png', 'loss.png', 'e_recall.png', 'dists@intra.png'} <= {file.name for file in plots.iterdir()}
    assert after_training(plots.parent, 'pictures', tmp_path / 'drawn') == 2
    assert 'nothing to draw with --pictures metrics' in capsys.readouterr().err


def test_the_figure_of_the_curves_has_each_metric_and_each_split_once(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plotting, 'save', lambda figure, file: figures.append(figure))
    splits, metrics = ('train', 'test'), ('e_recall@1', 'e_recall@4', 'nmi', 'dists@intra')
    names = [f'{split}_{metric}' for split in splits for metric in metrics]
    PLOT([{'epoch': str(epoch), 'train_loss': '1', **{name: str(epoch / 4) for name in names}} for epoch in (0, 2)],
         tmp_path)
    figure, = figures
    assert [axes.get_title('left') for axes in figure.axes] == ['loss', 'R@k (%)', 'NMI (%)', 'intra']
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(splits)
    _, recall, nmi, intra = figure.axes
    assert [len(axes.lines) for axes in figure.axes] == [1, 4, 2, 2]
    assert [text.get_text() for text in recall.texts] == ['1', '4']
    lower, upper = (text.get_window_extent() for text in recall.texts)       # of lines that end in the same point
    assert lower.y1 <= upper.y0 < lower.y1 + lower.height
    assert nmi.lines[0].get_xydata().tolist() == [[0, 0], [2, 50]]           # percent
    assert intra.lines[0].get_xydata().tolist() == [[0, 0], [2, 0.5]]


def test_more_images_to_search_in_make_retrieval_harder(quick, run, tmp_path, capsys):
    for reference in ('self', 'all'):
        assert run(*quick, '--n_epochs', '0', '--eval_reference', reference, '--group', reference,
                   '--evaluation_metrics', 'e_recall@1', 'mAP', 'nmi') == 0
    alone, = rows_of(folder_of(tmp_path, 'self_s1'))
    beside, = rows_of(folder_of(tmp_path, 'all_s1'))
    assert float(beside['test_mAP']) < float(alone['test_mAP']) and beside['test_nmi'] == alone['test_nmi']
    assert run(*quick, '--eval_reference', 'train') == 2
    assert '--eval_reference train: no evaluated class is a training class' in capsys.readouterr().err
    assert run(*quick, '--use_tv_split', '--tv_split_by_samples', '--n_epochs', '0', '--eval_reference', 'train',
               '--splits_to_eval', 'val', '--evaluation_metrics', 'e_recall@1', '--group', 'train') == 0
    assert float(rows_of(folder_of(tmp_path, 'train_s1'))[0]['val_e_recall@1']) > .1


@pytest.fixture
def products(tmp_path):
    """Stanford Online Products in small: four classes of three images in each of two categories, for each part."""
    random = np.random.default_rng(0)
    root, number = tmp_path / 'data' / 'Stanford_Online_Products', 0
    for part in ('train', 'test'):
        rows = ['image_id class_id super_class_id path']
        for c in range(8):
            category, pattern = ('bicycle', 'chair')[c % 2], random.uniform(0, 255, (16, 16, 3))
            (root / f'{category}_final').mkdir(parents=True, exist_ok=True)
            number += 1
            for i in range(3):
                path = f'{category}_final/{number}_{i}.png'
                pixels = (pattern + random.normal(0, 90, pattern.shape)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / path)
                rows.append(f'{len(rows)} {number} {c % 2 + 1} {path}')
        (root / f'Ebay_{part}.txt').write_text('\n'.join(rows) + '\n')
    return tmp_path / 'data'


def test_levels_of_a_hierarchy(quick, products, run, tmp_path, capsys):
    assert run(*quick, '--dataset', 'online_products', '--source_path', products, '--n_epochs', '0',
               '--eval_level', 'class', 'parent', 'within',
               '--evaluation_metrics', 'e_recall@1', 'nmi', 'dists@intra', 'mAP') == 0
    with open(tmp_path / 'runs' / 'online_products' / 'quick_s1' / 'log.csv') as file:
        row, = csv.DictReader(file)
    names = [name.removeprefix('test_') for name in row if name.startswith('test_')]
    assert names == ['e_recall@1', 'nmi', 'dists@intra', 'mAP', 'parent_e_recall@1', 'parent_nmi', 'parent_mAP',
                     'within_e_recall@1', 'within_mAP']
    assert float(row['test_parent_e_recall@1']) >= float(row['test_e_recall@1'])
    assert float(row['test_within_mAP']) >= float(row['test_mAP'])                # fewer rivals
    assert run(*quick, '--storage_metrics', 'parent_e_recall@1') == 2
    assert '--storage_metrics parent_e_recall@1: the level parent is not evaluated; add' in capsys.readouterr().err
    assert run(*quick, '--eval_level', 'within', '--storage_metrics', 'nmi') == 2
    assert '--storage_metrics within_nmi: nmi is not computed at the level within' in capsys.readouterr().err
    assert run(*quick, '--eval_level', 'class', 'parent') == 2
    assert '--eval_level class parent: --dataset folder has no super-classes' in capsys.readouterr().err
    folder = tmp_path / 'runs' / 'online_products' / 'quick_s1'
    alone = [*quick, '--dataset', 'online_products', '--source_path', products, '--eval_level',
             'within', '--evaluation_metrics', 'e_recall@1', 'mAP', '--train_level', '1', '--bs', '4',
             '--group', 'alone']
    assert run(*alone, '--n_epochs', '1') == 0
    assert run('--resume', folder.with_name('alone_s1'), '--n_epochs', '2') == 0
    summary = json.loads((folder.with_name('alone_s1') / 'summary.json').read_text())
    assert summary['selected_by'] == 'within_e_recall@1' and 'test_e_recall@1' not in summary['last_epoch']
    assert summary['best_on_test']['test_within_e_recall@1'] >= float(row['test_within_e_recall@1'])     # of epoch 0
    assert (folder.with_name('alone_s1') / 'checkpoint_test_within_e_recall@1.pt').exists()
    few = ['--evaluate', folder, '--eval_reference', 'train', '--evaluation_metrics', 'e_recall@1']
    assert run(*few, '--eval_level', 'parent') == 0               # training and test classes share super-classes
    assert 0 < float(printed_metrics(capsys.readouterr().out)['test_parent_e_recall@1']) <= 1
    assert run(*few, '--eval_level', 'class', 'parent') == 2
    assert 'no evaluated class is a training class' in capsys.readouterr().err


def test_what_is_evaluated_instead_of_the_embeddings(quick, run, tmp_path, capsys):
    flags = {'plain': [], 'features': ['--eval_features'], 'pca': ['--pca', '3'],
             'mixed': ['--eval_autocast', 'bfloat16'], 'unit': ['--eval_normalize', '--arch', 'conv4']}
    for group, more in flags.items():
        assert run(*quick, *more, '--n_epochs', '0', '--group', group, '--evaluation_metrics',
                   'e_recall@1', 'c_map_at_r', 'map_at_r', 'rho_spectrum@0') == 0
    rows = {group: rows_of(folder_of(tmp_path, f'{group}_s1'))[0] for group in flags}
    assert len({row['test_map_at_r'] for row in rows.values()}) >= 4
    assert rows['unit']['test_map_at_r'] == rows['unit']['test_c_map_at_r']
    spectra = {group: (folder_of(tmp_path, f'{group}_s1') / 'spectrum.csv').read_text() for group in flags}
    assert spectra['pca'].splitlines()[0] == 'epoch,split,1,2,3'
    assert len(spectra['features'].splitlines()[0].split(',')) > len(spectra['plain'].splitlines()[0].split(','))
    assert run(*quick, '--pca', '99') == 2
    assert '--pca 99: the embeddings have 16 dimensions' in capsys.readouterr().err


class Backwards(torch.nn.Module):
    """Ranks the farthest image first, by a parameter."""

    def __init__(self, opt):
        super().__init__()
        self.matrix, self.lr = torch.nn.Parameter(-torch.eye(opt.embed_dim)), 0.

    def forward(self, batch, labels, **kwargs):
        return batch.sum() + 0 * self.matrix.sum()

    def ranking_embeddings(self, embeddings):
        return embeddings, embeddings @ self.matrix


@pytest.mark.gpu
def test_a_criterion_on_the_device_ranks_embeddings_on_the_cpu(opt):
    flags = opt(embed_dim=3)
    flags.device = torch.device(GPU, 0)
    criterion = Backwards(flags).to(flags.device)
    with torch.inference_mode():
        points = torch.rand(5, 3)
    part = evaluation.as_evaluated(flags, {'test': evaluation.embedding.Embedded(points, Images())}, criterion)['test']
    queries, gallery = part.ranking(part.embeddings)
    assert torch.equal(queries, points) and torch.equal(gallery, -points)


def test_a_criterions_own_distance_ranks_in_training_and_in_evaluation_alone(quick, run, tmp_path, capsys, monkeypatch):
    module = type('backwards', (), {'Criterion': Backwards, 'REQUIRES_BATCHMINER': False})
    monkeypatch.setitem(criteria.CRITERIA, 'backwards', module)
    assert run(*quick, '--loss', 'backwards', '--n_epochs', '1', '--lr', '0',
               '--evaluation_metrics', 'mAP', 'c_mAP', 'e_recall@1') == 0
    row = rows_of(folder_of(tmp_path))[-1]
    assert float(row['test_mAP']) < float(row['test_c_mAP']) - .1
    capsys.readouterr()
    assert run('--evaluate', folder_of(tmp_path)) == 0
    assert printed_metrics(capsys.readouterr().out)['test_mAP'] == row['test_mAP']


def test_without_its_library_a_network_is_evaluated_all_the_same(quick, run, tmp_path, capsys, monkeypatch):
    pytest.importorskip('pytorch_metric_learning')
    assert run(*quick, '--loss', 'pml:ContrastiveLoss', '--batch_mining', 'none', '--n_epochs', '0',
               '--evaluation_metrics', 'e_recall@1') == 0
    monkeypatch.setitem(sys.modules, 'pytorch_metric_learning', None)
    assert run('--evaluate', folder_of(tmp_path)) == 0
    row = rows_of(folder_of(tmp_path))[0]
    assert printed_metrics(capsys.readouterr().out)['test_e_recall@1'] == row['test_e_recall@1']
    assert after_training(folder_of(tmp_path), 'embeddings', tmp_path / 'embedded.npz') == 0


def test_every_picture_as_png_and_svg_and_the_same_file_again(quick, run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(PICTURES, 'retrieval', functools.partial(RETRIEVAL, n_queries=2))
    pictures = list(PICTURES)
    few = draw_classes(tmp_path / 'few' / 'images', 6, 4).parent                    # each image takes time to draw
    for place in (few / 'images').iterdir():
        place.rename(place.with_name(f'{place.name} with a name of so many words that a figure cannot show them all'))
    assert run(*quick, '--source_path', few, '--n_epochs', '0', '--pictures', *pictures) == 0
    run_folder, plots = folder_of(tmp_path), folder_of(tmp_path) / 'plots'
    capsys.readouterr()
    assert not [*run_folder.rglob('*.svg')]
    again = ['distances', 'classes']
    random = ['retrieval', 'tsne', *again]                          # the others sample nothing
    for folder, some in (('again', again), ('drawn', random)):
        monkeypatch.setitem(matplotlib.rcParams, 'axes.labelsize', 'large')           # as a matplotlibrc may have it
        assert after_training(run_folder, 'pictures', tmp_path / folder, '--pictures', *some) == 0
        assert len(capsys.readouterr().out.splitlines()) >= 2 * len(some)
    for name in pictures:
        png = (run_folder if name == 'retrieval' else plots) / f'{name}_test.png'
        picture = np.asarray(Image.open(png).convert('L'))
        assert picture.shape[1] >= 1000 and picture.std() > 5
        assert name not in random or png.read_bytes() == (tmp_path / 'drawn' / png.name).read_bytes()
    for name in again:
        # clips are named after memory addresses
        one, other = (re.sub(r'\bp[0-9a-f]{10}\b', '', (folder / f'{name}_test.svg').read_text())
                      for folder in (tmp_path / 'again', tmp_path / 'drawn'))
        assert one == other, name
    assert after_training(run_folder, 'pictures', tmp_path / 'other', '--splits_to_eval', 'val') == 2
    assert '--splits_to_eval val: there is no such split' in capsys.readouterr().err


def test_what_is_retrieved_is_drawn_once_unless_no_picture_is(quick, run, tmp_path):
    for picture in ('spectrum', 'retrieval'):
        assert run(*quick, '--n_epochs', '0', '--group', picture, '--pictures', picture, '--evaluation_metrics', 'nmi',
                   'e_recall@1') == 0
        folder = folder_of(tmp_path, f'{picture}_s1')
        assert [path.relative_to(folder) for path in folder.rglob('retrieval*.png')] == [Path('retrieval_test.png')]


def test_pictures_of_what_has_nothing_to_show():
    """One image per class: nothing to retrieve, no positive pairs."""
    class Images:
        labels = np.arange(5)
        class_names = list('abcde')
        is_query = np.ones(5, bool)
        in_gallery = np.ones(5, bool)
        is_distractor = np.zeros(5, bool)

    embedded = evaluation.embedding.Embedded(torch.rand(5, 3), Images())
    for name in PICTURES:
        figure = PICTURES[name](embedded, 0)
        assert (figure is not None) == (name == 'spectrum'), name


class Images(torch.utils.data.Dataset):
    """Grey images, 10 of each class."""

    def __init__(self, class_names=('$$', 'a$^$b', r'\$x_1$', '$')):
        self.class_names, self.n_classes = class_names, len(class_names)
        self.labels = np.arange(10 * len(class_names)) // 10
        self.is_query = np.ones(len(self.labels), bool)
        self.in_gallery = np.ones(len(self.labels), bool)
        self.is_distractor = np.zeros(len(self.labels), bool)

    def __getitem__(self, index):
        return torch.full((3, 4, 4), index / 40), int(self.labels[index]), index


@pytest.mark.parametrize('name', ['retrieval', 'classes'])
def test_names_with_dollars_are_no_formulas(name, tmp_path, all_plots):
    embeddings = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    drawn = plotting.styled(PICTURES[name])(evaluation.embedding.Embedded(embeddings, Images()), 0)
    plotting.styled(plotting.save)(drawn, tmp_path / 'picture.svg')
    assert '<!-- $$ -->' in (tmp_path / 'picture.svg').read_text()


@pytest.mark.parametrize('n_classes, letter', [(2, 'W'), (90, 'Mean value ')])
def test_many_long_names_lie_inside_every_figure(n_classes, letter, opt, tmp_path, all_plots, inspected,
                                                 monkeypatch):
    from sklearn.manifold import TSNE
    monkeypatch.setattr(TSNE, 'fit_transform', lambda self, points: points[:, :2])       # where they lie is no matter
    embeddings = torch.randn(10 * n_classes, 8, generator=torch.Generator().manual_seed(0))
    images = Images([f'{letter * 20}{number}' for number in range(n_classes)])
    pictures = [name for name in PICTURES if name != 'why']               # why needs a network
    embedded = evaluation.embedding.Embedded(embeddings, images, norms=embeddings.norm(dim=1).numpy())
    evaluation.pictures.save(opt(pictures=pictures), embedded, 'test', tmp_path)
    assert len(inspected) == len(pictures)


def test_equal_embeddings_have_no_picture_on_a_plane_and_those_of_one_dimension_have():
    one_dimension = torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
    for embeddings, is_drawn in ((torch.full((40, 8), 0.5), False), (one_dimension, True)):
        figure = PICTURES['tsne'](evaluation.embedding.Embedded(embeddings, Images()), 0)
        assert (figure is not None) == is_drawn


@pytest.mark.parametrize('name', ['distances', 'roc', 'tsne', 'spectrum'])
def test_distractors_are_of_no_class_in_pictures(name, tmp_path):
    """The pictures of images with distractors, of the first class, are those without them."""
    images = Images('abcd')
    images.is_distractor = images.labels == 0
    points = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    for number, embedded in enumerate((evaluation.embedding.Embedded(points, images),
                                       evaluation.embedding.Embedded(points[10:], Images('bcd')))):
        plotting.styled(plotting.save)(plotting.styled(PICTURES[name])(embedded, 0), tmp_path / f'{number}.png')
    assert (tmp_path / '0.png').read_bytes() == (tmp_path / '1.png').read_bytes()


@pytest.mark.filterwarnings('error::RuntimeWarning')
def test_a_collapsed_network_is_told_in_a_sentence_not_by_warnings(opt, capsys):
    flags = opt(eval_level=[])
    apart = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    for embeddings, is_collapsed in ((torch.full((40, 8), 0.5), True), (apart[:1] * (1 + 1e-8 * apart), True),
                                     (apart, False), (1e-9 * apart, False)):
        embedded = {'test': evaluation.embedding.Embedded(embeddings, Images())}
        evaluation.protocol.compute_metrics(flags, embedded, ['test'], [])
        assert ('all embeddings of the test split are the same' in capsys.readouterr().err) == is_collapsed
    assert PICTURES['distances'](evaluation.embedding.Embedded(torch.full((40, 8), 0.5), Images()), 0) is None


@pytest.mark.parametrize('flags, sentence', [
    (['--storage_metrics', 'opis', '--evaluation_metrics', 'opis'], 'its value does not say which network is better'),
    (['--storage_metrics', ''], '--storage_metrics : not among the --evaluation_metrics'),
    (['--pictures', 'none', 'retrieval'], '--pictures none retrieval: none cannot be combined with others'),
    (['--splits_to_eval', 'train', '--eval_reference', 'train', '--no_train_metrics', 'false'],
     '--eval_reference train sets the gallery of test and validation queries'),
])
def test_what_does_not_go_together_is_refused(flags, sentence, quick, run, capsys):
    assert run(*quick, *flags) == 2
    assert sentence in capsys.readouterr().err


def test_levels_of_a_csv_and_norms_before_normalisation(quick, patterns, run, tmp_path, capsys):
    """Two columns of super-classes; the metrics are those of the embeddings and norms that --embed writes."""
    rows = [f'{file},{file.parent.name},{int(file.parent.name[-2:]) // 2},{int(file.parent.name[-2:]) // 4}'
            for file in sorted(patterns.rglob('*.png'))]
    (tmp_path / 'list.csv').write_text('\n'.join(['path,label,superclass,superclass_2', *rows]))
    metrics = ['h_ap', 'asi', 'ndcg', 'c_r_auroc', 'tpr@0.01', 'opis', 'threshold_spread@0.01']
    assert run(*quick, '--csv', tmp_path / 'list.csv', '--n_epochs', '1', '--evaluation_metrics',
               'e_recall@1', *metrics) == 0
    row = rows_of(folder_of(tmp_path))[-1]
    assert after_training(folder_of(tmp_path), 'embeddings', tmp_path / 'out.npz', '--splits_to_eval', 'test') == 0
    written = np.load(tmp_path / 'out.npz')
    classes = np.array([int(name[-2:]) for name in written['class_names']])
    embeddings = torch.from_numpy(written['embeddings'])
    pool = evaluation.Pool(embeddings, written['labels'], levels=np.stack([classes // 2, classes // 4], axis=1),
                           norms=written['norms'])
    values = evaluation.compute(metrics, embeddings, written['labels'], pool=pool)
    assert {name: float(row[f'test_{name}']) for name in metrics} == pytest.approx(values, abs=1e-9)
    flat = evaluation.compute(['h_ap'], torch.from_numpy(written['embeddings']), written['labels'])
    assert flat['h_ap'] != pytest.approx(values['h_ap'], abs=1e-3)
    np.testing.assert_allclose(np.linalg.norm(written['embeddings'], axis=1), 1, rtol=1e-5)
    assert after_training(folder_of(tmp_path), 'embeddings', tmp_path / 'features.npz', '--splits_to_eval', 'test',
               '--eval_features') == 0
    features, weights = np.load(tmp_path / 'features.npz'), checkpoint.load(folder_of(tmp_path) / 'checkpoint_last.pt')
    weight, bias = (weights['model'][f'f_embed.{name}'].numpy() for name in ('weight', 'bias'))
    norms = np.linalg.norm(features['embeddings'] @ weight.T + bias, axis=1)
    np.testing.assert_allclose(written['norms'], norms, rtol=1e-5)
    np.testing.assert_allclose(features['norms'], norms, rtol=1e-5)
    assert abs(norms - 1).max() > .01
    settings = ['--eval_features', '--eval_autocast', 'bfloat16', '--bootstrap', '20']
    assert run('--evaluate', folder_of(tmp_path), '--evaluation_metrics', 'e_recall@1', *metrics, *settings) == 0
    printed = printed_metrics(capsys.readouterr().out)
    assert 'test_h_ap_low' in printed and 'test_c_r_auroc_low' not in printed


def test_the_untrained_network_may_be_left_out_and_batches_of_evaluation_have_a_size_of_their_own(quick, run, tmp_path):
    some = [*quick, '--evaluation_metrics', 'e_recall@1', 'map_at_r', '--no_train_metrics', 'false', '--n_epochs', '1']
    assert run(*some) == 0
    assert run(*some, '--check_untrained_accuracy', 'false', '--eval_bs', '5', '--group', 'other') == 0
    plain, other = (rows_of(folder_of(tmp_path, name)) for name in ('quick_s1', 'other_s1'))
    names = [name for name in plain[0] if '_e_recall' in name or '_map_at_r' in name]
    assert [other[0].get(name) for name in names] == [''] * 4 and all(plain[0][name] for name in names)
    for one, two in zip(plain[1:], other[1:], strict=True):
        assert one['train_loss'] == two['train_loss']
        assert [float(one[name]) for name in names] == pytest.approx([float(two[name]) for name in names], abs=.03)
    assert reading.read(folder_of(tmp_path, 'other_s1')).rows[0]['epoch'] == 1
    assert run('--resume', folder_of(tmp_path, 'other_s1'), '--n_epochs', '2', '--eval_bs', '7') == 0

"""
Evaluate_Network.py RUN other_data DATA_SET ...: a trained network on other data sets, each alone and in the union of
their galleries.

The union is the protocol of UnED, one gallery for all domains: Ypsilantis et al., ICCV 2023,
https://arxiv.org/abs/2309.01858.
"""
import os

import numpy as np
import torch

import configuration
import datasets
import evaluation
import parts
from evaluation.embedding import compared
from utilities import device, processes
from utilities.errors import UserError, choose
from utilities.namespace import changed
from utilities.randomness import seed_everything
from utilities.text_tables import aligned

METRICS = ['e_recall@1', 'map_at_r']                         # the default of --evaluation_metrics here
WITHOUT = ('pca', 'eval_reference', 'eval_level', 'eval_features', 'splits_to_eval', 'bootstrap')
SPLITTING = {'split_scheme': None, 'splits': None, 'splits_step': None, 'test_size': 0.5, 'test_start': 0.5, 'fold': 0,
             'use_tv_split': False}                          # defaults for data sets that the run was not trained on


def flags(parser):
    parser.add_argument('data_sets', nargs='+', metavar='DATA_SET',
                        help='names of data sets, as cub200, or folder:PATH; the data of the run are one of them')


def work(opt):
    """Evaluates the network on the data sets, and prints a table for each metric."""
    check(opt)
    opt.device = device.select(opt)
    trunk = untrained_network(opt)
    kind = 'random' if opt.not_pretrained and not opt.weights else 'frozen'
    trained = parts.restore_network(opt, opt.evaluate)               # after the trunk: it drops the pretrained weights
    sets = {name: test_split(opt, name, trained.input_size) for name in opt.data_sets}
    found = {}
    for name, model in ((f'{kind} trunk', trunk), ('trained', trained)):
        is_trunk = model is trunk
        embedded = [evaluation.embed(opt, model, images, data_set, is_trunk, opt.eval_autocast).embeddings
                    for data_set, images in sets.items()]
        embedded = [compared(part, is_trunk or opt.eval_normalize) for part in embedded]
        found[name] = processes.run_on_rank_zero(alone_and_together, opt, embedded, [*sets.values()])
    if processes.is_main():
        print(tables(opt, sets, found))


def check(opt):
    """Raises UserError for a loss with a distance of its own, and for data sets that cannot be evaluated."""
    if parts.ranks(opt):
        raise UserError(f'other_data: --loss {opt.loss} ranks by a distance of its own, which it does not know')
    for name in opt.data_sets:
        choose(datasets.DATASETS, name.partition(':')[0], 'other_data')
        if ':' in name and not name.startswith('folder:'):
            raise UserError(f'other_data {name}: only folder takes a path; the others are found in --source_path')
        if opt.data_sets.count(name) > 1:
            raise UserError(f'other_data {name}: named twice; its images would be their own neighbours')
    for name in chosen_metrics(opt):
        if evaluation.parse(name)[1].needs != 'ranks':
            raise UserError(f'--evaluation_metrics {name}: other_data has metrics of ranks only, such as e_recall@1')


def chosen_metrics(opt):
    return opt.evaluation_metrics if 'evaluation_metrics' in opt.given else METRICS


def test_split(opt, name, input_size):
    """The ImageSet of the test images of a data set, not augmented; the run's own data are split as in the run."""
    dataset, _, path = name.partition(':')
    own = changed(opt, dataset=dataset, unsupervised=False, label_noise=0.0, train_level=0)
    of_run = configuration.recorded_flags(opt.evaluate)
    if dataset == 'folder':                                  # --source_path is for the data sets with folders of names
        own.source_path = path or of_run['source_path']
    if dataset != of_run['dataset'] or (path and os.path.realpath(path) != os.path.realpath(of_run['source_path'])):
        own.csv = None
        for flag, value in SPLITTING.items():
            if flag not in opt.given:
                setattr(own, flag, value)
    images = datasets.select(own, input_size).evaluation.get('test')
    if images is None:
        raise UserError(f'other_data {name}: it has no test split here; --split_scheme half --test_size 1 tests all '
                        'classes')
    return images


def untrained_network(opt):
    """The run's network before the training, with the pretrained weights that the run's flags name, if any."""
    seed_everything(opt.seed)
    before = changed(opt, evaluate=None, resume=None)
    return parts.build_network(before, parts.build_backbone(before))


def alone_and_together(opt, embedded, images):
    """
    [{metric: (value in the gallery of the data set, value in the gallery of all)}] for each data set. embedded: their
    embeddings; images: their ImageSets. An image of another data set is never a positive.
    """
    offsets = np.cumsum([0, *(part.n_classes for part in images)])
    labels = np.concatenate([part.labels + offset for part, offset in zip(images, offsets, strict=False)])
    queries, gallery = zip(*(part.roles for part in images), strict=True)
    points = torch.cat(embedded)
    found = []
    for number, (part, own) in enumerate(zip(images, embedded, strict=True)):
        asked = [query if i == number else np.zeros_like(query) for i, query in enumerate(queries)]
        union = evaluation.Pool(points, labels, is_query=np.concatenate(asked), in_gallery=np.concatenate(gallery))
        alone = evaluation.Pool(own, part.labels, is_query=part.is_query, in_gallery=part.in_gallery)
        values = [evaluation.compute(chosen_metrics(opt), pool.embeddings, pool.labels, pool=pool)
                  for pool in (alone, union)]
        found.append({name: tuple(value[name] for value in values) for name in chosen_metrics(opt)})
    return found


def tables(opt, sets, found):
    """
    The text of a table for each metric: a row per data set, and their mean. sets: {name: ImageSet}; found: {network:
    what alone_and_together() returns}.
    """
    texts = []
    for metric in chosen_metrics(opt):
        rows = [[metric, 'images', 'classes', *(f'{network}, {gallery}' for network in found
                                                for gallery in ('alone', 'union'))]]
        numbers = np.array([[value for each in found.values() for value in each[i][metric]] for i in range(len(sets))])
        for (name, images), values in zip(sets.items(), numbers, strict=True):
            rows.append([name, f'{len(images):,}', f'{images.n_classes:,}', *(f'{value:.4f}' for value in values)])
        rows.append(['mean', '', '', *(f'{value:.4f}' for value in numbers.mean(axis=0))])
        texts.append(aligned(rows))
    return '\n\n'.join(texts)

"""
The networks of several folds on the test classes that they share: separated, each network on its own, and concatenated,
their embeddings joined end to end. Musgrave et al., A Metric Learning Reality Check, ECCV 2020, https://arxiv.org/abs/2003.08505.
"""
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import sem

import evaluation
from evaluation import geometry, protocol
from evaluation.embedding import Embedded
from records import columns
from records.columns import Column
from utilities.errors import UserError


def embed_member(opt, model, data):
    """{split: Embedded} of the test split and, with --pca, of the splits to fit it on; as the network gives them."""
    names = [name for name in data.evaluation if name == 'test' or opt.pca]
    return {name: evaluation.embed(opt, model, data.evaluation[name], name, opt.eval_features, opt.eval_autocast)
            for name in names}


def separated(opt, member, criterion=None):
    """The scores of one network, as main.py --evaluate prints them: {'dim', 'test_<metric>'}."""
    return scores(opt, evaluation.as_evaluated(opt, member, criterion)['test'])


def concatenated(opt, members):
    """The scores of several networks as one, {'dim', 'test_<metric>'}. members: the results of embed_member."""
    return scores(opt, as_one(opt, members))


def as_one(opt, members):
    """
    The test Embedded of several networks as one: each embedding is L2-normalised, then joined with the other networks',
    reduced to --pca dimensions, and normalised again.

    members: the results of embed_member. The principal components are fitted to the joined embeddings of all training
             and validation images: these are the same for all folds, and each network was trained on most of them.
             Raises UserError if the members do not have the same images.
    """
    embeddings = joined([[member['test']] for member in members])
    if opt.pca:
        development = joined([[part for name, part in member.items() if name != 'test'] for member in members])
        reduce = geometry.principal_components(development.cpu().numpy(), opt.pca)
        embeddings = torch.from_numpy(reduce(embeddings.cpu().numpy())).to(embeddings.device)
    return Embedded(F.normalize(embeddings, dim=1), members[0]['test'].images)


def joined(members):
    """
    The normalised embeddings of each image in all networks, concatenated: [N, sum of D].

    members: for each network a list of Embedded. The first network's list gives the order of the N images.
    """
    embedded = []
    names = []
    orders = []
    for parts in members:
        images = [image for part in parts for image in identities(part.images)]
        orders.append(sorted(range(len(images)), key=images.__getitem__))
        names.append([images[i][:2] for i in orders[-1]])
        if names[-1] != names[0]:
            raise UserError('the folds were trained on different images: their classes have other files; an ensemble '
                            'needs one --source_path')
        embedded.append(F.normalize(torch.cat([part.embeddings for part in parts]), dim=1)[orders[-1]])
    embeddings = torch.empty(len(orders[0]), sum(part.shape[1] for part in embedded), device=embedded[0].device)
    embeddings[orders[0]] = torch.cat(embedded, dim=1)
    return embeddings


def identities(images):
    """(class, file name, path) of each image; only the first two are the same on all machines."""
    return [(images.class_names[label], Path(str(source)).name, str(source))
            for source, label in zip(images.sources, images.labels.tolist(), strict=True)]


def mean_over_folds(rows):
    """
    Rows of {'dim', 'test_<metric>'}, one per fold -> their mean, with the standard error over folds as
    'sem_test_<metric>'; None for a single fold.
    """
    mean = {'dim': rows[0]['dim']}
    for name in filter(columns.parse, rows[0]):
        values = [row[name] for row in rows]
        mean[name] = float(np.mean(values))
        mean[columns.sem(name)] = float(sem(values)) if len(values) > 1 else None
    return mean


def scores(opt, part):
    """--evaluation_metrics of test embeddings, with the test split as queries and gallery."""
    values = evaluation.compute(
        opt.evaluation_metrics, *protocol.without_distractors(part.embeddings, part.images.labels, part.images),
        seed=opt.seed, ranking=part.ranking, pool=protocol.build_pool(opt, {'test': part}, 'test', 'class'))
    return {'dim': part.embeddings.shape[1]} | {Column('test', name).name: value for name, value in values.items()}

"""
The networks of several folds on the test classes that they share: separated, each network on its own, and concatenated,
their embeddings joined end to end. Musgrave et al., A Metric Learning Reality Check, ECCV 2020, https://arxiv.org/abs/2003.08505.
"""
import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import sem

import evaluation
from evaluation import geometry, protocol
from evaluation.embedding import Embedded
from records import columns
from utilities.errors import UserError


def embed_member(opt, model, data):
    """{split: Embedded} of the test split and, with --pca, of the splits to fit it on; as the network gives them."""
    names = [name for name in data.evaluation if name == 'test' or opt.pca]
    return {name: evaluation.embed(opt, model, data.evaluation[name], name, opt.eval_features, opt.eval_autocast)
            for name in names}


def separated(opt, member, criterion):
    """The scores of one network, as main.py --evaluate prints them: {'dim', 'test_<metric>'}."""
    return scores(opt, evaluation.as_evaluated(opt, member, criterion)['test'])


def concatenated(opt, members):
    """
    The scores of several networks as one, {'dim', 'test_<metric>'}: each embedding is L2-normalised, then joined with
    the other networks', reduced to --pca dimensions, and normalised again.

    members: the results of embed_member. The principal components are fitted to the joined embeddings of all training
             and validation images: these are the same for all folds, and each network was trained on most of them.
             Raises UserError if the members do not have the same images.
    """
    embeddings = joined([[member['test']] for member in members])
    if opt.pca:
        development = joined([[part for name, part in member.items() if name != 'test'] for member in members])
        reduce = geometry.principal_components(development.cpu().numpy(), opt.pca)
        embeddings = torch.from_numpy(reduce(embeddings.cpu().numpy())).to(embeddings.device)
    return scores(opt, Embedded(F.normalize(embeddings, dim=1), members[0]['test'].images))


def joined(members):
    """
    The normalised embeddings of each image in all networks, concatenated: [N, sum of D].

    members: for each network a list of Embedded. The first network's list gives the order of the N images.
    """
    sources = [[str(source) for part in parts for source in part.images.sources] for parts in members]
    embeddings = []
    for parts, names in zip(members, sources, strict=True):
        places = {name: place for place, name in enumerate(names)}
        if sorted(names) != sorted(sources[0]):
            raise UserError('the folds have other images: an ensemble needs one --source_path, with the same files')
        own = F.normalize(torch.cat([part.embeddings for part in parts]), dim=1)
        embeddings.append(own[[places[name] for name in sources[0]]])
    return torch.cat(embeddings, dim=1)


def mean_over_folds(rows):
    """
    Rows of {'dim', 'test_<metric>'}, one per fold -> their mean, with the standard error over folds as
    'sem_test_<metric>'; None for a single fold.
    """
    mean = {'dim': rows[0]['dim']}
    for name in filter(columns.parse, rows[0]):
        values = [row[name] for row in rows]
        mean[name] = float(np.mean(values))
        mean[columns.SEM + name] = float(sem(values)) if len(values) > 1 else None
    return mean


def scores(opt, part):
    """{'dim', 'test_<metric>'} of the test Embedded, by --evaluation_metrics."""
    values = protocol.compute_metrics(opt, {'test': part}, ['test'], opt.evaluation_metrics)
    return {'dim': part.embeddings.shape[1]} | values

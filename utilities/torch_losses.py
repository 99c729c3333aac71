"""
Losses of torch.nn by name, such as torch:MultiMarginLoss: of the logits of a linear classifier of the embeddings, or of
the pairs of a batch. The classifier is the one of criteria/linear_classifier.py, so that torch:CrossEntropyLoss without
arguments is that loss.

Of the 22 losses of torch.nn, six are not here: TripletMarginLoss, TripletMarginWithDistanceLoss and MarginRankingLoss
take triplets, for which --loss triplet has miners; GaussianNLLLoss needs a variance, CTCLoss sequences, and
AdaptiveLogSoftmaxWithLoss is a classifier of its own for words by their frequency.
"""
import torch
import torch.nn.functional as F

from utilities.errors import UserError, choose

PREFIX = 'torch:'
# targets beside the logits [B, C]: labels [B]; for each class 1 or 0, or 1 or -1, [B, C]; or the label followed by -1,
# [B, C]. Losses of all pairs of a batch take distances, or embeddings, and 1 or -1.
TARGETS = {
    'CrossEntropyLoss': 'labels', 'NLLLoss': 'labels', 'MultiMarginLoss': 'labels',
    'BCEWithLogitsLoss': 'one-hot', 'BCELoss': 'one-hot', 'MultiLabelSoftMarginLoss': 'one-hot', 'MSELoss': 'one-hot',
    'L1Loss': 'one-hot', 'SmoothL1Loss': 'one-hot', 'HuberLoss': 'one-hot', 'KLDivLoss': 'one-hot',
    'PoissonNLLLoss': 'one-hot',
    'SoftMarginLoss': 'signs', 'MultiLabelMarginLoss': 'lists',
    'HingeEmbeddingLoss': 'distances of pairs', 'CosineEmbeddingLoss': 'pairs',
}
# losses that take log-probabilities or probabilities in place of logits
LINKS = {'NLLLoss': torch.nn.LogSoftmax(dim=1), 'KLDivLoss': torch.nn.LogSoftmax(dim=1), 'BCELoss': torch.sigmoid}


def find(name):
    """The targets of torch.nn.<name>. Raises UserError for another loss."""
    return choose({f'{PREFIX}{loss}': target for loss, target in TARGETS.items()}, f'{PREFIX}{name}', '--loss')


def torch_loss(batch, labels, weights, biases, loss, target='labels', link=None):
    """
    Args:
        batch:   [B, D] embeddings, used as they are.
        labels:  [B] int64 below C.
        weights: [C, D], the class weights.
        biases:  [C].
        loss:    a module or function of the logits [B, C] and their targets.
        target:  labels [B]; one-hot: 1 for the own class and 0 for the others [B, C]; signs: 1 and -1; lists: the
                 label, then -1 [B, C].
        link:    None, or a function of the logits whose result the loss takes.

    Returns: what the loss returns for the logits batch weights^T + biases.

    >>> batch, weights = torch.tensor([[3., 4.], [1., 0.]]), torch.tensor([[1., 0.], [0., 2.]])
    >>> torch_loss(batch, torch.tensor([1, 0]), weights, torch.tensor([1., 0.]), torch.nn.CrossEntropyLoss())
    tensor(0.0725)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    with torch.autocast(batch.device.type, enabled=False):
        logits = F.linear(batch, weights.to(batch.dtype), biases.to(batch.dtype))
        if target == 'lists':
            labels = F.pad(labels[:, None], (0, len(weights) - 1), value=-1)
        elif target != 'labels':
            labels = F.one_hot(labels, len(weights)).to(batch.dtype)
            if target == 'signs':
                labels = 2 * labels - 1
        if link:
            logits = link(logits)
        return loss(logits, labels)


def torch_pair_loss(batch, labels, loss, target='pairs'):
    """
    Args:
        batch:  [B, D] embeddings, used as they are. Memory grows with B^2 D.
        labels: [B] int64.
        loss:   a module or function of both embeddings of each pair, [P, D] each, or of their distances [P], and of 1
                for pairs of a class and -1 for others [P].
        target: pairs, or distances of pairs.

    Returns: what the loss returns for the P = B (B - 1) / 2 pairs of a batch; 0, with a graph, where there are none.

    >>> torch_pair_loss(torch.tensor([[3., 4.], [0., 0.]]), torch.tensor([1, 1]), torch.nn.HingeEmbeddingLoss(),
    ...                 'distances of pairs')
    tensor(5.0000)
    """
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    first, second = torch.triu_indices(len(batch), len(batch), offset=1, device=batch.device)
    if not len(first):
        return batch.sum() * 0
    with torch.autocast(batch.device.type, enabled=False):
        pairs = batch[first], batch[second]
        if target == 'distances of pairs':
            pairs = [F.pairwise_distance(*pairs)]
        return loss(*pairs, 2 * (labels[first] == labels[second]).to(batch.dtype) - 1)


class Criterion(torch.nn.Module):
    """
    opt: loss = torch:NAME, loss_torch_lr, lr, n_classes, embed_dim. given: the arguments of torch.nn.NAME; a list, such
    as one weight per class, becomes a tensor.

    Raises UserError for a loss that takes other targets, or arguments with which it does not return one number.
    """

    def __init__(self, opt, given):
        super().__init__()
        name = opt.loss.removeprefix(PREFIX)
        self.target = find(name)
        self.lr = opt.lr if opt.loss_torch_lr < 0 else opt.loss_torch_lr
        self.link = LINKS.get(name)
        if 'pairs' not in self.target:
            limit = opt.embed_dim ** -0.5                               # as in torch.nn.Linear
            self.weights = torch.nn.Parameter(torch.empty(opt.n_classes, opt.embed_dim).uniform_(-limit, limit))
            self.biases = torch.nn.Parameter(torch.empty(opt.n_classes).uniform_(-limit, limit))
        given = given | {key: torch.tensor(value) for key, value in given.items() if isinstance(value, list)}
        try:
            self.loss = getattr(torch.nn, name)(**given)
            value = self(torch.zeros(2, opt.embed_dim), torch.zeros(2, dtype=torch.long))
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f'--loss {opt.loss}: {" ".join(str(error).split())[:200]}; its arguments are set with '
                            '--loss_torch_args') from None
        if value.dim():
            raise UserError(f'--loss {opt.loss}: with --loss_torch_args {given}, it does not return one number, but '
                            f'a tensor of shape {[*value.shape]} for 2 images')

    def forward(self, batch, labels, **kwargs):
        """batch [B, D] embeddings, labels [B] int64 below n_classes, on one device -> scalar."""
        if 'pairs' in self.target:
            return torch_pair_loss(batch, labels, self.loss, self.target)
        return torch_loss(batch, labels, self.weights, self.biases, self.loss, self.target, self.link)

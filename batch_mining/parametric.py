# SPDX-License-Identifier: MIT
"""
Negatives sampled from a distribution over bins of distances, which is fixed or adapted during training by a policy
(PADS). Roth, Milbich and Ommer, PADS: Policy-Adapted Sampling for Visual Similarity Learning, CVPR 2020,
https://arxiv.org/abs/2003.11113.

A distance below the limits belongs to the first bin, one above them to the last bin, as in the public code.
"""
import torch

FLAGS = {
    'mode': {'default': 'uniform',
             'help': 'without --miner_parametric_adapt: distances of the sampled negatives',
             'choices': {'uniform': 'all', 'hards': 'up to 0.5', 'semihards': '0.3 to 0.7', 'veryhards': 'up to 0.3'}},
    'n_support': {'at_least': 2},
    'support_lim': {'at_least': 0, 'nargs': 2},
    'adapt': {'default': False, 'help': 'PADS: a policy adapts the distribution of negatives by validation metrics; '
                                        'needs a validation split'},
    'init': {'default': 'uniform_low',
             'choices': ['uniform_low', 'uniform', 'hards', 'semihards', 'veryhards'],
             'help': 'PADS: initial distribution of negatives, as for --miner_parametric_mode; uniform_low: '
                     '0.3 to 0.7'},
    'update_every': {'default': 30, 'at_least': 1,
                     'help': 'PADS: number of training steps between two updates of the distribution'},
    'actions': {'default': [0.8, 1.0, 1.25], 'above': 0,
                'help': "PADS: factors of a bin's weight that the policy chooses from"},
    'policy_lr': {'default': 0.01, 'at_least': 0, 'help': 'PADS: learning rate of the policy'},
    'policy_size': {'default': [128, 128], 'at_least': 1,
                    'help': 'PADS: widths of the hidden layers of the policy'},
    'history': {'default': 20, 'at_least': 1,
                'help': "PADS: number of past validations in the policy's input"},
    'reward': {'default': 'recall_nmi',
               'choices': {'recall_nmi': 'mean of recall@1 and NMI', 'recall': 'recall@1'},
               'help': 'PADS: metric whose change since the last update gives the reward, by its sign'},
    'learning': {'default': 'ppo', 'help': 'PADS: how the policy learns', 'choices': {
        'ppo': 'PPO with a value head', 'reinforce': 'REINFORCE with the mean reward as baseline'}},
    'ppo_clip': {'default': 0.2, 'at_least': 0, 'at_most': 1,
                 'help': 'PADS: clipping range of the probability ratio in PPO'},
    'old_update': {'default': 5, 'at_least': 1,
                   'help': 'PADS: number of policy updates between two updates of the old policy in PPO'},
    'baseline_rate': {'default': 0.05, 'at_least': 0, 'at_most': 1,
                      'help': 'PADS: rate of the moving average of the rewards in REINFORCE'},
    'no_self_reg': {'default': False, 'help': 'PADS: sample negatives from other classes only, and never the '
                                              'anchor as its own positive'},
}

# The smallest and largest centre of the bins with weight 1. The other bins have weight 1e-15, so that there is always a
# negative to sample.
FIXED = {'uniform': (0, torch.inf), 'hards': (0, 0.5), 'semihards': (0.3, 0.7), 'veryhards': (0, 0.3)}
INITIAL = FIXED | {'uniform_low': (0.3, 0.7)}


def problem(opt):
    """A sentence on flags that cannot work; None if they can."""
    low, high = opt.miner_parametric_support_lim
    if low >= high:
        return f'--miner_parametric_support_lim {low} {high}: the first must be less than the second'
    return None


def bin_weights(distances, n_support=30, support_lim=(0.1, 1.4)):
    """
    Args:
        distances:   the smallest and the largest centre of the bins with weight 1.
        n_support:   number of edges of the distance bins.
        support_lim: the first and the last edge.

    Returns: [n_support − 1] float32 weights, 1 or 1e-15.

    >>> bin_weights((0.3, 0.7), n_support=5, support_lim=(0, 1))
    tensor([1.0000e-15, 1.0000e+00, 1.0000e+00, 1.0000e-15])
    """
    edges = torch.linspace(*support_lim, n_support, dtype=torch.float64)
    centres = (edges[:-1] + edges[1:]) / 2
    inside = (centres >= distances[0]) & (centres <= distances[1])
    return torch.where(inside, 1.0, 1e-15).float()


@torch.no_grad()
def parametric_triplets(batch, labels, weights, support_lim=(0.1, 1.4), among_all=False):
    """
    Samples for each anchor a random positive, and a negative with probability in proportion to its distance's weight.

    Args:
        batch:       [B, D] embeddings.
        labels:      [B].
        weights:     [K] positive weights of K bins of equal width between the limits; distances beyond the limits
                     belong to the first and the last bin.
        support_lim: first and last edge of the distance bins; the outer bins cover all distances beyond.
        among_all:   whether the positive may be the anchor itself, and the negative may be any sample, even the anchor
                     or one of its class.

    Returns: [T, 3] int64 (anchor, positive, negative); anchors without a positive or a negative are left out.

    >>> batch = torch.tensor([[0.], [1.5], [0.5], [1.]])
    >>> parametric_triplets(batch, torch.tensor([0, 0, 1, 2]), torch.tensor([0., 0., 1.]), (0.2, 1.1))
    tensor([[0, 1, 3],
            [1, 0, 2]])
    """
    squared = squared_distances(batch)
    edges = torch.linspace(*support_lim, len(weights) + 1, device=batch.device, dtype=squared.dtype)
    probabilities = weights[torch.bucketize(squared, edges[1:-1].square())]
    same = labels.unsqueeze(1) == labels
    size = same.sum(dim=1, keepdim=True)
    if not among_all:
        probabilities = probabilities.masked_fill(same, 0)
        same = same.fill_diagonal_(False)
    negative = sample_weighted(probabilities)
    positive, _ = sample_uniform(same)
    anchor = ((size - 1) * (len(labels) - size)).nonzero()[:, :1]
    return torch.cat([anchor, positive.gather(0, anchor), negative.gather(0, anchor)], dim=1)


def squared_distances(batch):
    batch = batch.to(torch.promote_types(batch.dtype, torch.float32))
    batch = batch - batch.mean(dim=0)                    # distances stay the same; their rounding errors shrink
    with torch.autocast(batch.device.type, enabled=False):
        gram = batch @ batch.T
        norms = gram.diagonal()
        return (norms[:, None] + norms - 2 * gram).clamp(min=0)


def sample_weighted(weights, n=1):
    """
    Samples n columns from each row of `weights` [B, N], with replacement and with probability in proportion to their
    weights: [B, n]. In a row of zeros, the columns are arbitrary; in other rows, none of weight 0 is sampled.
    """
    # A cumulative sum must not change at a weight of 0. GPUs add in parallel and need float64 for that, which MPS
    # lacks; the CPU adds in order.
    exact = weights.dtype if weights.device.type in ('cpu', 'mps') else torch.float64
    cumulated = weights.cumsum(dim=1, dtype=exact)
    total = cumulated[:, -1:]
    threshold = torch.rand_like(total.expand(-1, n)) * total        # below the total, so that a column reaches it
    return torch.searchsorted(cumulated, threshold, right=True).clamp(max=weights.shape[1] - 1)


def sample_uniform(mask):
    """
    Samples a column from each row of the mask [B, N], uniformly; in an empty row, the column is N. Returns the columns
    and the numbers of candidates, two [B, 1].
    """
    count = mask.cumsum(dim=1, dtype=torch.int32)
    total = count[:, -1:]
    k = (torch.rand(len(mask), 1, device=mask.device) * total).int()                 # 0 ... total − 1
    return torch.searchsorted(count, k, right=True), total


class Policy(torch.nn.Module):
    """State [S] -> log-probabilities [A, K] of each bin's actions, and the value of the state, a scalar."""

    def __init__(self, n_state, n_actions, n_bins, hidden):
        super().__init__()
        sizes = [n_state, *hidden]
        layers = [layer for n_in, n_out in zip(sizes[:-1], sizes[1:], strict=True)
                  for layer in (torch.nn.Linear(n_in, n_out), torch.nn.ReLU())]
        self.body = torch.nn.Sequential(*layers)
        self.actions = torch.nn.Linear(sizes[-1], n_actions * n_bins)
        self.value = torch.nn.Linear(sizes[-1], 1)
        self.shape = n_actions, n_bins

    def forward(self, state):
        features = self.body(state)
        return self.actions(features).view(self.shape).log_softmax(dim=0), self.value(features)[0]


class PADS:
    """
    Learns by which factors to multiply the bins' weights, so that the network improves on validation data: an update
    takes the change of the metrics as the reward of the last actions, and chooses new ones. It runs on the CPU.

    opt: miner_parametric_n_support, _actions, _policy_lr, _policy_size, _history, _reward, _learning, _ppo_clip,
    _old_update, _baseline_rate.
    """
    METRICS = ('e_recall@1', 'e_recall@2', 'e_recall@4', 'e_recall@8', 'nmi', 'dists@intra', 'dists@inter')
    AVERAGED = (2, 8, 16, 32)                             # the state has the means of the metrics over so many updates
    DISCOUNT = 0.99

    def __init__(self, opt):
        self.factors = torch.tensor(opt.miner_parametric_actions)
        self.n_history = opt.miner_parametric_history
        self.reward_of = opt.miner_parametric_reward
        self.ppo = opt.miner_parametric_learning == 'ppo'
        self.clip = opt.miner_parametric_ppo_clip
        self.old_update = opt.miner_parametric_old_update
        self.baseline_rate = opt.miner_parametric_baseline_rate
        n_bins = opt.miner_parametric_n_support - 1
        n_state = len(self.METRICS) * (self.n_history + len(self.AVERAGED)) + n_bins + 1
        shape = n_state, len(self.factors), n_bins, opt.miner_parametric_policy_size
        self.policy = Policy(*shape)
        self.old = Policy(*shape)
        self.old.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=opt.miner_parametric_policy_lr)
        self.seen = []                                                 # metrics of earlier evaluations, oldest first
        self.n_learned = 0                                             # the number of updates
        self.baseline = 0.0                                            # the mean reward
        self.state = self.actions = None                               # values at the last update

    @torch.enable_grad()
    def update(self, metrics, weights):
        """
        Args:
            metrics: {name: float} for METRICS, and `progress`, the fraction of the training that is done.
            weights: [K], the current weights of the bins.

        Returns: [K], the new weights, between 1e-25 and 1e25.
        """
        newest = torch.tensor([metrics[name] for name in self.METRICS])
        self.seen = [*self.seen, newest][-max(self.n_history, *self.AVERAGED):]
        state = self.describe(weights, metrics['progress'])
        if self.state is not None:
            self.learn(state)
        with torch.no_grad():
            self.actions = self.policy(state)[0].exp().T.multinomial(1)[:, 0]
        self.state = state
        return (weights * self.factors[self.actions]).clamp(1e-25, 1e25)

    def describe(self, weights, progress):
        """The state [S]: the last metrics, their running means, the bins' probabilities, the progress."""
        missing = [self.seen[0]] * (self.n_history - len(self.seen))  # the first one is repeated until there are enough
        means = [torch.stack(self.seen[-n:]).mean(dim=0) for n in self.AVERAGED]
        return torch.cat([*missing, *self.seen[-self.n_history:], *means, weights / weights.sum(),
                          torch.tensor([float(progress)])])

    def score(self, seen):
        recall, nmi = seen[self.METRICS.index('e_recall@1')], seen[self.METRICS.index('nmi')]
        return recall if self.reward_of == 'recall' else (recall + nmi) / 2

    def learn(self, state):
        """One update of the policy with the reward of the last actions, which led from self.state to `state`."""
        reward = (self.score(self.seen[-1]) - self.score(self.seen[-2])).sign()
        log_probabilities, value = self.policy(self.state)
        taken = log_probabilities.gather(0, self.actions[None])
        if self.ppo:
            with torch.no_grad():
                advantage = reward + self.DISCOUNT * self.policy(state)[1] - value
                before = self.old(self.state)[0].gather(0, self.actions[None])
            ratio = (taken - before).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage).mean()
            # the target of the value is the metric itself, as published, and not the return
            loss = (value - self.score(self.seen[-1])).square() / 2 - gain
        else:
            loss = -((reward - self.baseline) * taken).mean()
            rate = self.baseline_rate if self.n_learned else 1
            self.baseline += rate * (float(reward) - self.baseline)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.n_learned += 1
        if self.n_learned % self.old_update == 0:
            self.old.load_state_dict(self.policy.state_dict())


class BatchMiner:
    """
    opt: miner_parametric_mode, _n_support, _support_lim, _adapt, _init, _update_every, _no_self_reg, and PADS's flags.

    update_every: training steps between two updates of the weights; 0: it does not learn.
    validate:     function (names of metrics, step) -> {name: float} of the validation images, with `progress`, the
                  fraction of the training that is completed; set from outside where it learns.
    """
    validate = None

    def __init__(self, opt):
        self.support_lim = opt.miner_parametric_support_lim
        self.pads = PADS(opt) if opt.miner_parametric_adapt else None
        self.update_every = opt.miner_parametric_update_every if self.pads else 0
        self.among_all = bool(self.pads) and not opt.miner_parametric_no_self_reg
        distances = INITIAL[opt.miner_parametric_init] if self.pads else FIXED[opt.miner_parametric_mode]
        self.weights = bin_weights(distances, opt.miner_parametric_n_support, self.support_lim)

    def __call__(self, batch, labels):
        """batch [B, D], labels [B], on one device -> triplets [T, 3]."""
        self.weights = self.weights.to(batch.device)                   # copied once after each update
        return parametric_triplets(batch, labels, self.weights, self.support_lim, self.among_all)

    def stepped(self, embeddings, labels, indices, step):
        """After each training step; step: counted from 1 over all epochs."""
        if self.update_every and step % self.update_every == 0:
            self.update(self.validate(PADS.METRICS, step))

    def update(self, validation_metrics):
        """validation_metrics: {name: float}, with `progress`."""
        self.weights = self.pads.update(validation_metrics, self.weights.cpu())

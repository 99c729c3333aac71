"""The moving average of the weights (--ema)."""
import copy

import torch


class MovingAverage:
    """
    A copy of the network. Each weight and BatchNorm statistic is an exponential moving average of the network's: after
    each step, average = decay * average + (1 − decay) * weight.
    """

    def __init__(self, network, decay):
        self.network = network
        self.decay = decay
        self.average = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self):
        """To be called after each step of the optimizer."""
        values, means = (module.state_dict(keep_vars=True).values() for module in (self.network, self.average))
        averages = dict(zip(values, means, strict=True))      # a weight of two names is averaged once
        for value, mean in averages.items():
            if mean.is_floating_point():
                mean.lerp_(value, 1 - self.decay)
            else:
                mean.copy_(value)

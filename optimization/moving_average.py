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
        for mean, value in zip(self.average.state_dict().values(), self.network.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - self.decay)
            else:
                mean.copy_(value)

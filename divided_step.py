"""
The training step of a batch that is divided, by --micro_bs or among several processes. The gradient is cached (Gao et
al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021, https://arxiv.org/abs/2101.06983):

1. Each process embeds its part of the batch in pieces, without keeping the graph.
2. Process 0 computes the loss on the whole batch, and its gradient with respect to embeddings and pooled features.
   Other inputs of the criterion, such as a teacher's embeddings, are computed and gathered in step 1.
3. Each process embeds its pieces again, with the same random numbers, and backpropagates this gradient through them.
4. The gradients of the network are summed over the processes, and every process takes the same optimizer step.

A process with a single piece keeps the graph of step 1, so that step 3 does not embed it again. The criterion, its
parameters and state, and the miner are used in process 0 only.
"""
import contextlib
import itertools

import torch
import torch.nn.functional as F

from architectures import batch_norm
from optimization import existing_gradients
from training_step import TrainingStep
from utilities import exchange, processes
from utilities.randomness import derive, seeded


def select(opt, parts):
    """The training step of a run: the plain one, or the step for a divided batch."""
    plain = TrainingStep(opt, parts)
    return DividedStep(opt, plain) if opt.micro_bs or processes.count() > 1 else plain


class DividedStep:
    """
    Has the call of the plain step, and uses its parts.

    opt:   micro_bs, seed, device, bs, arch.
    plain: the TrainingStep of one process and one piece, which also takes batches that one piece holds.
    """

    def __init__(self, opt, plain):
        batch_norm.share(opt, plain.model)
        self.opt, self.plain, self.scaler, self.connected = opt, plain, plain.scaler, False

    def __call__(self, images, labels, indices, step, epoch):
        """
        images: [b, 3, H, W], this process's part of the batch (exchange.part); a dummy image if the part is empty.
        labels, indices: [B], of the whole batch.

        Returns the embeddings of the whole batch, [B, D], in process 0 (None elsewhere), and {name: scalar} for the
        log.
        """
        plain, n = self.plain, len(labels)
        n_pieces = -(-len(images) // (self.opt.micro_bs or len(images)))
        if processes.count() == 1 and n_pieces == 1:
            return plain(images, labels, indices, step, epoch)
        self.connect()
        labels, indices = plain.begin(labels, indices)
        pieces, part, keep = images.tensor_split(n_pieces), exchange.part(n), n_pieces == 1
        sizes = [len(piece) for piece in pieces]
        seeds = [derive(self.opt.seed, 'piece', step, start)
                 for start in itertools.accumulate(sizes[:-1], initial=part.start)]
        layers = batch_norm.training_layers(plain.model)
        with torch.set_grad_enabled(keep):
            outputs = [self.piece(piece, seed) for piece, seed in zip(pieces, seeds, strict=True)]
        n_own = part.stop - part.start                             # drops the dummy image of an empty part
        own = torch.cat(outputs).detach()[:n_own]
        costly = [plain.costly(piece) for piece in pieces]
        others = {name: torch.cat([found[name] for found in costly])[:n_own] for name in costly[0]}
        whole = exchange.gathered(torch.cat([own, *[rows.flatten(1) for rows in others.values()]], dim=1), n)
        if processes.is_main():
            shapes = self.shapes | {name: rows.shape[1:] for name, rows in others.items()}
            embeddings, gradient, loss = self.gradient_of_loss(
                split_columns(whole, shapes), labels=labels, indices=indices, step=step, epoch=epoch)
        else:
            embeddings, gradient, loss = None, None, own.new_zeros(())
            plain.scaler.scale(loss)                                # a scaler must scale a loss before it can unscale
        of_criterion = gradient_norm(plain.of_criterion, own)
        gradient = exchange.returned(gradient, own, n)
        gradient = F.pad(gradient, (0, 0, 0, sum(sizes) - len(gradient)))
        for piece, seed, towards in zip(pieces, seeds, gradient.split(sizes), strict=True):
            with contextlib.nullcontext() if keep else batch_norm.without_tracking(layers):
                output = outputs[0] if keep else self.piece(piece, seed)
            if output.requires_grad:
                output.backward(towards)
        if processes.count() > 1:
            self.join(layers, n_own / n, loss, of_criterion)
        return embeddings, plain.update(loss, gradient_norm(plain.of_network, own).hypot(of_criterion))

    def connect(self):
        """Before the first step of several processes: all take the weights of process 0."""
        if processes.count() > 1 and not self.connected:
            exchange.copy_from_main(self.plain.model.state_dict().values())
            self.connected = True

    def piece(self, images, seed):
        """
        The outputs of embed() for the images, concatenated into one tensor [b, W]. The network samples its random
        numbers with `seed`, and the global generators do not change: a miner samples as it does in the plain step.
        """
        with seeded(seed, self.opt.device):
            outputs = self.plain.embed(images)
        self.shapes = {name: output.shape[1:] for name, output in outputs.items()}
        return torch.cat([output.flatten(1) for output in outputs.values()], dim=1)

    def gradient_of_loss(self, inputs, **more):
        """
        inputs: {name: [B, ...]}, the criterion's inputs for the whole batch. Returns the embeddings [B, D], the
        gradient [B, W] with respect to the network's outputs, and the loss. Sets the gradients of the criterion's
        parameters and, if it calls f_embed, of f_embed's parameters.
        """
        leaves = {name: inputs[name].requires_grad_() for name in self.shapes}
        loss = self.plain.loss(inputs, **more)
        self.plain.backward(loss)
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves.values()]
        gradient = torch.cat([part.flatten(1) for part in gradients], dim=1)
        return leaves['batch'].detach(), gradient, loss.detach().to(gradient.dtype)

    def join(self, layers, fraction, loss, of_criterion):
        """
        Sums over the processes: the gradients of the network; its running statistics, weighted by the fraction of the
        batch that each process embeds; and the loss and the norm of_criterion, which are 0 except in process 0.
        """
        gradients = existing_gradients(self.plain.of_network)
        statistics = [statistic for layer in layers if not isinstance(layer, torch.nn.SyncBatchNorm)
                      for statistic in (layer.running_mean, layer.running_var)]
        for statistic in statistics:
            statistic.mul_(fraction)
        exchange.add_up([*gradients, *statistics, loss, of_criterion])
        if self.scaler.is_enabled():        # all processes skip the step if only a gradient of the loss is not finite
            gradients[0].add_(of_criterion * 0)


def split_columns(whole, shapes):
    """[B, W] -> {name: [B, *shape]}, in the order of `shapes`."""
    columns = whole.split([shape.numel() for shape in shapes.values()], dim=1)
    return {name: part.reshape(-1, *shape).contiguous()
            for part, (name, shape) in zip(columns, shapes.items(), strict=True)}


def gradient_norm(parameters, like):
    """The norm of the gradients of the parameters, with the dtype of `like`; 0 if there are none."""
    gradients = existing_gradients(parameters)
    return torch.nn.utils.get_total_norm(gradients).to(like) if gradients else like.new_zeros(())

"""
The training step: embeddings of a batch, loss, backward pass, clipping, optimizer step.

The lines of __call__ are the same for a batch that one process embeds at once, for one that it embeds in pieces
(--micro_bs), and for one that several processes share. In the last two cases the gradient is cached (Gao et al.,
Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, 2021, https://arxiv.org/abs/2101.06983):

1. embed: each process embeds its part of the batch, in several pieces without keeping the graph. Process 0 gets all
   outputs.
2. loss: process 0 computes the loss of the whole batch. Criterion and miner are used there only.
3. backward: the gradient with respect to the outputs goes back to the processes. A process with several pieces embeds
   them again, with the same random numbers. Each backpropagates the gradient.
4. update: the gradients of the network, and of trained parameters outside network and criterion, are summed over the
   processes, and all take the same optimizer step.
"""
import contextlib
import functools
import itertools
import math
import types

import torch
import torch.nn.functional as F

import batch_mining
import criteria
from architectures import batch_norm
from evaluation.embedding import embed_batch, network_input, network_outputs
from optimization import gradients
from optimization.gradients import existing_gradients, gradient_or_zeros
from optimization.groups import optimizer_parameters
from records.trace import hard_pairs
from utilities import device, exchange, processes, stopping
from utilities.errors import UserError
from utilities.randomness import derive, seeded

OF_EVERY_RUN = {'loss', 'grad_norm', 'skipped_steps'}           # scalars that the step logs itself


class TrainingStep:
    """
    opt:   amp, bs, clip_grad, clip_grad_value, compile, device, micro_bs, seed, tuple_statistics.
    parts: the parts of the run: model, criterion, miner, optimizers and teacher are used.
    """

    def __init__(self, opt, parts):
        device.check_step(opt)
        batch_norm.share(opt, parts.model)
        self.opt = opt
        self.parts = parts
        self.model = parts.model
        self.criterion = parts.criterion
        self.miner = parts.miner
        self.teacher = parts.teacher and parts.teacher.eval()
        self.inputs = criteria.inputs(self.criterion)                # the inputs that the criterion asks for
        self.optimizers = [parts.optimizer, *parts.further_optimizers().values()]
        self.of_network = [*self.model.parameters()]
        in_network = {*self.of_network}
        of_criterion = {*self.criterion.parameters()}        # process 0 alone computes their gradients
        trained = [parameter for optimizer in self.optimizers for parameter in optimizer_parameters(optimizer)]
        self.outside_network = [parameter for parameter in trained if parameter not in in_network]
        self.outside_both = [parameter for parameter in self.outside_network if parameter not in of_criterion]
        self.of_step = types.SimpleNamespace()                       # values that the methods share within a step
        # the model itself stays uncompiled, for its state dict and evaluation; each size of a piece has its own graph,
        # so that a resumed run computes with the same graphs
        self.network = torch.compile(self.model, dynamic=False) if opt.compile else self.model
        self.compiling = stopping.compiling if opt.compile else contextlib.nullcontext
        precision = None if opt.amp == 'none' else getattr(torch, opt.amp)
        self.autocast = functools.partial(torch.autocast, opt.device.type, precision, enabled=precision is not None)
        self.scaler = torch.amp.GradScaler(opt.device.type, enabled=opt.amp == 'float16')

    def __call__(self, images, labels, indices, step, epoch):
        """
        images:  [b, 3, H, W], this process's part of the batch as the loader gives it (a dummy image if it is empty).
        labels:  [B], of the whole batch.
        indices: [B], its positions in the training set.
        step:    number of the step in the run, from 1.

        Returns the embeddings [B, D] (zeros in processes other than process 0) and {name: scalar} for the log.
        """
        self.of_step = types.SimpleNamespace(number=step, size=len(labels), pieces=[], kept=None, shapes={}, counted={})
        labels = labels.to(self.opt.device, non_blocking=True)
        indices = indices.to(self.opt.device, non_blocking=True)
        with self.compiling():
            outputs = self.embed(images)
            loss = self.loss(outputs, labels=labels, indices=indices, step=step, epoch=epoch)
            self.backward(loss, outputs)
        return outputs['batch'].detach(), self.update(loss)

    def start_epoch(self, epoch):
        """All processes begin an epoch with the same weights."""
        exchange.copy_from_main([*self.model.state_dict().values(), *map(torch.detach, self.outside_both)])

    def embed(self, images):
        """
        images [b, 3, H, W] of this process -> {name: [B, ...]}, the criterion's inputs for the whole batch. If one
        process embeds the batch at once, they have their graph. Otherwise they are leaves, whose gradient backward()
        hands on; processes other than process 0 have zeros in their place.
        """
        pieces = images.tensor_split(math.ceil(len(images) / (self.opt.micro_bs or len(images))))
        if len(pieces) == processes.count() == 1:
            return self.forward(images) | self.costly(images)
        if images.requires_grad:
            raise UserError('A gradient with respect to the images needs the graph of the whole batch: start one '
                            'process, without --micro_bs')
        part = exchange.part(self.of_step.size)
        starts = itertools.accumulate(map(len, pieces[:-1]), initial=part.start)
        self.of_step.pieces = [(piece, derive(self.opt.seed, 'piece', self.of_step.number, start))
                               for piece, start in zip(pieces, starts, strict=True)]
        with torch.set_grad_enabled(len(pieces) == 1):             # the graph of a process's only piece is kept
            rows = torch.cat([self.rows(*piece) for piece in self.of_step.pieces])
        self.of_step.kept = rows if rows.requires_grad else None
        found = [self.costly(piece) for piece in pieces]
        costly = {name: torch.cat([of_piece[name] for of_piece in found]) for name in found[0]}
        own = torch.cat([rows.detach(), *(output.flatten(1) for output in costly.values())], dim=1)
        whole = exchange.gathered(own[:part.stop - part.start], self.of_step.size)       # the dummy image is left out
        shapes = self.of_step.shapes
        outputs = split_columns(whole, shapes | {name: output.shape[1:] for name, output in costly.items()})
        return outputs | {name: outputs[name].requires_grad_() for name in shapes}

    def forward(self, images):
        """images [b, 3, H, W] -> embeddings, pooled features and, if asked for, feature maps, in at least float32."""
        with self.autocast():
            outputs = network_outputs(self.network, images, 'feature_maps' in self.inputs)
        return {name: output.to(torch.promote_types(output.dtype, torch.float32))
                for name, output in zip(('batch', 'batch_features', 'feature_maps'), outputs, strict=False)}

    @torch.no_grad()
    def costly(self, images):
        """images [b, 3, H, W] -> the criterion's inputs beside the network's outputs; they get no gradient."""
        found = {}
        if 'teacher_batch' in self.inputs:
            with self.autocast():
                taught = embed_batch(self.teacher, images)[0]
            found['teacher_batch'] = taught.to(torch.promote_types(taught.dtype, torch.float32))
        if 'images' in self.inputs:
            found['images'] = self.model.normalised(network_input(images, self.opt.device))
        return found

    def rows(self, images, seed):
        """
        The outputs of forward() for a piece, concatenated into one tensor [b, W]. The network samples its random
        numbers with `seed`, and the global generators do not change: a miner samples as if the batch were whole.
        """
        with seeded(seed, self.opt.device):
            outputs = self.forward(images)
        self.of_step.shapes = {name: output.shape[1:] for name, output in outputs.items()}
        return torch.cat([output.flatten(1) for output in outputs.values()], dim=1)

    def loss(self, outputs, **more):
        """
        The loss of the whole batch: the place for a further term. outputs: what embed() returns; more: labels, indices,
        step and epoch. Process 0 computes it, and the others take part in its gradient only.
        """
        if not processes.is_main():
            return outputs['batch'].sum() * 0
        if self.opt.tuple_statistics:
            self.of_step.counted = hard_pairs(outputs['batch'], more['labels'])
        batch_mining.note_batch(self.miner, **more)
        with device.full_float32(), batch_norm.used_by_one(self.model.f_embed):
            loss = self.criterion(**outputs, f_embed=self.model.f_embed, **more)
        return loss.to(outputs['batch'].dtype)                 # as in the other processes

    def backward(self, loss, outputs):
        """
        Adds the gradients of the loss, which --amp float16 scales, to those of the parameters. The gradients of a
        divided batch are those of this process's pieces.
        """
        scaled = self.scaler.scale(loss)                       # a loss of zero, too, since the scaler expects it
        if processes.is_main():
            scaled.backward()
        if self.of_step.pieces:
            self.backward_pieces([outputs[name] for name in self.of_step.shapes])

    def backward_pieces(self, outputs):
        """Hands the gradient of the whole batch's `outputs` on to the network, and joins its running statistics."""
        gradient = torch.cat([gradient_or_zeros(output).flatten(1) for output in outputs], dim=1)
        size = self.of_step.size
        part = exchange.part(size)
        gradient = exchange.returned(gradient, size)
        sizes = [len(piece) for piece, _ in self.of_step.pieces]
        gradient = F.pad(gradient, (0, 0, 0, sum(sizes) - len(gradient)))             # a dummy image gets zeros
        layers = batch_norm.training_layers(self.model)
        for (piece, seed), towards in zip(self.of_step.pieces, gradient.split(sizes), strict=True):
            rows = self.of_step.kept
            if rows is None:
                with batch_norm.without_tracking(layers):      # the first pass has updated the running statistics
                    rows = self.rows(piece, seed)
            if rows.requires_grad:
                rows.backward(towards)
        batch_norm.join_statistics(layers, (part.stop - part.start) / size)

    def update(self, loss):
        """
        Sums the gradients over the processes, clips them, takes the optimizers' steps, and sets the gradients to None:
        what has a gradient between two steps is being accumulated, and is saved. Returns the scalars for the log, with
        the norm of the gradients before clipping. With --amp float16, a step is skipped if a gradient is not finite.
        """
        loss = loss.detach().clone()
        gradients.add_up(self.of_network + self.outside_both, loss)
        norm = torch.nn.utils.get_total_norm(existing_gradients(self.of_network + self.outside_network))
        exchange.copy_from_main([norm])                        # process 0's norm includes the criterion's gradients
        norm, optimizers = gradients.unscale(self.scaler, self.optimizers, norm)
        gradients.clip(self.opt, self.of_network + self.outside_network, norm)
        for optimizer in optimizers:
            self.scaler.step(optimizer)                                       # optimizer.step(), but for --amp float16
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        skipped = {'skipped_steps': ~norm.isfinite()} if self.scaler.is_enabled() else {}
        logged = self.parts.log()
        taken = OF_EVERY_RUN & logged.keys()
        if taken:
            raise UserError(f'self.log of the loss: {min(taken)} is a scalar that the run logs itself; choose another '
                            'name')
        return {'loss': loss, **logged, **self.of_step.counted, 'grad_norm': norm} | skipped


def split_columns(whole, shapes):
    """[B, W] -> {name: [B, *shape]}, in the order of `shapes`."""
    columns = whole.split([shape.numel() for shape in shapes.values()], dim=1)
    return {name: part.reshape(-1, *shape).contiguous()
            for part, (name, shape) in zip(columns, shapes.items(), strict=True)}

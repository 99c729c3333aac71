"""
The training step: forward pass, loss, backward pass, clipping, optimizer step.

This is the step of one process that embeds the whole batch at once. divided_step.py does the same for a batch in pieces
or among several processes, with the methods of this class.
"""
import functools

import torch

import batch_mining
import criteria
import optimization
from optimization import existing_gradients, optimizer_parameters
from utilities import device
from utilities.loading import network_input
from utilities.trace import hard_pairs


class TrainingStep:
    """
    opt:   amp, compile, clip_grad, clip_grad_value, tuple_statistics, device.
    parts: the parts of the run: model, criterion, miner, optimizers and teacher are used.
    """

    def __init__(self, opt, parts):
        device.check_step(opt)
        self.opt, self.model, self.criterion = opt, parts.model, parts.criterion
        self.miner, self.counted = parts.miner, {}
        self.teacher = parts.teacher and parts.teacher.eval()
        self.inputs = criteria.inputs(self.criterion)                # the inputs that the criterion asks for
        self.optimizers = [parts.optimizer, *parts.further_optimizers().values()]
        self.of_network = [*self.model.parameters()]
        of_network = {*self.of_network}
        self.of_criterion = [parameter for optimizer in self.optimizers for parameter in optimizer_parameters(optimizer)
                             if parameter not in of_network]
        # beside the model, whose state dict and evaluation stay uncompiled; each size of a piece has its own graph,
        # so that a resumed run computes with the same graphs
        self.network = torch.compile(self.model, dynamic=False) if opt.compile else self.model
        precision = None if opt.amp == 'none' else getattr(torch, opt.amp)
        self.autocast = functools.partial(torch.autocast, opt.device.type, precision, enabled=precision is not None)
        self.scaler = torch.amp.GradScaler(opt.device.type, enabled=opt.amp == 'float16')

    def __call__(self, images, labels, indices, step, epoch):
        """
        images:  [B, 3, H, W] of the batch, as the loader gives them.
        labels:  [B].
        indices: [B], positions in the training set.
        step:    number of the step in the run, from 1.

        Returns the embeddings [B, D] and {name: scalar} for the log.

        What is changed in the lines below is without effect with --micro_bs or several processes: divided_step.py has
        lines of its own, which embed the batch in parts. It calls the methods below, so that changes there act in both.
        """
        labels, indices = self.begin(labels, indices)
        outputs = self.embed(images) | self.costly(images)
        loss = self.loss(outputs, labels=labels, indices=indices, step=step, epoch=epoch)
        self.backward(loss)
        norm = torch.nn.utils.get_total_norm(existing_gradients(self.of_network + self.of_criterion))
        return outputs['batch'], self.update(loss, norm)

    def begin(self, labels, indices):
        """Sets all gradients to zero. Returns labels and indices [B] on the device."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return (given.to(self.opt.device, non_blocking=True) for given in (labels, indices))

    def embed(self, images):
        """images [b, 3, H, W] -> embeddings, pooled features and, if asked for, feature maps, in at least float32."""
        with self.autocast():
            outputs = self.network(network_input(images, self.opt.device), 'feature_maps' in self.inputs)
        return {name: output.to(torch.promote_types(output.dtype, torch.float32))
                for name, output in zip(('batch', 'batch_features', 'feature_maps'), outputs, strict=False)}

    @torch.no_grad()
    def costly(self, images):
        """images [b, 3, H, W] -> the criterion's inputs beside the network's outputs; they get no gradient."""
        found = {}
        if 'teacher_batch' in self.inputs:
            with self.autocast():
                taught = self.teacher(network_input(images, self.opt.device))[0]
            found['teacher_batch'] = taught.to(torch.promote_types(taught.dtype, torch.float32))
        if 'images' in self.inputs:
            found['images'] = self.model.normalised(network_input(images, self.opt.device))
        return found

    def backward(self, loss):
        """Computes the gradients of the loss, which --amp float16 scales."""
        self.scaler.scale(loss).backward()

    def loss(self, outputs, **more):
        """
        The loss of the whole batch: the place for a further term. outputs: from embed() and costly(); more: labels,
        indices, step and epoch. In a divided step, the gradient goes back to the outputs first, then to the network, so
        that a term may use the gradient with respect to the outputs, but not the one with respect to the images.
        """
        if self.opt.tuple_statistics:
            self.counted = hard_pairs(outputs['batch'], more['labels'])
        return self.criterion(**outputs, f_embed=self.model.f_embed, **more)

    def update(self, loss, norm):
        """
        Clips the gradients, whose norm is `norm`, and takes the optimizers' steps. Returns the scalars for the log,
        with the norm before clipping. With --amp float16, a step is skipped if a gradient is not finite.
        """
        norm, optimizers = optimization.unscale(self.scaler, self.optimizers, norm)
        optimization.clip(self.opt, self.of_network + self.of_criterion, norm)
        for optimizer in optimizers:
            self.scaler.step(optimizer)                                       # optimizer.step(), but for --amp float16
        self.scaler.update()
        skipped = {'skipped_steps': ~norm.isfinite()} if self.scaler.is_enabled() else {}
        log = {**getattr(self.criterion, 'log', {}), **batch_mining.log(self.miner), **self.counted}
        return {'loss': loss, **log, 'grad_norm': norm} | skipped

"""
A training step: from a batch to the optimizer's step.

If one process embeds the whole batch at once, the step is plain: forward pass, backward pass, optimizer step. If the
batch is divided, by --micro_bs or among several processes, the gradient is cached (Gao et al., Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup, 2021, https://arxiv.org/abs/2101.06983):

1. Each process embeds its part of the batch in pieces, without keeping the graph.
2. Process 0 computes the loss on the whole batch, and its gradient with respect to embeddings and pooled features. The
   teacher of --distill embeds the images in step 1, too, and its embeddings are gathered with the others.
3. Each process embeds its pieces again, with the same random numbers, and backpropagates this gradient through them.
4. The gradients of the network are summed over the processes, and every process takes the same optimizer step.

A process with a single piece keeps the graph of step 1, so that step 3 does not embed it again. The criterion, its
parameters and state, and the miner are used in process 0 only.
"""
import contextlib
import itertools
import warnings
from types import SimpleNamespace

import torch
import torch.nn.functional as F

import criteria
import optimization
from architectures import batch_norm
from utilities import exchange, processes
from utilities.errors import UserError
from utilities.loading import network_input
from utilities.randomness import derive, seeded


class TrainingStep:
    """
    opt:    micro_bs, amp, compile, clip_grad, clip_grad_value, seed, device.
    parts:  the parts of the run, of which model, criterion, optimizer and teacher are used.

    scaler: the GradScaler that multiplies the loss with --amp float16; otherwise None.
    """

    def __init__(self, opt, parts):
        self.opt, self.model, self.criterion, self.optimizer = opt, parts.model, parts.criterion, parts.optimizer
        self.teacher = parts.teacher and parts.teacher.eval()
        share_batch_norm(opt, self.model)
        self.of_network = [*self.model.parameters()]
        of_network = {*self.of_network}
        self.of_criterion = [parameter for group in self.optimizer.param_groups for parameter in group['params']
                             if parameter not in of_network]
        if opt.compile:
            check_compiler(opt.device)
        # not the model itself, so that its state dict and evaluation are those of the network that is not compiled; a
        # graph is compiled for each size of a piece, so that a resumed run computes with the same graphs
        self.network = torch.compile(self.model, dynamic=False) if opt.compile else self.model
        self.dtype = None if opt.amp == 'none' else getattr(torch, opt.amp)
        if self.dtype:
            check_precision(opt)
        self.scaler = torch.amp.GradScaler(opt.device.type) if opt.amp == 'float16' else None
        self.with_maps, self.connected = criteria.requires_maps(self.criterion), False

    def __call__(self, number, images, labels):
        """
        number: the number of the step in the run.
        images: [b, 3, H, W], the part of the batch of this process (exchange.part), or any image if it is empty.
        labels: [B], of the whole batch.

        Returns the embeddings of the whole batch, [B, D], in process 0 (None elsewhere), and {name: scalar} for the
        log.
        """
        self.optimizer.zero_grad()
        labels = labels.to(self.opt.device, non_blocking=True)
        n_pieces = -(-len(images) // (self.opt.micro_bs or len(images)))
        if processes.count() == 1 and n_pieces == 1:
            embeddings, *others = self.embed(images)
            loss = self.loss([embeddings, *others], labels, self.taught([images]))
            self.scaled(loss).backward()
            norm = torch.nn.utils.get_total_norm(gradients_of(self.of_network + self.of_criterion))
        else:
            embeddings, loss, norm = self.in_pieces(number, images.tensor_split(n_pieces), labels)
        scalars = {'loss': loss, **getattr(self.criterion, 'log', {})}
        return embeddings, scalars | self.update(norm)

    def embed(self, images):
        """
        images [b, 3, H, W] on any device -> [embeddings [b, D], features [b, F]] in at least float32, and the maps
        [b, C, h, w] where the criterion requires them.
        """
        images = network_input(images, self.opt.device)
        with torch.autocast(self.opt.device.type, self.dtype, enabled=self.dtype is not None):
            outputs = self.network(images, self.with_maps)
        return [output.to(torch.promote_types(output.dtype, torch.float32)) for output in outputs]

    @torch.no_grad()
    def taught(self, pieces):
        """The teacher's embeddings of the images of all pieces, [b, D'] in at least float32; None without a teacher."""
        if self.teacher is None:
            return None
        with torch.autocast(self.opt.device.type, self.dtype, enabled=self.dtype is not None):
            taught = torch.cat([self.teacher(network_input(piece, self.opt.device))[0] for piece in pieces])
        return taught.to(torch.promote_types(taught.dtype, torch.float32))

    def loss(self, outputs, labels, taught=None):
        """outputs: those of embed(), of the whole batch. taught: None, or the teacher's embeddings of it."""
        embeddings, features, *maps = outputs
        return self.criterion(batch=embeddings, labels=labels, batch_features=features, f_embed=self.model.f_embed,
                              **({'feature_maps': maps[0]} if maps else {}),
                              **({} if taught is None else {'teacher_batch': taught}))

    def scaled(self, value):
        return self.scaler.scale(value) if self.scaler else value

    def in_pieces(self, number, pieces, labels):
        """
        Sets the gradients of all parameters. Returns the embeddings [B, D] of the whole batch (None except in process
        0), the loss, and the norm of the gradients, which are multiplied by the factor of the scaler.
        """
        if processes.count() > 1 and not self.connected:
            exchange.copy_from_main(self.model.state_dict().values())
            self.connected = True
        n, part, keep = len(labels), exchange.part(len(labels)), len(pieces) == 1
        sizes = [len(piece) for piece in pieces]
        seeds = [derive(self.opt.seed, 'piece', number, start)
                 for start in itertools.accumulate(sizes[:-1], initial=part.start)]
        layers = batch_norm.training_layers(self.model)
        with torch.set_grad_enabled(keep):
            outputs = [self.piece(piece, seed) for piece, seed in zip(pieces, seeds, strict=True)]
        rows = torch.cat(outputs).detach()[:part.stop - part.start]     # of an empty part none, though it has an image
        taught = self.taught(pieces)
        whole = exchange.gathered(rows if taught is None else torch.cat([rows, taught[:len(rows)]], dim=1), n)
        if processes.is_main():
            embeddings, gradient, loss = self.gradient_of_loss(whole, labels)
        else:
            embeddings, gradient, loss = None, None, rows.new_zeros(())
            self.scaled(loss)                                       # a scaler must scale a loss before it can unscale
        of_criterion = norm_of(self.of_criterion, rows)
        gradient = exchange.returned(gradient, rows, n)
        gradient = F.pad(gradient, (0, 0, 0, sum(sizes) - len(gradient)))
        for piece, seed, towards in zip(pieces, seeds, gradient.split(sizes), strict=True):
            with contextlib.nullcontext() if keep else batch_norm.without_tracking(layers):
                output = outputs[0] if keep else self.piece(piece, seed)
            if output.requires_grad:
                output.backward(towards)
        if processes.count() > 1:
            self.join(layers, len(rows) / n, loss, of_criterion)
        return embeddings, loss, norm_of(self.of_network, rows).hypot(of_criterion)

    def piece(self, images, seed):
        """
        What embed() returns for the images, concatenated into one tensor [b, W]. The network samples its random numbers
        with `seed`, and the global generators do not change, so that a miner samples as it does in the plain step.
        """
        with seeded(seed, self.opt.device):
            outputs = self.embed(images)
        self.shapes = [output.shape[1:] for output in outputs]
        return torch.cat([output.flatten(1) for output in outputs], dim=1)

    def gradient_of_loss(self, whole, labels):
        """
        whole: embeddings, features and maps of the batch, [B, W], followed by the columns of a teacher. Returns the
        embeddings [B, D], the gradient [B, W] and the loss. Sets the gradients of the criterion's parameters and, if it
        calls f_embed, those of f_embed.
        """
        widths = [shape.numel() for shape in self.shapes]
        *columns, taught = whole.split([*widths, whole.shape[1] - sum(widths)], dim=1)
        leaves = [part.reshape(-1, *shape).contiguous().requires_grad_()
                  for part, shape in zip(columns, self.shapes, strict=True)]
        loss = self.loss(leaves, labels, None if self.teacher is None else taught)
        self.scaled(loss).backward()
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        gradient = torch.cat([part.flatten(1) for part in gradients], dim=1)
        return leaves[0].detach(), gradient, loss.detach().to(whole.dtype)

    def join(self, layers, fraction, loss, of_criterion):
        """
        Sums over the processes: the gradients of the network; its running statistics, weighted by the fraction of the
        batch that each process embeds; and the loss and the norm of_criterion, which are 0 except in process 0.
        """
        gradients = gradients_of(self.of_network)
        statistics = [statistic for layer in layers if not isinstance(layer, torch.nn.SyncBatchNorm)
                      for statistic in (layer.running_mean, layer.running_var)]
        for statistic in statistics:
            statistic.mul_(fraction)
        exchange.add_up([*gradients, *statistics, loss, of_criterion])
        if self.scaler:             # so that all processes skip the step if only a gradient of the loss is not finite
            gradients[0].add_(of_criterion * 0)

    def update(self, norm):
        """
        Clips the gradients and takes the optimizer's step. Returns {'grad_norm': the norm before clipping} and, with
        --amp float16, 'skipped_steps': whether the step was skipped because a gradient is not finite.
        """
        if self.scaler:
            norm = norm / self.scaler.scale(torch.ones_like(norm))
            self.scaler.unscale_(self.optimizer)
        if self.opt.clip_grad or self.opt.clip_grad_value:
            gradients = [SimpleNamespace(grad=gradient)                       # as the parameters that torch expects
                         for gradient in gradients_of(self.of_network + self.of_criterion)]
            if self.opt.clip_grad:
                torch.nn.utils.clip_grads_with_norm_(gradients, self.opt.clip_grad, norm)
            if self.opt.clip_grad_value:
                torch.nn.utils.clip_grad_value_(gradients, self.opt.clip_grad_value)
        if not self.scaler:
            self.optimizer.step()
            return {'grad_norm': norm}
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {'grad_norm': norm, 'skipped_steps': ~norm.isfinite()}


def gradients_of(parameters):
    """The gradients of the parameters that have one. Of a sparse gradient, its values; they may be changed in place."""
    found = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            rows, values = optimization.rows_of(parameter.grad)
            parameter.grad = torch.sparse_coo_tensor(rows[None], values, parameter.shape, is_coalesced=True,
                                                     check_invariants=False)
            found.append(values)
        elif parameter.grad is not None:
            found.append(parameter.grad)
    return found


def norm_of(parameters, like):
    """The norm of the gradients of the parameters, with the dtype of `like`; 0 if there are none."""
    gradients = gradients_of(parameters)
    return torch.nn.utils.get_total_norm(gradients).to(like) if gradients else like.new_zeros(())


def share_batch_norm(opt, model):
    """
    For a batch that is embedded in several parts, with BatchNorm layers that are not frozen: on GPUs with one piece per
    process, makes the statistics of these layers those of the whole batch; otherwise prints that they are not.
    """
    largest = -(-opt.bs // processes.count())
    in_pieces = 0 < opt.micro_bs < largest
    is_frozen = model.frozen or '' in model.kept
    parts = [*(() if is_frozen else [model.backbone]), model.f_embed, model.inner]
    parts = [part for part in parts if part is not None and batch_norm.has_any(part)]
    if not parts or not (in_pieces or processes.count() > 1):
        return
    if opt.device.type == 'cuda' and not in_pieces:
        if opt.bs < processes.count():
            raise UserError(f'--bs {opt.bs}: BatchNorm that is not frozen needs at least one image for each of the '
                            f'{processes.count()} processes; use a larger batch or fewer processes')
        for part in parts:
            batch_norm.synchronise(part)
    elif processes.is_main():
        print(f'Note: BatchNorm uses the statistics of at most {min(opt.micro_bs or largest, largest)} images at a '
              f'time, not of the whole batch of {opt.bs}; '
              + ('--embed_norm layer does not depend on the batch' if is_frozen
                 else f'--arch {opt.arch}_frozen keeps them fixed'))


def check_precision(opt):
    """Raises UserError if the device does not support the type of --amp."""
    try:
        with warnings.catch_warnings(action='ignore'), torch.autocast(opt.device.type, getattr(torch, opt.amp)):
            supported = torch.is_autocast_enabled(opt.device.type)
    except RuntimeError:
        supported = False
    if not supported:
        raise UserError(f'--amp {opt.amp}: not available on this device ({opt.device}); leave the flag out or choose '
                        'the other type')


def check_compiler(device):
    """Raises UserError if torch.compile does not work, as without a C++ compiler or, on a GPU, without Triton."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:                       # of the compiler, of Triton or of torch: there is no common class
        reason = ' '.join(str(error).split())[:200]
        raise UserError(f'--compile: torch.compile does not work on this machine ({reason}); install a C++ compiler '
                        '(g++ or clang), on a GPU also Triton, or leave the flag out') from None

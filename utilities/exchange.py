"""The communication between the processes of a run in a training step: rows of a batch, their gradients, and sums."""
import torch
import torch.distributed as dist

from utilities import processes


def bounds(n):
    """The limits of the parts of a batch of n images, count() + 1 ascending indices; the first part is the largest."""
    size, larger = divmod(n, processes.count())
    return [size * rank + min(rank, larger) for rank in range(processes.count() + 1)]


def part(n):
    """The slice of a batch of n images that this process embeds; it may be empty, but not in process 0."""
    rank = processes.rank()
    start, stop = bounds(n)[rank:rank + 2]
    return slice(start, stop)


def gathered(own, n):
    """own: the rows of the part of this process, [b, W]. Returns all rows, [n, W], in process 0, zeros elsewhere."""
    if processes.count() == 1:
        return own
    rows = own.new_zeros(n, own.shape[1])
    rows[part(n)] = own
    dist.reduce(rows, dst=0)                                          # each row is that of one process, plus zeros
    return rows if processes.is_main() else rows.zero_()


def returned(whole, n):
    """The inverse of gathered: the rows [b, W] of process 0's `whole`, [n, W], that belong to this process."""
    if processes.count() == 1:
        return whole
    rows = whole.contiguous()
    dist.broadcast(rows, src=0)
    return rows[part(n)]


def add_up(tensors):
    """
    Replaces each tensor by its sum over the processes. The sums are computed in one process and sent to the others, so
    that they are bit-identical in all processes.
    """
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.reduce(flat, dst=0)
    dist.broadcast(flat, src=0)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def copy_from_main(tensors):
    """Copies the values of the tensors from process 0 to all other processes."""
    if processes.count() == 1:
        return
    for tensor in tensors:
        values = tensor.contiguous()                                  # the weights of convolutions may be channels last
        dist.broadcast(values, src=0)
        tensor.copy_(values)


def completed(rows, batches, n_rows, device):
    """
    All rows of a split, [n_rows, W], in every process. Each process has computed the rows of its own batches.

    rows:    [n_rows, W], of which only the own batches' rows are filled in; None in a process without batches.
    batches: the batches of each process, as evaluation.embedding.evaluation_batches gives them.
    """
    own_width = 0 if rows is None else rows.shape[1]
    width = torch.tensor([own_width])
    dist.all_reduce(width, dist.ReduceOp.MAX)
    if rows is None:
        rows = torch.empty(n_rows, int(width), device=device)
    for source, own in enumerate(batches):
        if own:
            dist.broadcast(rows[own[0][0]:own[-1][-1] + 1], src=source)
    return rows

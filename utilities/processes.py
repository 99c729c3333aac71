"""The processes that compute one run together: torchrun starts them, torch.distributed connects them."""
import torch.distributed as dist


def connected():
    """Whether this process is one of several that compute one run."""
    return dist.is_available() and dist.is_initialized()


def rank():
    """The number of this process in the run, from 0."""
    return dist.get_rank() if connected() else 0


def count():
    """The number of processes that compute the run."""
    return dist.get_world_size() if connected() else 1


def of_main(work, *arguments):
    """The result of work(*arguments) in process 0, a picklable value, in all processes; the others do not call it."""
    if not connected():
        return work(*arguments)
    values = [work(*arguments) if is_main() else None]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def is_main():
    """Whether this is the process that writes, prints and computes the loss: number 0."""
    return rank() == 0

"""
The namespace of a run's flags, which notes the flags that are read: a given flag that nothing reads has no effect.

Code that only checks flags or writes them down reads vars(opt) or unnoted(opt).
"""
import argparse
import copy

from utilities.errors import UserError


class Flags(argparse.Namespace):
    """
    argparse's namespace, which notes the flags that are read; copies share the notes. Once a part of the program has
    replaced the value of a flag, reading it is no longer noted.

    Other processes, such as data workers, get a plain namespace.
    """
    __slots__ = ('_read', '_replaced')

    def __init__(self, values, read=None, replaced=()):
        object.__setattr__(self, '_read', set() if read is None else read)
        object.__setattr__(self, '_replaced', {*replaced})
        vars(self).update(values)

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if not name.startswith('_'):
            note(self, name)
        return value

    def __setattr__(self, name, value):
        self._replaced.add(name)
        super().__setattr__(name, value)

    def __copy__(self):
        return Flags(vars(self), self._read, self._replaced)

    def __reduce__(self):
        return argparse.Namespace, (), dict(vars(self))


def changed(opt, **values):
    """A copy of the flags in which these values are replaced."""
    own = copy.copy(opt)
    for name, value in values.items():
        setattr(own, name, value)
    return own


def unnoted(opt):
    """A plain copy of the flags, for code that only looks at them: reading it is not noted."""
    return argparse.Namespace(**vars(opt))


def note(opt, *names):
    """Notes these flags as read, for code that has found by unnoted() that they have an effect."""
    if isinstance(opt, Flags):
        opt._read.update({*names} - opt._replaced)


def is_read(opt, name):
    return name in opt._read


def flags_of_losses(opt):
    """
    One namespace per loss of the sum --loss a+b, with its own `loss` and `batch_mining`; one miner serves all losses.

    Raises UserError where the numbers of losses and miners differ.
    """
    losses = opt.loss.split('+')
    miners = unnoted(opt).batch_mining.split('+')
    miners = miners * len(losses) if len(miners) == 1 else miners
    if len(miners) != len(losses):
        raise UserError(f'--batch_mining {opt.batch_mining}: give one miner, or one for each loss of --loss {opt.loss} '
                        '(none where it needs none)')
    return [changed(opt, loss=loss, batch_mining=miner) for loss, miner in zip(losses, miners, strict=True)]

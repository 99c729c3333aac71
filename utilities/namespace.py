"""
The namespace of a run's flags, which notes the flags that are read: a given flag that nothing reads has no effect.

Whatever only checks flags, or writes them down, looks at vars(opt) or unnoted(opt).
"""
import argparse
import copy


class Flags(argparse.Namespace):
    """
    argparse's namespace with notes of what is read, which its copies share. A value that some part puts in place of a
    flag's is not the flag's any more: reading it is not noted.

    A process of its own, such as a data loader's, gets a plain namespace.
    """
    __slots__ = ('_read', '_replaced')

    def __init__(self, values, read=None, replaced=()):
        object.__setattr__(self, '_read', set() if read is None else read)
        object.__setattr__(self, '_replaced', {*replaced})
        vars(self).update(values)

    def __getattribute__(self, name):
        if not name.startswith('_') and name not in self._replaced:
            self._read.add(name)
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        self._replaced.add(name)
        super().__setattr__(name, value)

    def __copy__(self):
        return Flags(vars(self), self._read, self._replaced)

    def __reduce__(self):
        return argparse.Namespace, (), dict(vars(self))


def changed(opt, **values):
    """A copy of the flags in which these have other values."""
    own = copy.copy(opt)
    for name, value in values.items():
        setattr(own, name, value)
    return own


def unnoted(opt):
    """The flags for those who only look at them: reading them is not noted."""
    return argparse.Namespace(**vars(opt))


def note(opt, *names):
    """Counts these flags as read, for those who have decided by unnoted() that they have an effect."""
    for name in names:
        getattr(opt, name)


def is_read(opt, name):
    return name in opt._read

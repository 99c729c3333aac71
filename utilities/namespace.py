"""
The namespace of a run's flags, which notes the flags that are read: a given flag that nothing reads has no effect.

Code that only checks flags or writes them down reads vars(opt) or unnoted(opt).
"""
import argparse
import copy


class Flags(argparse.Namespace):
    """
    argparse's namespace, which notes the flags that are read; copies share the notes. Once a part of the program has
    replaced the value of a flag, reading it is no longer noted. After stop_noting(), it is as quick as argparse's.

    Other processes, such as data workers, get a plain namespace.
    """
    __slots__ = ('_read', '_replaced')

    def __init__(self, values, read=None, replaced=()):
        if read is None:
            read = set()
            Flags.__getattribute__ = Flags.noting
        object.__setattr__(self, '_read', read)
        object.__setattr__(self, '_replaced', {*replaced})
        vars(self).update(values)

    def noting(self, name):
        """As __getattribute__, and notes the name."""
        value = object.__getattribute__(self, name)
        if not name.startswith('_') and name not in object.__getattribute__(self, '_replaced'):
            object.__getattribute__(self, '_read').add(name)
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


def stop_noting():
    """Stops noting which flags are read, once all flags with an effect have been read. New Flags are noted again."""
    Flags.__getattribute__ = object.__getattribute__


def note(opt, *names):
    """Notes these flags as read, for code that has found by unnoted() that they have an effect."""
    if isinstance(opt, Flags):
        opt._read.update({*names} - opt._replaced)


def is_read(opt, name):
    return name in opt._read

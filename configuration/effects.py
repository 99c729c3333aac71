"""Notes on given flags without effect in a run: nothing reads them."""
import sys

import parameters
from flags import namespace
from flags.command_line import text_of
from utilities import processes

BUILT = ('data', 'network')                                                    # groups of flags
TRAINING = ('training', 'batch creation', 'batch mining', 'losses')


def name_unread(opt, trained, evaluated):
    """
    Prints the given flags without effect: those that nothing has read in the first trained epoch, or with --n_epochs 0
    in the evaluation. After the first evaluated epoch, it also names flags of the evaluation. To be called after each
    epoch; each flag is named once.
    """
    found = unread(opt, trained, evaluated)
    namespace.note(opt, *found)
    if found and processes.is_main():
        named = ', '.join(f'--{name} {text_of(value)}' for name, value in found.items())
        print(f'Note: without effect in this run: {named}', file=sys.stderr)


def unread(opt, trained, evaluated):
    """
    The flags of name_unread(), {flag: value}. A resumed run has the data and the network that it began with, and reads
    fewer of their flags.
    """
    if not trained and opt.n_epochs:
        return {}
    groups = [*TRAINING]
    if not opt.resume:
        groups += BUILT
    if evaluated:
        groups.append('evaluation')
    flags = parameters.flags_of_group(*groups)
    defaults = parameters.defaults()
    values = vars(opt)
    return {name: values[name] for name in opt.given
            if name in flags and not namespace.is_read(opt, name) and values[name] != defaults[name]}

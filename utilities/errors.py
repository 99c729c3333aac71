"""The two kinds of failure that are reported by a sentence instead of a traceback, and the exit codes of scripts."""
import difflib
import sys


class UserError(Exception):
    """Something the user must change: a flag, a file, the data, a combination. main.py prints it and exits with 2."""

    def __init__(self, message):
        # Raised in a data worker, it reaches the main process with a traceback in front; the sentence comes last.
        super().__init__(str(message).rsplit('UserError: ', 1)[-1].strip())


class RunFailed(Exception):
    """The run itself went wrong, as with a loss that is not finite. main.py prints it and exits with 1."""


def nearest(name, names, prefix=''):
    """What is added to the sentence on an unknown `name`: the nearest of `names` if one is near, after `prefix`."""
    close = difflib.get_close_matches(name, names, n=1)
    return f'; did you mean {prefix}{close[0]}?' if close else ''


def choose(table, name, flag):
    """table[name]; an unknown name is a UserError with the flag, the value, the choices and the nearest of them."""
    if name not in table:
        raise UserError(f'{flag} {name}: unknown; choose from {", ".join(table)}{nearest(name, table)}')
    return table[name]


def exit_code(script, work):
    """
    Calls work() and returns the exit code of the script: what work() returns, or 0 for None; 2 after a UserError and 1
    after a RunFailed, whose sentences are printed; 130 after Ctrl-C. Any other exception keeps its traceback.
    """
    try:
        return work() or 0
    except UserError as error:
        print(f'{script}: error: {error}', file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f'{script}: the run failed: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130

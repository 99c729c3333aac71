"""The two kinds of failure that are told in a sentence instead of a traceback."""


class UserError(Exception):
    """Something the user must change: a flag, a file, the data, a combination. main.py prints it and exits with 2."""

    def __init__(self, message):
        # Raised in a data worker, it reaches the main process with a traceback in front; the sentence comes last.
        super().__init__(str(message).rsplit('UserError: ', 1)[-1].strip())


class RunFailed(Exception):
    """The run itself went wrong, as with a loss that is not finite. main.py prints it and exits with 1."""


def choose(table, name, flag):
    """table[name]; an unknown name is a UserError with the flag, the value and the choices."""
    if name not in table:
        raise UserError(f'{flag} {name}: unknown; choose from {", ".join(table)}')
    return table[name]

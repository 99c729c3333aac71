"""The two kinds of failure that are reported by a sentence instead of a traceback."""


class UserError(Exception):
    """Something the user must change: a flag, a file, the data, a combination. main.py prints it and exits with 2."""

    def __init__(self, message):
        # If it is raised in a data worker, torch puts the worker's traceback before the sentence.
        super().__init__(str(message).rsplit('UserError: ', 1)[-1].strip())


class RunFailed(Exception):
    """A failure of the run itself, such as a loss that is not finite. main.py prints it and exits with 1."""


def choose(table, name, flag):
    """table[name]. For an unknown name, raises UserError with the flag, the value and the choices."""
    if name not in table:
        raise UserError(f'{flag} {name}: unknown; choose from {", ".join(table)}')
    return table[name]

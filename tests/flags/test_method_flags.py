"""The flags that files of methods declare: which function documents them, what they take, what is refused."""
import types

import pytest

from batch_mining import BATCHMINERS
from criteria import CRITERIA
from flags import method_flags


def module_of(text):
    module = types.ModuleType('own')
    exec(text, vars(module))
    return module


OWN = '''
FLAGS = {'margin': {'above': 0}, 'factor': {'argument': 'scale'}, 'lr': {'default': 0.1, 'help': 'a rate'}}

def first(batch, margin=5.0, scale=(1, 2)):
    """
    Args:
        margin: of another function.
        scale:  of both
                lines.
    """

def own_loss(batch, margin=0.5):
    """
    Args:
        batch, margin: of the method's function.
    """
'''


def test_the_function_named_after_the_file_comes_first_and_texts_are_joined():
    assert method_flags.declared(module_of(OWN), 'loss_own_') == {
        'loss_own_margin': {'default': 0.5, 'help': "of the method's function", 'above': 0},
        'loss_own_factor': {'default': [1, 2], 'help': 'of both lines', 'argument': 'scale'},
        'loss_own_lr': {'default': 0.1, 'help': 'a rate'}}
    assert method_flags.declared(module_of('def own_loss(batch, margin=0.5): pass'), 'loss_own_') == {}


def test_a_flag_without_a_default_is_refused():
    with pytest.raises(ValueError, match=r"own: FLAGS\['lr'\]: no public function of the file has an argument lr with"):
        method_flags.declared(module_of("FLAGS = {'lr': {'at_least': 0}}"), 'loss_own_')


def test_the_methods_function_of_each_file_is_the_one_named_after_it():
    for name, module in CRITERIA.items():
        assert method_flags.public_functions(module)[0].__name__ == f'{module.__name__.rpartition(".")[2]}_loss', name
    for name, module in BATCHMINERS.items():
        assert not module or method_flags.public_functions(module)[0].__name__.startswith(
            module.__name__.rpartition('.')[2]), name

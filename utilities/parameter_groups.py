"""What is trained of a criterion: its optimizer groups, and the optimizers that it owns."""
from .errors import UserError


def parameter_groups(criterion):
    """The optimizer groups of a criterion and the criteria inside it."""
    return criterion.parameter_groups() if hasattr(criterion, 'parameter_groups') else own_groups(criterion)


def own_groups(criterion, besides=None):
    """
    A criterion's `optim_dict_list`, or one group of its parameters with its learning rate `lr`, without the parameters
    of the criterion `besides` inside it, and without those that it trains by its own optimizers.
    """
    elsewhere = {parameter for optimizer in optimizers(criterion) for group in optimizer.param_groups
                 for parameter in group['params']}
    if hasattr(criterion, 'optim_dict_list'):
        return criterion.optim_dict_list
    elsewhere |= {*besides.parameters()} if besides else set()
    own = [parameter for parameter in criterion.parameters() if parameter not in elsewhere]
    trained = any(parameter.requires_grad for parameter in own)
    if trained and not hasattr(criterion, 'lr'):
        raise UserError(f'{type(criterion).__module__}.{type(criterion).__name__} has parameters, but neither a rate '
                        'self.lr nor optimizer groups self.optim_dict_list')
    return [{'params': own, 'lr': criterion.lr}] if trained else []


def optimizers(criterion):
    """The optimizers that a criterion and the criteria inside it own; each returns them in a method optimizers()."""
    return [optimizer for module in criterion.modules() if hasattr(module, 'optimizers')
            for optimizer in module.optimizers()]

"""The keywords that a criterion is called with: those that its `forward` names, also as the public code names them."""
import inspect


def taken(criterion):
    """The parameters of `forward` of a criterion or its class."""
    return inspect.signature(criterion.forward).parameters


def has_public_features(criterion):
    """Whether batch_features are feature maps; later public code calls the pooled features avg_batch_features."""
    return {'batch_features', 'avg_batch_features'} <= taken(criterion).keys()


def restrict(criterion):
    """Makes the criterion ignore the keywords that its `forward` does not take."""
    names = taken(criterion)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
    gets_maps = has_public_features(criterion)

    def chosen(module, arguments, given):
        if 'avg_batch_features' in names:
            given = {'avg_batch_features': given.get('batch_features')} | given
        if gets_maps and 'feature_maps' in given:
            given = given | {'batch_features': given['feature_maps']}
        return arguments, {name: value for name, value in given.items() if takes_all or name in names}

    if not takes_all or 'avg_batch_features' in names:
        criterion.register_forward_pre_hook(chosen, with_kwargs=True)

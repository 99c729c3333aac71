"""Batch samplers: which images stand together in a training batch."""
from datasampler import class_random_sampler, full_random_sampler
from utilities.errors import choose

SAMPLERS = {
    'class_random': class_random_sampler,
    'full_random': full_random_sampler,
}


def select(opt, images):
    """The sampler --data_sampler over the training images. Raises UserError where the batch cannot be made."""
    return choose(SAMPLERS, opt.data_sampler, '--data_sampler').Sampler(opt, images.image_dict, images.image_list)

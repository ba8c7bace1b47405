"""How much memory a computation takes: the largest tensor it makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestMade(TorchDispatchMode):
    """``num`` is how many values the largest tensor has that is made within; views of what was
    there do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        there = {given.untyped_storage().data_ptr() for given in tensors((args, kwargs))}
        new = [
            tensor.numel()
            for tensor in tensors(made)
            if tensor.untyped_storage().data_ptr() not in there
        ]
        self.num = max([self.num, *new])
        return made


def tensors(values: object) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]

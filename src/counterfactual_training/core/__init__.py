"""Mathematics on logits and tensors, with any leading dimensions; nothing here knows a model.

Start with ``eq2.py``, which every training by Eq. 2 runs. ``energy.py``, ``losses.py``,
``distances.py`` and ``kernels.py`` (MMD) hold one formula per function.
"""

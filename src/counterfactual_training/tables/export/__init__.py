"""Trained classifiers for programs without torch: predictions, gradients and rules in one ONNX
file.

Start with ``onnx_file.py``: logits, gated probabilities and the gradient in closed form.
``description.py`` writes encoder and rules as JSON beside it.
"""

from counterfactual_training.tables.export.onnx_file import export_onnx

__all__ = ["export_onnx"]

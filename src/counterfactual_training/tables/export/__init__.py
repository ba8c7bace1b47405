"""Trained classifiers for programs without torch: predictions, gradients and rules in one ONNX
file.
"""

from counterfactual_training.tables.export.onnx_file import export_onnx

__all__ = ["export_onnx"]

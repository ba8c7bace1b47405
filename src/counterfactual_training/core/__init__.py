"""Pure mathematics on logits and tensors; any leading dimensions."""

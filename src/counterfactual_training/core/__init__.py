"""Mathematics on logits and tensors, with any leading dimensions."""

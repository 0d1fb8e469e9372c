"""What a model is: its configuration, weights, tokenizer and dense forward pass."""

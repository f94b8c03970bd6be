"""PromptSearch: texts before prompts change, weights do not."""

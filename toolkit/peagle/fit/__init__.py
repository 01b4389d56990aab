"""What one GPU holds, as vLLM counts it: weights, working memory, key-value cache. Pure."""

"""The target of the pair `peagle/tiny`, the questions that its heads learn from, and its evidence.

`python -m examples.tiny.train` trains the target and writes `model_catalog/peagle/tiny/target`;
`python -m examples.tiny.questions` writes the data for `peagle train tiny`;
`python -m examples.tiny.measure` serves the pair with vLLM and writes the evidence.
"""

"""The pair `peagle/tiny`: a small target, a P-EAGLE head and an EAGLE-3 head, and their evidence.

`python -m examples.tiny.train` trains all three and writes `model_catalog/peagle/tiny/`;
`python -m examples.tiny.measure` serves them with vLLM and writes the evidence.
"""

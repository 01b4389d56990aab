"""Choose, prove, price and reproduce P-EAGLE speculative decoding on Amazon SageMaker.

A pair from the catalogue becomes a Plan; everything else reads the Plan. ``peagle.api`` lists the
public functions.
"""

__version__ = "0.1.0"

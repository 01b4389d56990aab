"""Choose, prove, price and reproduce P-EAGLE speculative decoding on Amazon SageMaker.

A pair from the catalogue becomes a Plan; everything else reads the Plan:

    catalog -> planning -> rendering -> aws | local | sandbox -> bench

Imports point downwards only; ``cli`` stands on top of all rooms.
"""

__version__ = "0.1.0"

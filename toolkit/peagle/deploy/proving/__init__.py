"""Prove that an endpoint speculates.

    request     what to prove: prompts, floor, number of drafts
    statistics  reads what the instances count, in their logs
    prover      sends the prompts, and reads counters or logs
    prove       proves a revision or any endpoint, and records the result

``peagle.proof`` decides what passes; it knows nothing of AWS.
"""

"""AWS: the only room that knows boto3.

session     one connection; the only place that builds clients      errors   what it raises
preflight   looks at the account before anything is created         wanted   the requests to send
roles, limits, storage, endpoints, logs    one kind of thing each, one function per call
records     what was created, written down before and after         work     how that is done
steps       from weights to an endpoint in service                  watch    waiting for it
deployment  what must change, the steps in order, proof, tidying    proving  accepted drafts
destruction everything that deploy made, and nothing else           status   what to say of it
runtime     whole and streamed answers, and the engine's counters
"""

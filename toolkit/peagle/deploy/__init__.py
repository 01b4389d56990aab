"""Deploy a plan to SageMaker, update it, prove it and remove it. From the ground up:

    served         what an endpoint serves        proof_tag    a proof as a tag
    leftovers      what AWS keeps of an endpoint  state        a deployment as it is kept
    records        the files of deployments
    diff           what an update changes         revisions    which serves, which are kept
    desired        what deploy creates            context      a command's record and progress
    invoke         requests to an endpoint        live         what an endpoint serves now
    wait           waiting; why a start fails     owner        who may change it; adoption
    steps          create a resource              discover     deployments by their tags
    described      revisions in what AWS describes
    removal        remove a resource              usage        requests, times, KV cache, cost
    status         state, price and lists         preflight    checks before a change
    failed_start   remove what will never serve   logs         an endpoint's log
    fallback       other instance types           proving      does it speculate?
    temporary      proof before the switch        apply        all of a deploy
    rollback       return to the previous revision
    alarms         of a rollout: created, named, removed

A module imports only those above it; import-linter holds that (``pyproject.toml``).
"""

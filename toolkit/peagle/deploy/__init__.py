"""Deploy a plan to SageMaker, update it, prove it and remove it. From the lowest layer up:

    served             what an endpoint serves, as data
    proof_tag          a proof as a tag of the endpoint
    leftovers          what AWS keeps after a deletion
    state              a deployment as a record keeps it, its costs
    records            the files of deployments
    diff               what an update changes; two plans side by side
    desired            a plan as complete requests
    context            a command's connection, record and progress
    revisions          which revision serves, which are kept
    wake_up            a request to an endpoint at zero
    candidate_options  the options of a compared plan
    wait               waiting, and why a start fails
    live               what an endpoint serves now
    owner              who may change a deployment
    invoke             a request to an endpoint or local engine
    alarms             alarms, metric filters and the topic
    scaling            automatic scaling
    network            whether the VPC lets a container start
    role_access        what the role needs besides weights
    variants           the two variants of a comparison
    observe            dashboard, log, captured requests
    costs              what a deployment costs
    extra_instances    instances beyond the most that a budget expects
    copies             copies of an inference component
    ends               when a deployment ends
    limits             the end time, set and removed
    removal            remove a resource, or what will never serve
    described          revisions and uploads in what AWS describes
    steps              create a resource
    discover           deployments by their tags
    settings           what a plan sets outside of its endpoint
    live_prices        plans with AWS's own prices
    drift_fields       the fields of plan and account
    drift_settings     drift of scaling, alarms and limits
    status             state, price and lists
    preflight          checks before a change
    drift              where the account differs from a plan
    proving            whether an endpoint speculates
    fallback           other instance types
    logs               an endpoint's log
    usage              requests, times, KV cache and cost
    scale              other numbers of instances or copies
    temporary          a proof before the change
    apply              all of a deploy
    end_comparison     promote or drop the compared plan
    rollback           return to the previous revision
    comparison         a second plan next to the first
    reap               deployments past their end

A module imports only those above it here; import-linter enforces that (``pyproject.toml``).
"""

"""AWS on this machine: a moto server whose SageMaker endpoints start the plan's engine.

    client         start, stop, query; rehearse faults, quotas, scaling
    state          state on disk
    server         the daemon                 router         which request goes where
    requests       who signed a request, its operation, whether AWS would reject it
    faults         failures on request        account        quotas, prices, role, images, VPC
    sagemaker      models, configurations, endpoints and components of a region
    endpoints      states of an endpoint and of a component, updates that alarms watch
    engines        the engines behind an endpoint
    launch         what is launched, weights from S3, the stand-in for a target
    invocations    invoking endpoints, streamed
    observability  logs and metrics           scaling        Application Auto Scaling
    scheduler      schedules that call their targets         stacks         CloudFormation

Only ``server`` and the modules that it uses import moto.

Not supported: permissions are not checked; an endpoint runs at most four engines of each variant's
first container; an engine that dies is not restarted, and its endpoint is Failed; no asynchronous
invocations or data capture; no alarm is evaluated and no metric filter applied; stacks skip the
types of resources that moto lacks, such as alarms; nothing is kept after ``stop``.
"""

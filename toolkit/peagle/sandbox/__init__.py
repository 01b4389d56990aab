"""AWS on this machine: a moto server whose SageMaker endpoints start the plan's engine.

    client         start, stop, query; rehearse faults, quotas, scaling
    state          state on disk           faults         failures on request
    server         the daemon: which request goes where
    requests       who signed a request, its operation, whether AWS would reject it
    account        quotas, prices, role, images, VPC
    sagemaker      what a region has, and AWS's checks of each request
    endpoints      states of an endpoint and of a component, updates that alarms watch
    engines        the engines behind an endpoint
    training       training jobs as processes
    launch         what is launched, weights from S3, the stand-in for a target
    invocations    invoking endpoints, streamed
    capture        requests and answers that are captured to S3
    observability  logs and metrics
    scaling        Application Auto Scaling, and schedules that end an endpoint
    stacks         CloudFormation

Only ``server`` and the modules that it uses import moto. docs/sandbox.md says what is simulated and
what is not.
"""

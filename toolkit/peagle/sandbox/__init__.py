"""AWS on this machine: a moto server whose SageMaker endpoints start the plan's engine.

    client       start, stop, query      invocations   invoking endpoints, streamed
    server       the daemon              relay         HTTP to an engine
    state        state on disk           protocol      responses, errors, event streams
    router       which request goes      launch_spec   what to launch for an endpoint
                 where                   launch        download weights, start the engine
    sagemaker    models, configurations  instance      one engine
                 and endpoints           fleet         the engines of an endpoint
    operations   validation of requests  logs          an engine's log in CloudWatch
    services     quotas, prices          stacks        CloudFormation

Only ``server`` and the modules that it uses import moto.

Not supported: signatures and permissions are not checked; an endpoint runs at most four
engines of each variant's first container; an engine that dies is not restarted; no automatic
scaling, inference components, asynchronous invocations or data capture; nothing is kept after
``stop``.
"""

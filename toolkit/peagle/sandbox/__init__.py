"""AWS on this machine: a moto server whose SageMaker endpoints start the plan's engine.

    client         start, stop, query      invocations   invoking endpoints, streamed
    rehearsal      faults, quotas, calls   relay         HTTP to an engine
    server         the daemon              protocol      responses, errors, event streams
    state          state on disk           launch_spec   what to launch for an endpoint
    router         which request goes      launch        download weights, start the engine
                   where                   instance      one engine
    calls          which operation it is   fleet         the engines of an endpoint
    faults         failures on request     logs          an engine's log in CloudWatch
    control        the sandbox's own       not_applied   arguments that no engine got
                   requests                sagemaker     models, configurations, endpoints
    validation     AWS's rules             resources     models and configurations
    prerequisites  role, images, data      endpoint      an endpoint's states
    services       quotas, prices, tags    operations    those that differ from moto's
    stacks, stack  CloudFormation          stack_resources   what stacks are made of

Only ``server`` and the modules that it uses import moto.

Not supported: signatures and permissions are not checked; an endpoint runs at most four
engines of each variant's first container; an engine that dies is not restarted; no automatic
scaling, inference components, asynchronous invocations or data capture; stacks skip the types of
resources that moto lacks, such as scaling policies; nothing is kept after ``stop``.
"""

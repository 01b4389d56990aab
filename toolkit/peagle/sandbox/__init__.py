"""AWS on this machine: a moto server whose SageMaker endpoints start the plan's engine.

    client         start, stop, query      invocations   invoking endpoints, streamed
    rehearsal      faults, quotas, calls   relay         HTTP to an engine
    server         the daemon              protocol      responses, errors, event streams
    state          state on disk,          launch_spec   what to launch for an endpoint;
                   processes without a                   arguments that no engine got
                   readable record         launch        weights from the sandbox's S3; start
    router         which request goes                    the engine
                   where                   instance      one engine
    signatures     whether the owner       fleet         the engines of an endpoint
                   signed it               logs          an engine's log in CloudWatch
    calls          which operation it is   sagemaker     models, configurations, endpoints
    faults         failures on request     resources     models, configurations, variants
    control        the sandbox's own       endpoint      an endpoint's states
                   requests
    validation     AWS's rules             operations    what differs from moto's; the role
    prerequisites  role, images, data      services      quotas, prices, tags
    stacks, stack  CloudFormation          stack_resources   what stacks are made of
    metrics        data points, math       cloudwatch    metrics, dashboards, metric filters
    traffic        metrics of AWS/SageMaker
    log_metrics    metrics from logs       alarms        states of alarms
    rollout        updates in steps      daemon        start the daemon
    autoscaling    Application Auto      scalable_targets  what is registered with it
                   Scaling               scheduler     schedules that call their targets
    components     inference components  component_operations  their operations

Only ``server`` and the modules that it uses import moto.

Not supported: permissions are not checked; an endpoint runs at most four engines of each variant's
first container; an engine that dies is not restarted, and its endpoint is Failed; no asynchronous
invocations or data capture; stacks skip the types of resources that moto lacks, such as scaling
policies; nothing is kept after ``stop``.
"""

"""Deploy a plan to SageMaker, update it, prove it and remove it. Desired is compared with read:

state        what an endpoint serves, and a deployment as a record keeps it: data
records      the files of deployments
diff         what an update changes; two plans side by side
desired      a plan as complete requests
context      a command's connection, record and progress
revisions    which revision serves, which are kept; variants; owners
resources    one class per kind of resource, and the loop that applies a plan
scaling      automatic scaling; ``scale`` changes numbers and bounds
limits       when a deployment ends
alarms       alarms of a rollout and a comparison
wait         waiting, and why a start fails
discover     deployments by their tags, and what AWS describes
status       state, price, cost and lists; ``usage``: load, times and logs
access       what VPC and role let a container do
preflight    checks before a change
apply        all of a deploy; ``fallback``: other instance types
proving      whether an endpoint speculates
rollback     return to the previous revision
comparison   a second plan next to the first
drift        where the account differs from a plan
removal      remove a deployment, and those past their end
invoke       a request to an endpoint or local engine
"""

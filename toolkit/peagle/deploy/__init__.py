"""Deploy a plan to SageMaker, update it, prove it and remove it. Desired is compared with read.

state       what an endpoint serves     records     the files that keep it
revisions   which revision serves       discover    the same, read from the account
preflight   the change that a plan needs, and its checks
apply       makes the change, proves it and returns from it
resources   one class per kind of resource
scaling     bounds, counts and the end  comparison  a second plan beside the first
context     the record of a command, and waiting
proving     prompts and their counters  invoke      one request, measured
diff        two plans, or plan and endpoint
drift       plan and account            status      state, cost and usage
removal     deletes what was made, and what is past its end
"""

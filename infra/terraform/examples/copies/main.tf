# A plan with copies, which hashicorp/aws has no resource for: the stack of `peagle render
# cloudformation PLAN -o stack`. CloudFormation undoes a failed update, and then the apply fails.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100"
    }
  }
}

variable "stack_name" {
  description = "Name of the CloudFormation stack."
  type        = string
}

variable "template_file" {
  description = "The template that `peagle render cloudformation` wrote."
  type        = string
  default     = "stack/template.yaml"
}

variable "execution_role_arn" {
  description = "ARN of the role that SageMaker assumes to read the image and the weights."
  type        = string
}

variable "parameters" {
  description = "Other parameters of the template, such as ModelBucket or EndsAt."
  type        = map(string)
  default     = {}
}

resource "aws_cloudformation_stack" "this" {
  #checkov:skip=CKV_AWS_124:The apply waits for the stack and fails with it, so nobody needs its events
  name          = var.stack_name
  template_body = file(var.template_file)
  parameters    = merge(var.parameters, { ExecutionRoleArn = var.execution_role_arn })
  capabilities  = ["CAPABILITY_IAM"] # the role of the schedule, in plans with an end

  timeouts {
    create = "3h"
    update = "10h"
  }
}

output "outputs" {
  description = "The outputs of the stack, such as EndpointName and OpenAIBaseURL."
  value       = aws_cloudformation_stack.this.outputs
}

# One endpoint, from the values that `peagle render terraform` writes.

terraform {
  required_version = ">= 1.5"
}

provider "aws" {
  region = local.values.region
}

variable "execution_role_arn" {
  description = "ARN of the role that SageMaker assumes to read the image and the weights."
  type        = string
}

variable "model_bucket" {
  description = "Bucket that holds the weights; README.md lists the prefixes, if there are any."
  type        = string
  default     = null
}

variable "ends_at" {
  description = "When the endpoint is deleted, in UTC, such as 2030-01-31T20:00:00, if it has an end."
  type        = string
  default     = null
}

variable "log_kms_key_arn" {
  description = "ARN of a KMS key that encrypts the log, if there is one; CloudWatch Logs must be allowed to use it."
  type        = string
  default     = null
}

locals {
  values = jsondecode(file("${path.module}/values.json"))
}

module "endpoint" {
  source = "./endpoint"

  name               = local.values.name
  execution_role_arn = var.execution_role_arn
  model_bucket       = var.model_bucket
  model              = local.values.model
  instances          = local.values.instances
  kms_key_arn        = local.values.kms_key_arn
  scaling            = local.values.scaling
  rollout            = local.values.rollout
  alarms             = local.values.alarms
  metric_filters     = local.values.metric_filters
  log_retention_days = local.values.log_retention_days
  log_kms_key_arn    = var.log_kms_key_arn
  dashboard          = local.values.dashboard
  capture            = local.values.capture
  end                = local.values.end
  ends_at            = var.ends_at
  tags               = local.values.tags
  own_tags           = local.values.own_tags
}

output "endpoint_name" {
  value = module.endpoint.endpoint_name
}

output "model_name" {
  value = module.endpoint.model_name
}

output "endpoint_config_name" {
  value = module.endpoint.endpoint_config_name
}

output "openai_base_url" {
  value = module.endpoint.openai_base_url
}

output "weights" {
  value = module.endpoint.weights
}

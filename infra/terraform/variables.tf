variable "name" {
  description = "Name of the endpoint, and the beginning of the names of model and configuration."
  type        = string

  validation {
    condition     = can(regex("^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$", var.name))
    error_message = "The name has at most 63 letters, digits and hyphens."
  }
}

variable "execution_role_arn" {
  description = "ARN of the role that SageMaker assumes to read the image and the weights."
  type        = string

  validation {
    condition     = can(regex("^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$", var.execution_role_arn))
    error_message = "The role is an ARN such as arn:aws:iam::111122223333:role/peagle."
  }
}

variable "model_bucket" {
  description = "Bucket that holds the weights, where model.data names $${ModelBucket}."
  type        = string
  default     = null

  validation {
    condition     = var.model_bucket == null || can(regex("^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", var.model_bucket))
    error_message = "A bucket has 3 to 63 lower-case letters, digits, dots and hyphens."
  }
}

variable "model" {
  description = "The container: image, environment of vLLM, weights in S3, and network."
  type = object({
    image              = string
    environment        = map(string)
    data               = optional(list(object({ uri = string, channel = optional(string) })), [])
    network_isolation  = optional(bool, false)
    subnets            = optional(list(string), [])
    security_group_ids = optional(list(string), [])
  })

  validation {
    condition     = length(var.model.environment) <= 100
    error_message = "SageMaker accepts 100 environment variables."
  }

  validation {
    condition     = alltrue([for one in var.model.data : startswith(one.uri, "s3://") && endswith(one.uri, "/")])
    error_message = "Weights are S3 prefixes such as s3://bucket/folder/."
  }

  validation {
    condition     = (length(var.model.subnets) == 0) == (length(var.model.security_group_ids) == 0)
    error_message = "Subnets and security groups need each other."
  }
}

variable "instances" {
  description = "Type and number of the instances, the timeouts of their start in seconds, and how requests are shared among them."
  type = object({
    type                     = string
    count                    = number
    ami                      = optional(string)
    startup_timeout_seconds  = number
    download_timeout_seconds = optional(number)
    routing_strategy         = optional(string)
  })

  validation {
    condition     = startswith(var.instances.type, "ml.")
    error_message = "A type of SageMaker begins with ml., such as ml.g6e.xlarge."
  }

  validation {
    condition     = var.instances.count >= 1 && floor(var.instances.count) == var.instances.count
    error_message = "The number of instances is at least 1."
  }

  validation {
    condition     = var.instances.startup_timeout_seconds >= 60 && var.instances.startup_timeout_seconds <= 3600
    error_message = "SageMaker waits 60 to 3,600 seconds for the start."
  }
}

variable "kms_key_arn" {
  description = "KMS key that encrypts the storage volumes of the instances."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.kms_key_arn))
    error_message = "The key is an ARN such as arn:aws:kms:us-east-1:111122223333:key/ID."
  }
}

variable "scaling" {
  description = "Bounds of the instances, and the requests at a time that each should have."
  type = object({
    min_instances              = number
    max_instances              = number
    target_concurrency         = number
    scale_in_cooldown_seconds  = number
    scale_out_cooldown_seconds = number
  })
  default = null

  validation {
    condition     = var.scaling == null ? true : var.scaling.min_instances >= 1 && var.scaling.min_instances <= var.scaling.max_instances
    error_message = "Scaling needs 1 <= min_instances <= max_instances."
  }
}

variable "rollout" {
  description = "How an update replaces the instances: kind is rolling, canary, linear or all-at-once; step is a number of instances (INSTANCE_COUNT) or a share (CAPACITY_PERCENT)."
  type = object({
    kind                      = string
    step                      = optional(object({ type = string, value = number }))
    baking_seconds            = number
    maximum_execution_seconds = number
  })
  default = null

  validation {
    condition     = var.rollout == null ? true : contains(["rolling", "canary", "linear", "all-at-once"], var.rollout.kind)
    error_message = "A rollout is rolling, canary, linear or all-at-once."
  }

  validation {
    condition     = var.rollout == null ? true : (var.rollout.step == null) == (var.rollout.kind == "all-at-once")
    error_message = "Every rollout but all-at-once has a step."
  }
}

variable "alarms" {
  description = "CloudWatch alarms by what they watch. A dimension of $${EndpointConfigName} becomes the name of the configuration. Actions are taken when an alarm fires and when it ends; with a rollout, those that say so undo an update."
  type = map(object({
    name                = string
    description         = string
    namespace           = optional(string)
    metric              = optional(string)
    dimensions          = optional(map(string))
    statistic           = optional(string)
    extended_statistic  = optional(string)
    period_seconds      = optional(number)
    comparison          = string
    threshold           = number
    evaluation_periods  = number
    datapoints_to_alarm = number
    missing_data        = string
    actions             = optional(list(string), [])
    undoes_updates      = optional(bool, true)
    queries = optional(list(object({
      id         = string
      returned   = bool
      expression = optional(string)
      label      = optional(string)
      metric = optional(object({
        namespace      = string
        name           = string
        period_seconds = number
        statistic      = string
      }))
    })), [])
  }))
  default = {}
}

variable "metric_filters" {
  description = "Metrics that CloudWatch counts in the log of the endpoint, by their names."
  type = map(object({
    filter    = string
    pattern   = string
    namespace = string
    value     = string
  }))
  default = {}
}

variable "log_retention_days" {
  description = "How long the log of the endpoint is kept; without it SageMaker creates the log, which stays."
  type        = number
  default     = null
}

variable "log_kms_key_arn" {
  description = "ARN of a KMS key that encrypts the log and that CloudWatch Logs may use; null for CloudWatch's own."
  type        = string
  default     = null

  validation {
    condition     = var.log_kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:", var.log_kms_key_arn))
    error_message = "The key is the ARN of a KMS key."
  }
}

variable "dashboard" {
  description = "Name and body (JSON) of a CloudWatch dashboard."
  type        = object({ name = string, body = string })
  default     = null
}

variable "capture" {
  description = "Share of the requests and answers, in percent, that SageMaker writes to an S3 prefix."
  type = object({
    percent = number
    uri     = string
    kms_key = optional(string)
  })
  default = null

  validation {
    condition     = var.capture == null ? true : var.capture.percent > 0 && var.capture.percent <= 100
    error_message = "A share is above 0 and at most 100 percent."
  }
}

variable "end" {
  description = "Name of the schedule that deletes the endpoint, and of its role, the boundary of the role's permissions, and its tags."
  type = object({
    name                 = string
    permissions_boundary = optional(string)
    tags                 = optional(map(string), {})
  })
  default = null
}

variable "ends_at" {
  description = "When the endpoint is deleted, in UTC, such as 2030-01-31T20:00:00; needed with end."
  type        = string
  default     = null

  validation {
    condition     = var.ends_at == null || can(regex("^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d$", var.ends_at))
    error_message = "The time is one such as 2030-01-31T20:00:00."
  }
}

variable "tags" {
  description = "Tags of endpoint, configuration, model and alarms."
  type        = map(string)
  default     = {}
}

variable "own_tags" {
  description = "Those of the tags that you gave, for the log."
  type        = map(string)
  default     = {}
}

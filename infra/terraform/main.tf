locals {
  # Everything of which another value needs another model and configuration.
  contents = [
    var.name, var.execution_role_arn, var.model_bucket, var.model, var.instances, var.kms_key_arn, var.capture,
  ]
  revision = "${trimsuffix(substr(var.name, 0, 54), "-")}-${substr(terraform_data.revision.id, 0, 8)}"

  data = [
    for one in var.model.data : {
      uri     = var.model_bucket == null ? one.uri : replace(one.uri, "$${ModelBucket}", var.model_bucket)
      channel = one.channel
    }
  ]
}

# A new ID for new contents. Also for those of an earlier revision: after a failed update the earlier
# model and configuration still serve, so their names must not be taken again.
resource "terraform_data" "revision" {
  triggers_replace = sha256(jsonencode(local.contents))
}

resource "aws_sagemaker_model" "this" {
  name                     = local.revision
  execution_role_arn       = var.execution_role_arn
  enable_network_isolation = var.model.network_isolation
  tags                     = var.tags

  primary_container {
    image       = var.model.image
    environment = var.model.environment

    dynamic "model_data_source" {
      for_each = [for one in local.data : one if one.channel == null]
      content {
        s3_data_source {
          s3_uri           = model_data_source.value.uri
          s3_data_type     = "S3Prefix"
          compression_type = "None"
        }
      }
    }

    dynamic "additional_model_data_source" {
      for_each = [for one in local.data : one if one.channel != null]
      content {
        channel_name = additional_model_data_source.value.channel
        s3_data_source {
          s3_uri           = additional_model_data_source.value.uri
          s3_data_type     = "S3Prefix"
          compression_type = "None"
        }
      }
    }
  }

  dynamic "vpc_config" {
    for_each = length(var.model.subnets) > 0 ? [var.model] : []
    content {
      subnets            = vpc_config.value.subnets
      security_group_ids = vpc_config.value.security_group_ids
    }
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = var.model_bucket != null || alltrue([for one in var.model.data : !strcontains(one.uri, "$${ModelBucket}")])
      error_message = "Set model_bucket: the weights of ${var.name} are in your bucket."
    }
  }
}

resource "aws_sagemaker_endpoint_configuration" "this" {
  name        = local.revision
  kms_key_arn = var.kms_key_arn
  tags        = var.tags

  production_variants {
    variant_name           = "AllTraffic"
    model_name             = aws_sagemaker_model.this.name
    instance_type          = var.instances.type
    initial_instance_count = var.instances.count
    initial_variant_weight = 1
    inference_ami_version  = var.instances.ami

    container_startup_health_check_timeout_in_seconds = var.instances.startup_timeout_seconds
    model_data_download_timeout_in_seconds            = var.instances.download_timeout_seconds

    dynamic "routing_config" {
      for_each = var.instances.routing_strategy == null ? [] : [var.instances.routing_strategy]
      content {
        routing_strategy = routing_config.value
      }
    }
  }

  dynamic "data_capture_config" {
    for_each = var.capture == null ? [] : [var.capture]
    content {
      enable_capture              = true
      initial_sampling_percentage = data_capture_config.value.percent
      destination_s3_uri          = data_capture_config.value.uri
      kms_key_id                  = data_capture_config.value.kms_key

      capture_options {
        capture_mode = "Input"
      }
      capture_options {
        capture_mode = "Output"
      }
      capture_content_type_header {
        json_content_types = ["application/json"]
      }
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_sagemaker_endpoint" "this" {
  name                 = var.name
  endpoint_config_name = aws_sagemaker_endpoint_configuration.this.name
  tags                 = merge(var.tags, var.end == null ? {} : { "peagle:ends" = "${var.ends_at}Z" })

  dynamic "deployment_config" {
    for_each = var.rollout == null ? [] : [var.rollout]
    content {
      dynamic "rolling_update_policy" {
        for_each = deployment_config.value.kind == "rolling" ? [deployment_config.value] : []
        content {
          wait_interval_in_seconds             = rolling_update_policy.value.baking_seconds
          maximum_execution_timeout_in_seconds = rolling_update_policy.value.maximum_execution_seconds
          maximum_batch_size {
            type  = rolling_update_policy.value.step.type
            value = rolling_update_policy.value.step.value
          }
        }
      }

      dynamic "blue_green_update_policy" {
        for_each = deployment_config.value.kind == "rolling" ? [] : [deployment_config.value]
        content {
          termination_wait_in_seconds          = blue_green_update_policy.value.baking_seconds
          maximum_execution_timeout_in_seconds = blue_green_update_policy.value.maximum_execution_seconds
          traffic_routing_configuration {
            type                     = upper(replace(blue_green_update_policy.value.kind, "-", "_"))
            wait_interval_in_seconds = blue_green_update_policy.value.step == null ? 0 : blue_green_update_policy.value.baking_seconds

            dynamic "canary_size" {
              for_each = blue_green_update_policy.value.kind == "canary" ? [blue_green_update_policy.value.step] : []
              content {
                type  = canary_size.value.type
                value = canary_size.value.value
              }
            }
            dynamic "linear_step_size" {
              for_each = blue_green_update_policy.value.kind == "linear" ? [blue_green_update_policy.value.step] : []
              content {
                type  = linear_step_size.value.type
                value = linear_step_size.value.value
              }
            }
          }
        }
      }

      # References, so that the alarms exist before the update that they guard.
      auto_rollback_configuration {
        dynamic "alarms" {
          for_each = { for kind, made in aws_cloudwatch_metric_alarm.this : kind => made if var.alarms[kind].undoes_updates }
          content {
            alarm_name = alarms.value.alarm_name
          }
        }
      }
    }
  }

  lifecycle {
    ignore_changes = [tags["peagle:proof"]] # `peagle prove` records the proof there

    # The provider calls an update that SageMaker rolled back a success (terraform-provider-aws 46663
    # and 48997). A failed postcondition keeps Terraform from deleting what serves.
    postcondition {
      condition     = self.endpoint_config_name == aws_sagemaker_endpoint_configuration.this.name
      error_message = "SageMaker rolled the update of ${var.name} back: ${self.endpoint_config_name} still serves. `aws sagemaker describe-endpoint --endpoint-name ${var.name}` has the reason."
    }

    precondition {
      condition     = var.end == null || var.ends_at != null
      error_message = "Set ends_at: ${var.name} has an end."
    }
  }

  # SageMaker would create the log, without retention, before Terraform does.
  depends_on = [aws_cloudwatch_log_group.this, aws_scheduler_schedule.end]
}

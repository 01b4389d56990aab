# EventBridge Scheduler deletes the endpoint at its end, also when Terraform never runs again.

data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}
data "aws_region" "this" {}

data "aws_iam_policy_document" "scheduler_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["scheduler.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.this.account_id]
    }
  }
}

data "aws_iam_policy_document" "scheduler" {
  statement {
    actions   = ["sagemaker:DeleteEndpoint"]
    resources = ["arn:${data.aws_partition.this.partition}:sagemaker:${data.aws_region.this.id}:${data.aws_caller_identity.this.account_id}:endpoint/${var.name}"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/peagle:deployment"
      values   = [var.name]
    }
  }

  # SageMaker removes the scaling target of an endpoint in the name of the caller.
  statement {
    actions   = ["application-autoscaling:DeregisterScalableTarget"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "application-autoscaling:service-namespace"
      values   = ["sagemaker"]
    }
  }
}

resource "aws_iam_role" "scheduler" {
  count = var.end == null ? 0 : 1

  name                 = var.end.name
  assume_role_policy   = data.aws_iam_policy_document.scheduler_trust.json
  permissions_boundary = var.end.permissions_boundary
  tags                 = merge(var.tags, var.end.tags)
}

resource "aws_iam_role_policy" "scheduler" {
  count = var.end == null ? 0 : 1

  name   = "delete-one-endpoint"
  role   = aws_iam_role.scheduler[0].id
  policy = data.aws_iam_policy_document.scheduler.json
}

resource "aws_scheduler_schedule" "end" {
  #checkov:skip=CKV_AWS_297:The schedule holds a time and the endpoint's name, which are not secret
  count = var.end == null ? 0 : 1

  name                         = var.end.name
  description                  = "peagle: the end of the endpoint ${var.name}"
  schedule_expression          = "at(${var.ends_at})"
  schedule_expression_timezone = "UTC"

  flexible_time_window {
    mode = "OFF"
  }

  target {
    arn      = "arn:${data.aws_partition.this.partition}:scheduler:::aws-sdk:sagemaker:deleteEndpoint"
    role_arn = aws_iam_role.scheduler[0].arn
    input    = jsonencode({ EndpointName = var.name })

    retry_policy {
      maximum_event_age_in_seconds = 86400
      maximum_retry_attempts       = 185
    }
  }

  depends_on = [aws_iam_role_policy.scheduler]
}

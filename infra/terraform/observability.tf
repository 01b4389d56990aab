resource "aws_cloudwatch_metric_alarm" "this" {
  for_each = var.alarms

  alarm_name          = each.value.name
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  statistic           = each.value.statistic
  extended_statistic  = each.value.extended_statistic
  period              = each.value.period_seconds
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  evaluation_periods  = each.value.evaluation_periods
  datapoints_to_alarm = each.value.datapoints_to_alarm
  treat_missing_data  = each.value.missing_data
  alarm_actions       = each.value.actions
  ok_actions          = each.value.actions
  tags                = merge(var.own_tags, { "peagle:deployment" = var.name })

  dimensions = each.value.dimensions == null ? null : {
    for name, value in each.value.dimensions :
    name => value == "$${EndpointConfigName}" ? aws_sagemaker_endpoint_configuration.this.name : value
  }

  dynamic "metric_query" {
    for_each = each.value.queries
    content {
      id          = metric_query.value.id
      return_data = metric_query.value.returned
      expression  = metric_query.value.expression
      label       = metric_query.value.label

      dynamic "metric" {
        for_each = metric_query.value.metric == null ? [] : [metric_query.value.metric]
        content {
          namespace   = metric.value.namespace
          metric_name = metric.value.name
          period      = metric.value.period_seconds
          stat        = metric.value.statistic
        }
      }
    }
  }
}

resource "aws_cloudwatch_log_group" "this" {
  count = var.log_retention_days == null ? 0 : 1

  name              = "/aws/sagemaker/Endpoints/${var.name}"
  retention_in_days = var.log_retention_days
  kms_key_id        = var.log_kms_key_arn
  tags              = var.own_tags
}

resource "aws_cloudwatch_log_metric_filter" "this" {
  for_each = var.metric_filters

  name           = each.value.filter
  log_group_name = "/aws/sagemaker/Endpoints/${aws_sagemaker_endpoint.this.name}" # exists with the endpoint
  pattern        = each.value.pattern

  metric_transformation {
    name      = each.key
    namespace = each.value.namespace
    value     = each.value.value
  }
}

resource "aws_cloudwatch_dashboard" "this" {
  count = var.dashboard == null ? 0 : 1

  dashboard_name = var.dashboard.name
  dashboard_body = var.dashboard.body
}

resource "aws_appautoscaling_target" "this" {
  count = var.scaling == null ? 0 : 1

  service_namespace  = "sagemaker"
  resource_id        = "endpoint/${aws_sagemaker_endpoint.this.name}/variant/AllTraffic"
  scalable_dimension = "sagemaker:variant:DesiredInstanceCount"
  min_capacity       = var.scaling.min_instances
  max_capacity       = var.scaling.max_instances
}

resource "aws_appautoscaling_policy" "this" {
  count = var.scaling == null ? 0 : 1

  name               = "peagle-concurrency"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.this[0].service_namespace
  resource_id        = aws_appautoscaling_target.this[0].resource_id
  scalable_dimension = aws_appautoscaling_target.this[0].scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value       = var.scaling.target_concurrency
    scale_in_cooldown  = var.scaling.scale_in_cooldown_seconds
    scale_out_cooldown = var.scaling.scale_out_cooldown_seconds

    predefined_metric_specification {
      predefined_metric_type = "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    }
  }
}

output "endpoint_name" {
  description = "Name of the endpoint, in service."
  value       = aws_sagemaker_endpoint.this.name
}

output "endpoint_arn" {
  description = "ARN of the endpoint."
  value       = aws_sagemaker_endpoint.this.arn
}

output "model_name" {
  description = "Name of the model that the endpoint serves."
  value       = aws_sagemaker_model.this.name
}

output "endpoint_config_name" {
  description = "Name of the endpoint's configuration."
  value       = aws_sagemaker_endpoint.this.endpoint_config_name
}

output "openai_base_url" {
  description = "Base URL for OpenAI clients; their key is a SageMaker bearer token."
  value       = "https://runtime.sagemaker.${data.aws_region.this.id}.${data.aws_partition.this.dns_suffix}/endpoints/${aws_sagemaker_endpoint.this.name}/openai/v1"
}

output "weights" {
  description = "The S3 prefixes from which SageMaker copies the weights."
  value       = [for one in local.data : one.uri]
}

"""AWS: the connection, its errors, and one module per service.

client, errors     the connection; botocore's errors as PeagleErrors
sagemaker, runtime models, configurations, endpoints; requests to an endpoint
s3, s3_source      buckets and uploads; a checkpoint below a prefix
roles, quotas      execution roles, CodeBuild's role; endpoint quotas
prices, logs       the Pricing API with a cache; CloudWatch logs
ecr, codebuild, image_records   container images
refresh, refresh_sources        the catalogue's prices, quotas and image accounts
"""

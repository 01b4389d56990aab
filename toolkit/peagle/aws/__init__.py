"""AWS: the connection, its errors, and one module per service.

client, errors     the connection; botocore's errors as PeagleErrors
sagemaker, runtime models, configurations, endpoints; requests to an endpoint, and its log
s3, roles          buckets, uploads, checkpoints; roles of endpoints and of CodeBuild
prices, quotas     the Pricing API with a cache; endpoint quotas
ecr, codebuild, images, image_records   container images
refresh, refresh_sources                the catalogue's prices, quotas and image accounts
"""

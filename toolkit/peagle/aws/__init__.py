"""AWS: the connection, its errors, and one module per service.

client, errors       the connection; botocore's errors as PeagleErrors
sagemaker, runtime   models, configurations, endpoints; requests to an endpoint, and its log
autoscaling, cloudwatch, vpc   one function per call
s3, iam              buckets, uploads, checkpoints; the execution role
ecr, images          repositories; images built by CodeBuild
prices, refresh      the Pricing API and quotas; the catalogue's images, digests and prices
regions              resources by tags, in each region
"""

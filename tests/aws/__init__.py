"""What runs against an AWS account of yours."""

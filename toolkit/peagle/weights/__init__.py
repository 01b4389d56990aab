"""A pair's weights in S3: copy them, inspect them, remove them. ``layout`` shows where they are."""

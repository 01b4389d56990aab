"""What commands print: every sentence about a result, one module per group of commands."""

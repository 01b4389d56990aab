"""What commands print: tables, progress and messages, one module per command."""

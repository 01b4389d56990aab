"""The numbers that the README names, measured on the machine at hand."""

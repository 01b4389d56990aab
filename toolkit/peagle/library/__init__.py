"""The toolkit as a library; ``import peagle`` has its names."""

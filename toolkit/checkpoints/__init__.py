"""What lies where weights lie: config.json and the headers of safetensors files, never the
weights."""

"""What moto's other services lack: quotas, prices, and the tags of scaling targets."""

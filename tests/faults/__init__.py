"""Every AWS call of deploy, update, rollback, adopt and destroy fails in every way; see trials."""

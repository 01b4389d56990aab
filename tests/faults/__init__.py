"""Every AWS call of deploy, update, rollback and destroy fails in every way; see trials."""

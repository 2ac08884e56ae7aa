OWNER = "the job"

"""Look inside a model: record what it computes, and prove that the record is what it computed."""

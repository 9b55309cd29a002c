"""One module per question asked of a model: a frozen `Config` and `run(model, config, work) -> Result`."""

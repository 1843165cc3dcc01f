package answers

// AddSources is for tests: what a wave starts is decided elsewhere.
var AddSources = addSources

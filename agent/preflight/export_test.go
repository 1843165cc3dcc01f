package preflight

// NewWithTimeout is for tests of sources that do not answer.
var NewWithTimeout = newProber

// Package startup holds what the hub and the agent do alike when they start: their
// common flags, the connection to their own API server, and the options of their
// manager.
package startup

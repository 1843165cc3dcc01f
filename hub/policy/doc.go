// Package policy parses the fleet's policy ConfigMap: defaults for all members,
// overrides per cluster and per selector, and the fleet-wide budget. Preview shows what
// another policy would change.
//
// The package is pure. A member's own keys are parsed by api/policy.
package policy

// Package charts has what the programs know of the charts that install them.
package charts

import _ "embed"

// AgentRoles are the rights that ot-agent is given, as they are generated.
//
//go:embed ot-agent/files/rbac/role.yaml
var AgentRoles []byte

// HubRoles are the rights that ot-hub is given, as they are generated.
//
//go:embed ot-hub/files/rbac/role.yaml
var HubRoles []byte

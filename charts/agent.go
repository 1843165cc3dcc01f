package charts

import "embed"

// Agent is chart ot-agent, in folder ot-agent, as the hub installs it. A program that
// does not name it does not have it: the linker leaves it out.
//
//go:embed all:ot-agent
var Agent embed.FS

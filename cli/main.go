// Command kubectl-ot is the kubectl plugin of OT Fleet: kubectl ot.
package main

import (
	"os"

	"github.com/pelotech/ot-fleet/cli/command"
)

// version is set by the linker.
var version = "unknown"

func main() { os.Exit(int(command.Run(os.Args[1:], command.StandardStreams(), version))) }

// Command virtlauncher takes the place of KubeVirt's virt-launcher image on
// nodes of kind that run no guests. Which of that image's programs it is goes by
// the name it is started by: the launcher and its tail of the serial console stay
// until they are told to end, as long as a guest takes to shut down; a shell ends
// at once, for all that it is asked for is done by being started (the first
// consumer of a claim) or is not needed (what libvirt can do on this node).
package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// shutdownDelay is how long a guest takes. It is well above how often virthandler
// looks: a machine that is told to end is off before its Pod is.
const shutdownDelay = 5 * time.Second

func main() {
	switch filepath.Base(os.Args[0]) {
	case "sh", "bash":
		return
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM)
	<-told
	<-time.After(shutdownDelay)
}

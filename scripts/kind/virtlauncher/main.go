// Command virtlauncher replaces KubeVirt's virt-launcher image on kind nodes that run no guests. Its name
// selects the program of that image: the launcher and the tail of the serial console run until they are
// terminated and a guest would have shut down. A shell exits at once: it is only started as the
// first consumer of a claim, or to probe libvirt, which is not needed.
package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// shutdownDelay is how long a guest takes to shut down. It is well above virthandler's poll interval: a
// VMI ends before its Pod.
const shutdownDelay = 5 * time.Second

func main() {
	switch filepath.Base(os.Args[0]) {
	case "sh", "bash":
		return
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	<-signals
	<-time.After(shutdownDelay)
}

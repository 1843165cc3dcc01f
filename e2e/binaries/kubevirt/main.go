// Command kubevirt runs KubeVirt's own virt-controller. All that its own
// command ties to a pod are flags here, so that any number of instances run on
// one machine, one for each control plane:
//
//	-kubeconfig F -listen 127.0.0.1 -port 0 -prom-cert-file D/tls.crt -prom-key-file D/tls.key
//
// The directory of the two files has to exist, the files need not.
//
// With -webhooks it is KubeVirt's virt-api instead, as far as the admission of
// machines goes: see serveWebhooks.
//
// With -print-crds it writes KubeVirt's CustomResourceDefinitions to standard output
// instead, so that their Go packages stay out of the project's own module.
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"kubevirt.io/kubevirt/pkg/virt-controller/watch"
)

func main() {
	switch arguments := os.Args[1:]; {
	case slices.Contains(arguments, "-print-crds"):
		end(writeCRDs(os.Stdout))
	case slices.Contains(arguments, "-webhooks"):
		if err := serveWebhooks(); !errors.Is(err, errAnew) {
			end(err)
		}
	default:
		watch.Execute()
	}
	// Both come here when CDI's kinds have come or gone, and count on the kubelet
	// to start them anew.
	end(fmt.Errorf("starting anew: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ())))
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

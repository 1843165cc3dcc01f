// Command kubevirt runs KubeVirt's own virt-controller. All that its own
// command ties to a pod are flags here, so that any number of instances run on
// one machine, one for each control plane:
//
//	-kubeconfig F -listen 127.0.0.1 -port 0 -prom-cert-file D/tls.crt -prom-key-file D/tls.key
//
// The directory of the two files has to exist, the files need not.
//
// With -print-crds it writes KubeVirt's CustomResourceDefinitions to standard output
// instead, with -print-operator IMAGE the manifest of KubeVirt's operator, so that
// their Go packages stay out of the project's own module.
package main

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"kubevirt.io/kubevirt/pkg/virt-controller/watch"
)

func main() {
	switch {
	case slices.Contains(os.Args[1:], "-print-crds"):
		exit(writeCRDs(os.Stdout))
	case len(os.Args) == 3 && os.Args[1] == "-print-operator":
		exit(writeOperator(os.Stdout, os.Args[2]))
	}
	watch.Execute()
	// It returns when CDI's kinds have come or gone, and counts on the kubelet to
	// start it anew.
	fmt.Fprintln(os.Stderr, "starting anew:", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	os.Exit(1)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

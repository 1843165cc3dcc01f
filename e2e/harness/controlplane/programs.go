//go:build linux

package controlplane

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/process"
)

const (
	portAttempts = 5
	// apiServerTimeout ends a start that hangs. Four packages start control planes on two cores.
	apiServerTimeout = 5 * time.Minute

	// MutatingAdmissionVariable has API servers serve MutatingAdmissionPolicy of the version that
	// it names: v1beta1 exists from Kubernetes 1.34 on, and 1.36 is the first that serves any by
	// default. WithoutMutatingAdmission has it serve none.
	MutatingAdmissionVariable = "OT_MUTATING_ADMISSION"
	WithoutMutatingAdmission  = "none"

	// apiServerHeapMiB: a member's CRDs take 140 MiB of live heap, KubeVirt's 100 MiB more.
	apiServerHeapMiB = 512
)

// startEtcd starts etcd on a free port and does not wait for it: the API server does.
func (c *ControlPlane) startEtcd() error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	c.etcdURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	c.etcd, err = process.Start(process.Options{
		Path:    c.paths[binaries.Etcd],
		LogFile: c.LogFile(binaries.Etcd),
		Args: []string{
			"--data-dir=" + c.etcdDir(),
			"--listen-client-urls=" + c.etcdURL,
			"--advertise-client-urls=" + c.etcdURL,
			"--listen-peer-urls=http://127.0.0.1:0",
			"--unsafe-no-fsync",
			"--log-level=error",
			"--quota-backend-bytes=" + strconv.FormatInt(cmp.Or(c.options.EtcdBytes, 256<<20), 10),
		},
	})
	return err
}

// etcdDir is etcd's data directory.
func (c *ControlPlane) etcdDir() string { return filepath.Join(c.dir, "etcd") }

// startFirstAPIServer starts the API server for the first time. Another process may take a free
// port before it is bound: then etcd and API server try other ports.
func (c *ControlPlane) startFirstAPIServer(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		var err error
		if c.port, err = process.FreePort(); err != nil {
			return err
		}
		c.config = &rest.Config{
			Host:            fmt.Sprintf("https://127.0.0.1:%d", c.port),
			BearerToken:     c.credentials.token,
			TLSClientConfig: rest.TLSClientConfig{CAData: c.credentials.authority},
			QPS:             1000,
			Burst:           2000,
		}
		err = c.startAPIServer(ctx)
		if err == nil {
			return nil
		}
		etcdLost, apiServerLost := isPortTaken(c.etcd), isPortTaken(c.apiserver)
		if attempt == portAttempts || !etcdLost && !apiServerLost {
			return err
		}
		if err := c.apiserver.Stop(stopTimeout); err != nil {
			return err
		}
		if etcdLost {
			if err := c.startEtcd(); err != nil {
				return err
			}
		}
	}
}

func isPortTaken(p *process.Process) bool {
	if isRunning(p) {
		return false
	}
	log, err := os.ReadFile(p.LogFile())
	return err == nil && bytes.Contains(log, []byte("address already in use"))
}

// uncachedResources are rarely read by tests. Each watch cache wakes its API server every second: without
// these caches an idle one takes a fifth less CPU time. A run of all tests starts 80 API servers.
var uncachedResources = []string{
	"endpoints", "podtemplates", "replicationcontrollers",
	"controllerrevisions.apps", "daemonsets.apps", "replicasets.apps", "statefulsets.apps",
	"horizontalpodautoscalers.autoscaling",
	"cronjobs.batch", "jobs.batch",
	"certificatesigningrequests.certificates.k8s.io",
	"endpointslices.discovery.k8s.io",
	"flowschemas.flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
	"ingressclasses.networking.k8s.io", "ingresses.networking.k8s.io", "ipaddresses.networking.k8s.io", "networkpolicies.networking.k8s.io", "servicecidrs.networking.k8s.io",
	"runtimeclasses.node.k8s.io",
	"poddisruptionbudgets.policy",
	"deviceclasses.resource.k8s.io", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "resourceslices.resource.k8s.io",
	"priorityclasses.scheduling.k8s.io",
	"csidrivers.storage.k8s.io", "csinodes.storage.k8s.io", "csistoragecapacities.storage.k8s.io", "volumeattachments.storage.k8s.io", "volumeattributesclasses.storage.k8s.io",
}

func (c *ControlPlane) startAPIServer(ctx context.Context) (err error) {
	args := []string{
		"--etcd-servers=" + c.etcdURL,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.port),
		"--endpoint-reconciler-type=none",
		"--enable-priority-and-fairness=false",
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		"--profiling=false",
		"--token-auth-file=" + c.credentials.tokenFile,
		"--tls-cert-file=" + c.credentials.servingCert,
		"--tls-private-key-file=" + c.credentials.servingKey,
		"--client-ca-file=" + c.credentials.authorityFile,
		"--cert-dir=" + c.dir,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.credentials.accountsCert,
		"--service-account-signing-key-file=" + c.credentials.accountsKey,
		"--service-cluster-ip-range=10.96.0.0/24",
		"--shutdown-delay-duration=0s",
		"--watch-cache-sizes=" + strings.Join(uncachedResources, "#0,") + "#0",
	}
	switch version := os.Getenv(MutatingAdmissionVariable); version {
	case "":
	case WithoutMutatingAdmission:
		args = append(args, "--disable-admission-plugins=MutatingAdmissionPolicy", "--runtime-config=admissionregistration.k8s.io/v1/mutatingadmissionpolicies=false")
	default:
		args = append(args, "--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/"+version+"=true")
	}
	if !c.options.ControllerManager {
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	c.apiserver, err = process.Start(process.Options{
		Path:    c.paths[binaries.APIServer],
		Args:    append(args, c.options.APIServerArgs...),
		HeapMiB: cmp.Or(c.options.APIServerHeapMiB, apiServerHeapMiB),
		LogFile: c.LogFile(binaries.APIServer),
	})
	if err != nil {
		return err
	}
	return c.waitForAPIServer(ctx)
}

func (c *ControlPlane) waitForAPIServer(ctx context.Context) error {
	config := c.Config()
	config.Timeout = 5 * time.Second
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client for %s: %w", c.config.Host, err)
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, apiServerTimeout, true, func(ctx context.Context) (bool, error) {
		for _, p := range []*process.Process{c.etcd, c.apiserver} {
			if !isRunning(p) {
				return false, fmt.Errorf("a program exited (%v), the end of its log %s:\n%s", p.Wait(), p.LogFile(), readTail(p.LogFile()))
			}
		}
		last = clients.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the API server at %s to be ready: %w (last answer: %v)", c.config.Host, err, last)
	}
	return nil
}

// controllers are those that members need. Without the protection controllers nothing removes
// the finalizers that the API server adds to volumes.
var controllers = []string{
	"garbage-collector-controller",
	"namespace-controller",
	"serviceaccount-controller",
	"serviceaccount-token-controller",
	"root-ca-certificate-publisher-controller",
	"persistentvolumeclaim-protection-controller",
	"persistentvolume-protection-controller",
	"persistentvolume-binder-controller",
}

// startControllers starts the controllers that are not running. They exit when they lose the API
// server for long.
func (c *ControlPlane) startControllers() (err error) {
	if c.options.ControllerManager && !isRunning(c.controllerManager) {
		wanted := c.options.Controllers
		if len(wanted) == 0 {
			wanted = controllers
		}
		c.controllerManager, err = process.Start(process.Options{
			Path:    c.paths[binaries.ControllerManager],
			LogFile: c.LogFile(binaries.ControllerManager),
			HeapMiB: 128,
			Args: []string{
				"--kubeconfig=" + c.Kubeconfig(),
				"--controllers=" + strings.Join(wanted, ","),
				"--leader-elect=false",
				"--secure-port=0",
				"--root-ca-file=" + c.credentials.authorityFile,
				"--service-account-private-key-file=" + c.credentials.accountsKey,
				"--pvclaimbinder-sync-period=2s",
				"--kube-api-qps=500",
				"--kube-api-burst=1000",
			},
		})
		if err != nil {
			return err
		}
	}
	if c.options.Scheduler && !isRunning(c.scheduler) {
		c.scheduler, err = process.Start(process.Options{
			Path:    c.paths[binaries.Scheduler],
			LogFile: c.LogFile(binaries.Scheduler),
			HeapMiB: 96,
			Args: []string{
				"--kubeconfig=" + c.Kubeconfig(),
				"--leader-elect=false",
				"--secure-port=0",
				"--authentication-tolerate-lookup-failure=true",
				// By default an unschedulable Pod waits for five minutes, longer than any test.
				"--pod-max-in-unschedulable-pods-duration=10s",
			},
		})
	}
	return err
}

func readTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return string(text)
}

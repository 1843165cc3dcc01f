//go:build linux

package controlplane_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const (
	parentVariable = "OT_FLEET_TEST_PARENT"
	// patience is for a machine that has much else to do.
	patience = 2 * time.Minute
)

// planes serve all tests here: one for each that disturbs its API server.
var planes []*controlplane.ControlPlane

func TestMain(m *testing.M) {
	if end := os.Getenv(parentVariable); end != "" {
		runParent(end)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	started := time.Now()
	var err error
	planes, err = controlplane.StartAll(context.Background(),
		controlplane.Options{Name: "one", ControllerManager: true, Scheduler: true},
		controlplane.Options{Name: "two"},
		controlplane.Options{Name: "three"},
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintf(os.Stderr, "three control planes in %s\n", time.Since(started).Round(100*time.Millisecond))
	code := m.Run()
	for _, plane := range planes {
		if err := plane.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// runParent plays a test program that comes to a bad end.
func runParent(end string) {
	plane, err := controlplane.Start(context.Background(), controlplane.Options{Name: "orphan", ControllerManager: true})
	if err != nil {
		panic(err)
	}
	fmt.Println(plane.Dir(), plane.Config().Host)
	if end == "panic" {
		panic("as the test wants")
	}
	select {}
}

func newClientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return c
}

func TestControlPlanesAreIsolated(t *testing.T) {
	ctx := t.Context()
	for _, plane := range planes {
		c := newClientset(t, plane.Config())
		_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}, metav1.CreateOptions{})
		require.NoError(t, err, "control plane %s", plane.Name())
		version, err := c.Discovery().ServerVersion()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(version.GitVersion, "v1."), "version %s", version)
	}
}

func TestControllerManagerCollectsGarbage(t *testing.T) {
	ctx, c := t.Context(), newClientset(t, planes[0].Config())
	owner, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name:            "owned",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, c.CoreV1().ConfigMaps("default").Delete(ctx, owner.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := c.CoreV1().ConfigMaps("default").Get(ctx, "owned", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, 50*time.Millisecond)
}

func TestServiceAccountHasItsOwnRightsOnly(t *testing.T) {
	ctx, admin := t.Context(), newClientset(t, planes[0].Config())
	_, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "limited"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	config, err := planes[0].ServiceAccountConfig(ctx, "default", "limited")
	require.NoError(t, err)
	_, err = newClientset(t, config).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "got %v", err)
	_, err = planes[0].ServiceAccountConfig(ctx, "default", "nobody")
	require.ErrorContains(t, err, "default/nobody")
}

func TestAPIServerRestartKeepsData(t *testing.T) {
	ctx, plane := t.Context(), planes[1]
	c := newClientset(t, plane.Config())
	_, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	require.NoError(t, err)

	require.NoError(t, plane.StopAPIServer())
	_, err = c.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, plane.StartAPIServer(ctx))
	_, err = c.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{})
	require.NoError(t, err, "the same client reaches it on the same port, etcd kept the data")
}

func TestRestoreRevertsState(t *testing.T) {
	ctx, plane := t.Context(), planes[1]
	maps := newClientset(t, plane.Config()).CoreV1().ConfigMaps("default")
	create := func(name string) {
		t.Helper()
		_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create("before")
	backup, err := plane.Backup(ctx)
	require.NoError(t, err)
	defer func() { require.NoError(t, backup.Remove()) }()
	_, err = maps.Get(ctx, "before", metav1.GetOptions{})
	require.NoError(t, err, "a backup changes nothing")
	create("after")

	require.NoError(t, backup.Restore(ctx))
	_, err = maps.Get(ctx, "before", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = maps.Get(ctx, "after", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "got %v", err)
}

func TestPausedAPIServerDoesNotAnswer(t *testing.T) {
	ctx, plane := t.Context(), planes[2]
	config := plane.Config()
	config.Timeout = 300 * time.Millisecond
	c := newClientset(t, config)
	require.NoError(t, plane.PauseAPIServer(ctx))
	_, err := c.Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(ctx)
	var timeout net.Error
	require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "got %v", err)
	require.NoError(t, plane.ResumeAPIServer())
	c = newClientset(t, plane.Config())
	require.Eventually(t, func() bool {
		_, err := c.Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(ctx)
		return err == nil
	}, patience, 20*time.Millisecond)
}

func TestNothingOutlivesItsParent(t *testing.T) {
	for end, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT, "panic": 0} {
		t.Run(end, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), parentVariable+"="+end)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err)
			dir, host, _ := strings.Cut(strings.TrimSpace(line), " ")
			if signal != 0 {
				require.NoError(t, cmd.Process.Signal(signal))
			}
			require.Error(t, cmd.Wait())
			address, err := url.Parse(host)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err)
			}, patience, 20*time.Millisecond, "directory %s is still there", dir)
			// The last to go is the one that removes the directory.
			require.Eventually(t, func() bool { return len(processesOf(t, dir)) == 0 }, patience, 20*time.Millisecond,
				"processes that name the directory in their arguments")
			_, err = net.DialTimeout("tcp", address.Host, time.Second)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
		})
	}
}

func processesOf(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, entry := range entries {
		arguments, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if err == nil && strings.Contains(string(arguments), dir) {
			found = append(found, entry.Name()+" "+strings.ReplaceAll(string(arguments), "\x00", " "))
		}
	}
	return found
}

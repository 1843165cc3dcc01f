//go:build linux

// Package journeys runs what people do with the agent, against real CDI on a
// real control plane.
package journeys

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/observer"
)

// place is what all tests of the package share: one member with one agent.
var place struct {
	member *member.Member
	source *httptest.Server
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctx := context.Background()
		scheme := runtime.NewScheme()
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		var err error
		place.member, err = member.Start(ctx, member.Options{Name: "journeys", Scheme: scheme})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = place.member.Stop() }()
		if err := agent.Install(ctx, place.member.ControlPlane, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		a, err := agent.Start(ctx, place.member.ControlPlane, agent.Options{Log: os.Getenv("OT_FLEET_AGENT_LOG")})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer a.Kill()
		place.source = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/gone/") {
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		defer place.source.Close()
		return m.Run()
	}())
}

func newNamespace(t *testing.T) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "journey-"}}
	require.NoError(t, place.member.Client().Create(t.Context(), ns))
	return ns.Name
}

func newImage(namespace, name, path string) *v1alpha1.VMDiskImage {
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: place.source.URL + path,
			DiskSize: resource.MustParse("1Gi"), StorageClass: "sim-csi", SnapshotClass: "sim-snapclass",
		},
	}
}

const patience = 2 * time.Minute

// eventually reads an image until it is as wanted.
func eventually(t *testing.T, img *v1alpha1.VMDiskImage, wanted func(*v1alpha1.VMDiskImage) bool) *v1alpha1.VMDiskImage {
	t.Helper()
	got := &v1alpha1.VMDiskImage{}
	require.Eventually(t, func() bool {
		return place.member.Client().Get(t.Context(), client.ObjectKeyFromObject(img), got) == nil && wanted(got)
	}, patience, 20*time.Millisecond, "image %s/%s: last seen %s, %s: %s", img.Namespace, img.Name, got.Status.Phase, got.Status.Reason, got.Status.Message)
	return got
}

func inPhase(phase v1alpha1.Phase) func(*v1alpha1.VMDiskImage) bool {
	return func(img *v1alpha1.VMDiskImage) bool { return img.Status.Phase == phase }
}

func setPolicy(t *testing.T, data map[string]string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: agent.PolicyNamespace, Name: agent.PolicyName}}
	require.NoError(t, place.member.Client().Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
	cm.Data = data
	require.NoError(t, place.member.Client().Update(t.Context(), cm))
}

func observe(t *testing.T) *observer.Observer {
	t.Helper()
	o, err := observer.Start(context.Background(), place.member.ControlPlane.Config())
	require.NoError(t, err)
	t.Cleanup(o.Stop)
	return o
}

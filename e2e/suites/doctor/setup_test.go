//go:build linux

// Package doctor_test runs kubectl ot doctor as a process against a cluster with real CDI,
// KubeVirt, snapshots and an agent: healthy, and with faults that real controllers show.
package doctor_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/member"
	"github.com/pelotech/ot-fleet/e2e/harness/plugin"
	"github.com/pelotech/ot-fleet/e2e/harness/simulator"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) {
	testenv.RunTests(m, &env, member.Options{Name: "doctor", KubeVirt: true}, true)
}

// report is what doctor prints with -o json.
type report struct {
	Kind     string
	Summary  struct{ Passed, Warned, Failed, Skipped, Unread int }
	Findings []finding
}

type finding struct {
	ID, Status, Subject, Found, Wanted, Why, Mend, Page string
	Unread                                              bool
}

// worst returns the status of a check, and what it found: Fail before Warn before the rest.
func (r *report) worst(t *testing.T, id string) finding {
	t.Helper()
	rank := map[string]int{"Pass": 0, "Skip": 1, "Warn": 2, "Fail": 3}
	var worst *finding
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.ID == id && (worst == nil || rank[f.Status] > rank[worst.Status]) {
			worst = f
		}
	}
	require.NotNil(t, worst, "no finding of %s", id)
	return *worst
}

// newPlugin has a kubeconfig with one context.
func newPlugin(t *testing.T, config *rest.Config) *plugin.Plugin {
	t.Helper()
	p, err := plugin.New(t.TempDir(), plugin.Context{Name: "frankfurt", Config: config})
	require.NoError(t, err)
	return p
}

// runDoctor runs kubectl ot doctor -o json and returns its exit code.
func runDoctor(t *testing.T, p *plugin.Plugin, args ...string) (*report, int) {
	t.Helper()
	result, err := p.Run(t.Context(), nil, append([]string{"doctor", "-o", "json"}, args...)...)
	require.NoError(t, err)
	r := &report{}
	require.NoError(t, json.Unmarshal([]byte(result.Out), r), "%s\n%s", result.Out, result.Err)
	require.Equal(t, "Doctor", r.Kind)
	return r, result.Code
}

// createFarm makes what a healthy cluster has: published room, and a namespace with a quota, a
// Secret and an image that uses all of them.
func createFarm(t *testing.T) (namespace string) {
	t.Helper()
	namespace = env.CreateNamespace(t)
	env.AllowSecrets(t, namespace)
	objects := []client.Object{
		&storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: namespace}, StorageClassName: simulator.ClassCSI,
			NodeTopology: &metav1.LabelSelector{}, Capacity: ptr.To(resource.MustParse("10Ti")),
		},
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "images"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse("100Gi")},
		}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "source"}, StringData: map[string]string{"accessKeyId": "id", "secretKey": "s3cr3t"}},
	}
	image := env.NewSnapshottedImage(namespace, "ubuntu", "/ok/ubuntu.qcow2")
	image.Spec.SecretRef = "source"
	env.Create(t, append(objects, image)...)
	env.AwaitImage(t, image, testenv.InPhase(v1alpha1.PhaseSucceeded))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		assert.NoError(t, env.Client().Delete(ctx, objects[0]))
		assert.NoError(t, env.Client().DeleteAllOf(ctx, &v1alpha1.VMDiskImage{}, client.InNamespace(namespace)))
		awaitGone(ctx, t, image)
	})
	return namespace
}

// awaitGone is env.AwaitGone with the context of a Cleanup.
func awaitGone(ctx context.Context, t *testing.T, o client.Object) {
	t.Helper()
	key := client.ObjectKeyFromObject(o)
	assert.True(t, testenv.AwaitCondition(t, func() bool { return apierrors.IsNotFound(env.Client().Get(ctx, key, o)) }), "%T %s is still there", o, key)
}

// cleanUp undoes a fault when the test ends.
func cleanUp(t *testing.T, undo func(ctx context.Context) error) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { assert.NoError(t, undo(ctx)) })
}

// describe lists the findings that did not pass, for a failure message.
func (r *report) describe() string {
	var text strings.Builder
	for _, f := range r.Findings {
		if f.Status != "Pass" {
			text.WriteString(f.ID + " " + f.Status + " " + f.Subject + ": " + f.Found + "\n")
		}
	}
	return text.String()
}

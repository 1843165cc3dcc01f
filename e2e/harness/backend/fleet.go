//go:build linux

// Package backend tells journeys of a fleet once, for all that a fleet can run on:
// control planes beside each other, with nodes that are played (package local), or
// clusters of kind, with nodes that download (package kind).
package backend

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/observer"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// WaitTimeout is how long a journey waits for what is bound to come: nodes take their
// time where four clusters share two cores.
const WaitTimeout = 10 * time.Minute

// Fleet is a hub and members that run their agents.
type Fleet interface {
	// Hub reaches the hub's API server with all rights.
	Hub() client.Client
	Members() []Member
	// ImageSpec is one of the source's, of a name that is the journey's own.
	ImageSpec(way SourceBehaviour, name string) v1alpha1.VMDiskImageSpec
	// RequireBytes holds what an image's claim has against the source, byte by byte.
	// Where no bytes move it has nothing to do.
	RequireBytes(t *testing.T, m Member, img *v1alpha1.VMDiskImage)
	// SourceRequests is what the source was asked for an image, where somebody counts.
	SourceRequests(t *testing.T, img v1alpha1.VMDiskImageSpec) (RequestCounts, bool)
	// KillAgent ends what leads in a member without a word, and KillHub the elected
	// replica of the hub. Somebody starts them again, or takes their place.
	KillAgent(t *testing.T, m Member)
	KillHub(t *testing.T)
	// CutNetwork takes a member from the network until mend is called.
	CutNetwork(t *testing.T, m Member) (mend func())
}

// Member is one cluster of a fleet.
type Member struct {
	Name string
	// Client and Config reach its API server with all rights.
	client.Client
	Config *rest.Config
	// PullMode: its agent connects to the hub.
	PullMode bool
}

// SourceBehaviour is how the download of an image goes.
type SourceBehaviour int

const (
	// SlowDownload takes long enough to be interrupted.
	SlowDownload SourceBehaviour = iota
	// FailingDownload is answered with status 500.
	FailingDownload
)

// RequestCounts is what a source was asked for one image.
type RequestCounts struct{ Heads, Gets, Ranges, Bytes int64 }

// Await reads until something holds.
func Await(t *testing.T, wanted string, holds func() bool, last func() string) {
	t.Helper()
	awaitContext(t.Context(), t, wanted, holds, last)
}

func awaitContext(ctx context.Context, t *testing.T, wanted string, holds func() bool, last func() string) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for end := time.Now().Add(WaitTimeout); time.Now().Before(end); {
		if holds() {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
	require.Failf(t, "did not come about: "+wanted, "%s", last())
}

// DeleteAfterTest ends objects with the test, and waits until they are gone.
func DeleteAfterTest(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), WaitTimeout)
		defer cancel()
		for _, o := range objects {
			require.NoError(t, client.IgnoreNotFound(c.Delete(ctx, o)))
		}
		for _, o := range objects {
			awaitGone(ctx, t, c, o)
		}
	})
}

// awaitGone waits until an object is not there any more. A network that is cut says nothing.
func awaitGone(ctx context.Context, t *testing.T, c client.Reader, o client.Object) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for !apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(o), o)) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			require.Failf(t, "is still there", "%T %s, finalizers %v", o, client.ObjectKeyFromObject(o), o.GetFinalizers())
		}
	}
}

// SetPolicy changes keys of the fleet's policy for as long as the test runs, and
// waits until the members have acknowledged it, and that it is as before afterwards: the
// next one to ask for the same would take the answer to this one for its own.
func SetPolicy(t *testing.T, f Fleet, change map[string]string) {
	t.Helper()
	planned := map[string]map[string]string{} // of each member, the same keys
	for _, m := range f.Members() {
		awaitMemberCluster(t.Context(), t, f, m.Name, "a policy", func(mc *v1alpha1.MemberCluster) bool {
			if mc.Status.Policy == nil {
				return false
			}
			planned[m.Name] = maps.Clone(mc.Status.Policy.Data)
			maps.DeleteFunc(planned[m.Name], func(key, _ string) bool { _, ok := change[key]; return !ok })
			return true
		})
	}
	before := map[string]string{}
	store := func(ctx context.Context, how func(map[string]string)) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			cm := &corev1.ConfigMap{}
			if err := f.Hub().Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
				return err
			}
			if cm.Data == nil {
				cm.Data = map[string]string{}
			}
			how(cm.Data)
			return f.Hub().Update(ctx, cm)
		})
	}
	require.NoError(t, store(t.Context(), func(data map[string]string) {
		clear(before)
		for key, value := range change {
			if old, ok := data[key]; ok {
				before[key] = old
			}
			data[key] = value
		}
	}))
	t.Cleanup(func() {
		require.NoError(t, store(context.Background(), func(data map[string]string) {
			for key := range change {
				delete(data, key)
			}
			for key, value := range before {
				data[key] = value
			}
		}))
		for name, data := range planned {
			if !t.Failed() {
				awaitMemberCluster(context.Background(), t, f, name, "its former policy acknowledged", appliesPolicy(data))
			}
		}
	})
	for _, m := range f.Members() {
		awaitMemberCluster(t.Context(), t, f, m.Name, "the policy acknowledged", func(mc *v1alpha1.MemberCluster) bool {
			return appliesPolicy(change)(mc) && (change["concurrency"] == "" || mc.Status.Budget != nil && describeBudget(mc) == change["concurrency"])
		})
	}
}

// appliesPolicy wants a member that works under a plan with a policy.
func appliesPolicy(policy map[string]string) func(*v1alpha1.MemberCluster) bool {
	return func(mc *v1alpha1.MemberCluster) bool {
		for key, value := range policy {
			if mc.Status.Policy == nil || mc.Status.Policy.Data[key] != value {
				return false
			}
		}
		return isPlanAcknowledged(mc)
	}
}

func describeBudget(mc *v1alpha1.MemberCluster) string { return formatInt(*mc.Status.Budget) }

// isPlanAcknowledged wants a member that works under its newest plan.
func isPlanAcknowledged(mc *v1alpha1.MemberCluster) bool {
	return meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) && mc.Status.Plan != nil &&
		mc.Status.AcknowledgedPlan != nil && mc.Status.Plan.Compare(*mc.Status.AcknowledgedPlan) == 0
}

func awaitMemberCluster(ctx context.Context, t *testing.T, f Fleet, name, wanted string, holds func(*v1alpha1.MemberCluster) bool) {
	t.Helper()
	mc := &v1alpha1.MemberCluster{}
	awaitContext(ctx, t, "member "+name+" with "+wanted, func() bool {
		mc = &v1alpha1.MemberCluster{}
		return f.Hub().Get(ctx, client.ObjectKey{Name: name}, mc) == nil && holds(mc)
	}, func() string { return testenv.DescribeMember(mc) })
}

// ObserveMember judges a member from here on.
func ObserveMember(t *testing.T, m Member) *observer.Observer {
	t.Helper()
	o, err := observer.Start(context.Background(), m.Config)
	require.NoError(t, err)
	t.Cleanup(o.Stop)
	return o
}

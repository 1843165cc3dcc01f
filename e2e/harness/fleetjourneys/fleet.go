//go:build linux

// Package fleetjourneys has the journeys that every fleet goes through, whatever it runs
// on: local control planes with simulated nodes (suites/local), or kind clusters whose
// nodes download (suites/kind).
package fleetjourneys

import (
	"context"
	"maps"
	"strconv"
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

// WaitTimeout bounds each wait. It fits four kind clusters on two cores.
const WaitTimeout = 10 * time.Minute

// Fleet is a hub and members with running agents.
type Fleet interface {
	// Hub returns a client of the hub's API server with all rights.
	Hub() client.Client
	Members() []Member
	// ImageSpec returns an image that the source serves with a behaviour.
	ImageSpec(behaviour SourceBehaviour, name string) v1alpha1.VMDiskImageSpec
	// RequireBytes compares the content of an image's claim with the source. It does
	// nothing where downloads are simulated.
	RequireBytes(t *testing.T, m Member, img *v1alpha1.VMDiskImage)
	// SourceRequests returns how often an image was requested; false where the source
	// does not count.
	SourceRequests(t *testing.T, img v1alpha1.VMDiskImageSpec) (counts RequestCounts, ok bool)
	// KillAgent kills the leading agent of a member. It is restarted, or another
	// replica takes over.
	KillAgent(t *testing.T, m Member)
	// KillHub kills the elected replica of the hub, like KillAgent.
	KillHub(t *testing.T)
	// CutNetwork disconnects a member until mend is called.
	CutNetwork(t *testing.T, m Member) (mend func())
}

// Member is one cluster of a fleet.
type Member struct {
	Name string
	// Client and Config have all rights.
	client.Client
	Config *rest.Config
	// PullMode is true where the agent connects to the hub.
	PullMode bool
}

// SourceBehaviour is how the source answers the download of an image.
type SourceBehaviour int

const (
	// SlowDownload takes long enough to be interrupted.
	SlowDownload SourceBehaviour = iota
	// FailingDownload is answered with status 500.
	FailingDownload
)

// RequestCounts are the requests for one image; a GET without a range counts in Gets.
type RequestCounts struct{ Heads, Gets, Ranges, Bytes int64 }

// AwaitCondition polls until a condition holds. It fails after WaitTimeout with lastState.
func AwaitCondition(t *testing.T, wanted string, holds func() bool, lastState func() string) {
	t.Helper()
	awaitCondition(t.Context(), t, wanted, holds, lastState)
}

func awaitCondition(ctx context.Context, t *testing.T, wanted string, holds func() bool, lastState func() string) {
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
	require.Failf(t, "timed out waiting for "+wanted, "%s", lastState())
}

// DeleteAfterTest deletes objects when the test ends, and waits until they are gone.
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

// awaitGone waits until the API server confirms that an object does not exist.
func awaitGone(ctx context.Context, t *testing.T, c client.Reader, o client.Object) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for !apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(o), o)) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			require.Failf(t, "object still exists", "%T %s, finalizers %v", o, client.ObjectKeyFromObject(o), o.GetFinalizers())
		}
	}
}

// SetPolicy changes keys of the fleet's policy until the test ends and waits until all
// members have acknowledged the change. The cleanup waits for the former policy as well:
// otherwise the next SetPolicy of the same values could take this one's acknowledgement for
// its own.
func SetPolicy(t *testing.T, f Fleet, change map[string]string) {
	t.Helper()
	planned := map[string]map[string]string{} // the former values of the keys, by member
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
	store := func(ctx context.Context, mutate func(map[string]string)) error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			cm := &corev1.ConfigMap{}
			if err := f.Hub().Get(ctx, client.ObjectKey{Namespace: program.PolicyNamespace, Name: program.PolicyName}, cm); err != nil {
				return err
			}
			if cm.Data == nil {
				cm.Data = map[string]string{}
			}
			mutate(cm.Data)
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
				awaitMemberCluster(context.Background(), t, f, name, "its former policy", appliesPolicy(data))
			}
		}
	})
	for _, m := range f.Members() {
		awaitMemberCluster(t.Context(), t, f, m.Name, "the new policy", func(mc *v1alpha1.MemberCluster) bool {
			return appliesPolicy(change)(mc) && (change["concurrency"] == "" || mc.Status.Budget != nil && strconv.Itoa(int(*mc.Status.Budget)) == change["concurrency"])
		})
	}
}

// appliesPolicy matches a member whose agent applies its newest plan, with a policy.
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

// isPlanAcknowledged matches a member whose agent applies its newest plan.
func isPlanAcknowledged(mc *v1alpha1.MemberCluster) bool {
	return meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) && mc.Status.Plan != nil &&
		mc.Status.AcknowledgedPlan != nil && mc.Status.Plan.Compare(*mc.Status.AcknowledgedPlan) == 0
}

func awaitMemberCluster(ctx context.Context, t *testing.T, f Fleet, name, wanted string, holds func(*v1alpha1.MemberCluster) bool) {
	t.Helper()
	mc := &v1alpha1.MemberCluster{}
	awaitCondition(ctx, t, "member "+name+" with "+wanted, func() bool {
		mc = &v1alpha1.MemberCluster{}
		return f.Hub().Get(ctx, client.ObjectKey{Name: name}, mc) == nil && holds(mc)
	}, func() string { return testenv.DescribeMember(mc) })
}

// ObserveMember starts an observer of a member, which stops with the test.
func ObserveMember(t *testing.T, m Member) *observer.Observer {
	t.Helper()
	o, err := observer.Start(context.Background(), m.Config)
	require.NoError(t, err)
	t.Cleanup(o.Stop)
	return o
}

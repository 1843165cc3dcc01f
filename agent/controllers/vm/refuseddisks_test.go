package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var dataVolumes = schema.GroupResource{Group: "cdi.kubevirt.io", Resource: "datavolumes"}

// answeringCluster has one machine. It answers a request for the DataVolume of a disk, and a patch, with its entry
// in answers; those without one are accepted.
type answeringCluster struct {
	*Reconciler
	obj     *v1alpha1.VirtualMachine
	answers map[string]error
	// late is how long each answer takes.
	late              time.Duration
	mu                sync.Mutex
	created, deleted  []string
	hasChangedMachine bool
}

func newAnsweringCluster(t *testing.T) *answeringCluster {
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	a := &answeringCluster{obj: apitest.VirtualMachine("ns", "vm").Obj()}
	answer := func(o client.Object, done *[]string) error {
		<-time.After(a.late)
		a.mu.Lock()
		defer a.mu.Unlock()
		if err := a.answers[o.GetName()]; err != nil {
			return err
		}
		*done = append(*done, o.GetName())
		return nil
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(a.obj).WithStatusSubresource(a.obj).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, isMachine := o.(*v1alpha1.VirtualMachine); !isMachine {
				return apierrors.NewNotFound(dataVolumes, key.Name)
			}
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			return answer(o, &a.created)
		},
		Delete: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.DeleteOption) error {
			return answer(o, &a.deleted)
		},
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
			a.hasChangedMachine = true
			return a.answers[o.GetName()]
		},
	}).Build()
	a.Reconciler = &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(100), Metrics: metrics.NewMachines(prometheus.NewRegistry())}
	return a
}

// newDecision deletes disk old and creates the root disk and disks b and c.
func newDecision() *vm.Decision {
	create := func(object, disk string) vm.CreateDisk {
		return vm.CreateDisk{DataVolume: &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: object}}, Disk: disk}
	}
	return &vm.Decision{
		DeleteDisks: []vm.DeleteTarget{{Disk: "old", Name: "vm-old"}},
		CreateDisks: []vm.CreateDisk{create("vm-root", ""), create("vm-b", "b"), create("vm-c", "c")},
		RunStrategy: "Always",
	}
}

// TestRefusedDiskHoldsUpNoOther: a refusal, as by a quota, may last, and a person is to read of all at once.
func TestRefusedDiskHoldsUpNoOther(t *testing.T) {
	refusal := func(text string) error { return apierrors.NewForbidden(dataVolumes, "x", errors.New(text)) }
	for name, tt := range map[string]struct {
		answers      map[string]error
		wantDone     []string
		wantReason   v1alpha1.Reason // empty: nothing is stored
		wantMessages []string
		wantErr      bool
	}{
		"none": {nil, []string{"vm-b", "vm-c", "vm-old", "vm-root"}, "", nil, false},
		"the first": {map[string]error{"vm-root": refusal("quota 1")}, []string{"vm-b", "vm-c", "vm-old"}, v1alpha1.ReasonRootDiskRefused,
			[]string{"the API server refused the root disk: ", "quota 1"}, false},
		"several": {map[string]error{"vm-root": refusal("quota 1"), "vm-c": refusal("webhook 2")}, []string{"vm-b", "vm-old"}, v1alpha1.ReasonRootDiskRefused,
			[]string{"the API server refused the root disk: ", "quota 1", "; disk c: ", "webhook 2"}, false},
		"a deletion": {map[string]error{"vm-old": refusal("no"), "vm-b": refusal("nor this")}, []string{"vm-c", "vm-root"}, v1alpha1.ReasonDataDiskRefused,
			[]string{"the API server refused disk old: ", "; disk b: ", "nor this"}, false},
		"a refusal and a failure": {map[string]error{"vm-root": apierrors.NewInternalError(errors.New("down")), "vm-c": refusal("quota")}, []string{"vm-b", "vm-old"}, v1alpha1.ReasonDataDiskRefused,
			[]string{"the API server refused disk c: "}, false},
		"a failure": {map[string]error{"vm-b": apierrors.NewInternalError(errors.New("down"))}, []string{"vm-c", "vm-old", "vm-root"}, v1alpha1.ReasonRequestFailed,
			[]string{"creating or updating disk b failed"}, true},
		"an object that has changed": {map[string]error{"vm-old": apierrors.NewConflict(dataVolumes, "x", nil), "vm-root": refusal("quota")}, []string{"vm-b", "vm-c"}, "", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAnsweringCluster(t)
			a.answers = tt.answers
			d := newDecision()
			v := &visit{obj: a.obj}
			err := a.applyDecision(t.Context(), v, d)
			assert.Equal(t, tt.wantErr, err != nil, "%v", err)
			assert.ElementsMatch(t, tt.wantDone, append(a.created, a.deleted...))
			assert.Equal(t, len(tt.answers) == 0, a.hasChangedMachine)
			assert.Equal(t, tt.wantReason, a.obj.Status.Reason)
			for _, want := range tt.wantMessages {
				assert.Contains(t, a.obj.Status.Message, want)
			}
			for _, disk := range d.CreateDisks {
				assert.Contains(t, tt.answers, disk.Name, "the state of a failure is set for these only")
			}
		})
	}
}

// TestLateRefusalsOfDisksHoldNoWorkerInTurn: a webhook may take 30 s for each.
func TestLateRefusalsOfDisksHoldNoWorkerInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnsweringCluster(t)
		a.late = 30 * time.Second
		began := time.Now()
		require.NoError(t, a.applyDecision(t.Context(), &visit{obj: a.obj}, newDecision()))
		assert.LessOrEqual(t, time.Since(began), time.Minute, "deletions, then creations")
	})
}

// TestAllRefusedDisksAreNamed: long refusals are cut, so that each is in the message.
func TestAllRefusedDisksAreNamed(t *testing.T) {
	a := newAnsweringCluster(t)
	a.answers = map[string]error{}
	d := &vm.Decision{}
	for i := range 17 {
		name := fmt.Sprintf("disk-%d", i)
		a.answers[name] = apierrors.NewForbidden(dataVolumes, name, errors.New(strings.Repeat("long ", 1000)))
		d.CreateDisks = append(d.CreateDisks, vm.CreateDisk{DataVolume: &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}, Disk: name})
	}
	require.NoError(t, a.applyDecision(t.Context(), &visit{obj: a.obj}, d))
	for i := range 17 {
		assert.Contains(t, a.obj.Status.Message, fmt.Sprintf("disk disk-%d: ", i))
	}
}

// TestFailedAdoptionBesideRefusedRecordIsRetried: an adoption that fails holds up the rest, and a refusal is
// retried late.
func TestFailedAdoptionBesideRefusedRecordIsRetried(t *testing.T) {
	a := newAnsweringCluster(t)
	a.answers = map[string]error{
		"vm-root": apierrors.NewInternalError(errors.New("down")),
		"vm":      apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachines"}, "vm", errors.New("has no owner")),
	}
	d := newDecision()
	d.Adopt = []vm.AdoptTarget{{Kind: cdiv1.SchemeGroupVersion.WithKind("DataVolume"), Name: "vm-root"}}
	d.RecordMigrations = &vm.MigrationTarget{UID: "uid", ResourceVersion: "7", Volumes: "root=fast"}
	err := a.applyDecision(t.Context(), &visit{obj: a.obj}, d)
	var reported *reportedError
	require.ErrorAs(t, err, &reported, "the visit is retried with backoff")
	assert.Equal(t, v1alpha1.ReasonMachineRefused, a.obj.Status.Reason)
	assert.Contains(t, a.obj.Status.Message, "the API server refused the KubeVirt VirtualMachine: ")
	assert.Contains(t, a.obj.Status.Message, "has no owner; the owner of DataVolume vm-root is not set, which is retried: Internal error occurred: down")
	assert.Empty(t, a.created)
}

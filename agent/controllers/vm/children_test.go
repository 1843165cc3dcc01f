package vm

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/agent/kubevirt"
	"github.com/pelotech/ot-fleet/agent/metrics"
	"github.com/pelotech/ot-fleet/agent/vm"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A refused adoption recurs, for example when the agent may not change owners.
func TestRefusedAdoptionKeepsNothingFromBeingDone(t *testing.T) {
	obj := apitest.VirtualMachine("ns", "vm").Obj()
	adopted := func(name string) vm.AdoptTarget {
		return vm.AdoptTarget{Kind: corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), Name: name}
	}
	var patched []client.Object
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
			patched = append(patched, o)
			if o.GetName() == "vm-root" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, o.GetName(), errors.New("cannot set an ownerRef on a resource you can't delete"))
			}
			return nil
		},
	})
	d := &vm.Decision{Adopt: []vm.AdoptTarget{adopted("vm-root"), adopted("other")}, RunStrategy: "Halted", Status: v1alpha1.VirtualMachineStatus{Phase: v1alpha1.MachineReady}}
	_, err := (&Reconciler{Client: c}).applyChildren(t.Context(), &visit{obj: obj}, d)
	require.NoError(t, err)
	require.Len(t, patched, 3)
	assert.Equal(t, []string{"vm-root", "other", "vm"}, []string{patched[0].GetName(), patched[1].GetName(), patched[2].GetName()})
	assert.Equal(t, v1alpha1.MachineReady, d.Status.Phase)
	condition := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionSpecAdjusted)
	require.NotNil(t, condition)
	assert.Equal(t, metav1.ConditionTrue, condition.Status)
	assert.Contains(t, condition.Message, "PersistentVolumeClaim vm-root remains when this machine is deleted")
	assert.Contains(t, condition.Message, "can't delete")
	assert.NotZero(t, d.RequeueAfter)
}

// TestRefusedDiskKeepsNoMachineFromBeingStopped: a refusal, as by a quota, may last.
func TestRefusedDiskKeepsNoMachineFromBeingStopped(t *testing.T) {
	obj := apitest.VirtualMachine("ns", "vm").Obj()
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "datavolumes"}, "vm-late", errors.New("exceeded quota"))
	for run, wantPatches := range map[v1alpha1.RunStrategy]int{"Halted": 1, "Always": 0} {
		patches := 0
		c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refusal },
			Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
				assert.Equal(t, "vm", o.GetName())
				patches++
				return nil
			},
		})
		disk := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm-late"}}
		d := &vm.Decision{CreateDisks: []vm.CreateDisk{{DataVolume: disk, Disk: "late"}}, RunStrategy: run}
		child, err := (&Reconciler{Client: c, Live: c}).applyChildren(t.Context(), &visit{obj: obj}, d)
		assert.Equal(t, wantPatches, patches, run)
		reason, refused := refusalReason(child, err)
		assert.True(t, refused, "the refusal is reported")
		assert.Equal(t, v1alpha1.ReasonDataDiskRefused, reason)
	}
}

// TestMigrationIsRecordedBeforeWhatMayBeRefused: a refusal may last until nothing else shows the migration.
func TestMigrationIsRecordedBeforeWhatMayBeRefused(t *testing.T) {
	var patches []string
	c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "datavolumes"}, "vm-late", errors.New("exceeded quota"))
		},
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
			data, err := patch.Data(o)
			patches = append(patches, o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetNamespace()+"/"+o.GetName()+" "+string(data))
			return err
		},
	})
	d := &vm.Decision{
		RecordMigrations: &vm.MigrationTarget{UID: "uid", ResourceVersion: "7", Volumes: "root=fast"},
		CreateDisks:      []vm.CreateDisk{{DataVolume: &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm-late"}}, Disk: "late"}},
	}
	_, err := (&Reconciler{Client: c, Live: c}).applyChildren(t.Context(), &visit{obj: apitest.VirtualMachine("ns", "vm").Obj()}, d)
	require.ErrorContains(t, err, "exceeded quota")
	assert.Equal(t, []string{`VirtualMachine ns/vm {"metadata":{"annotations":{"pelotech.ot/migrated-volumes":"root=fast"},"resourceVersion":"7","uid":"uid"}}`}, patches)
}

// TestRefusedRecordHoldsUpNothingElse: a policy refuses each update of a KubeVirt VirtualMachine that the
// agent cannot adopt, for as long as the migration shows.
func TestRefusedRecordHoldsUpNothingElse(t *testing.T) {
	refusal := func(name string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachines"}, name, errors.New("has no owner"))
	}
	for name, tt := range map[string]struct {
		run         v1alpha1.RunStrategy
		refused     string // an object
		record      error
		wantCreated []string
		wantPatches int
		wantReason  v1alpha1.Reason
		wantErr     bool
		wantMessage string
	}{
		"refused":                  {"Always", "", refusal("vm"), []string{"golden", "vm-late", "vm-cloudinit"}, 1, v1alpha1.ReasonMachineRefused, false, "has no owner"},
		"to be stopped":            {"Halted", "", refusal("vm"), []string{"golden", "vm-late", "vm-cloudinit"}, 2, v1alpha1.ReasonMachineRefused, false, "has no owner"},
		"a refused disk, too":      {"Always", "vm-late", refusal("vm"), []string{"golden", "vm-cloudinit"}, 1, v1alpha1.ReasonMachineRefused, false, "; disk late: "},
		"failed":                   {"Always", "", apierrors.NewInternalError(errors.New("down")), []string{"golden", "vm-late", "vm-cloudinit"}, 1, v1alpha1.ReasonRequestFailed, true, "down"},
		"failed, beside a disk":    {"Always", "vm-late", apierrors.NewInternalError(errors.New("down")), []string{"golden", "vm-cloudinit"}, 1, v1alpha1.ReasonDataDiskRefused, true, "has no owner; the migration of a volume is not recorded, which is retried: Internal error occurred: down"},
		"failed, beside an image":  {"Always", "golden", apierrors.NewInternalError(errors.New("down")), nil, 1, v1alpha1.ReasonImageRefused, true, "has no owner; the migration of a volume is not recorded"},
		"refused, beside an image": {"Always", "golden", refusal("vm"), nil, 1, v1alpha1.ReasonMachineRefused, false, "; the VMDiskImage: "},
		"a stale decision":         {"Always", "", apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachines"}, "vm", nil), nil, 1, "", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, v1alpha1.AddToScheme(scheme))
			require.NoError(t, corev1.AddToScheme(scheme))
			require.NoError(t, cdiv1.AddToScheme(scheme))
			obj := apitest.VirtualMachine("ns", "vm").Obj()
			var mu sync.Mutex
			var created []string
			patches := 0
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obj).WithStatusSubresource(obj).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					mu.Lock()
					defer mu.Unlock()
					if o.GetName() == tt.refused {
						return refusal(o.GetName())
					}
					created = append(created, o.GetName())
					return nil
				},
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					patches++
					return tt.record
				},
			}).Build()
			d := &vm.Decision{
				RecordMigrations: &vm.MigrationTarget{UID: "uid", ResourceVersion: "7", Volumes: "root=fast"},
				CreateImage:      apitest.Image("ns/golden").Obj(),
				CreateDisks:      []vm.CreateDisk{{DataVolume: &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm-late"}}, Disk: "late"}},
				ApplySecret:      &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm-cloudinit"}},
				RunStrategy:      tt.run,
			}
			r := &Reconciler{Client: c, Live: c, Events: events.NewFakeRecorder(100), Metrics: metrics.NewMachines(prometheus.NewRegistry())}
			err := r.applyDecision(t.Context(), &visit{obj: obj}, d)
			assert.Equal(t, tt.wantErr, err != nil, "%v", err)
			assert.ElementsMatch(t, tt.wantCreated, created)
			assert.Equal(t, tt.wantPatches, patches, "a start waits")
			assert.Equal(t, tt.wantReason, obj.Status.Reason)
			assert.Contains(t, obj.Status.Message, tt.wantMessage)
		})
	}
}

// TestFailedAdoptionHoldsUpNoRecord: what a person removes next may be all that shows the migration.
func TestFailedAdoptionHoldsUpNoRecord(t *testing.T) {
	for name, tt := range map[string]struct {
		adoption     error
		wantRecorded bool
	}{
		"it may pass by itself": {apierrors.NewInternalError(errors.New("down")), true},
		"a stale decision":      {apierrors.NewConflict(schema.GroupResource{Resource: "datavolumes"}, "vm-root", nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			var kinds []string
			c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
					kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
					if o.GetName() == "vm-root" {
						return tt.adoption
					}
					return nil
				},
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
					t.Error("what fails late would hold the worker for each")
					return nil
				},
			})
			d := &vm.Decision{
				Adopt:            []vm.AdoptTarget{{Kind: cdiv1.SchemeGroupVersion.WithKind("DataVolume"), Name: "vm-root"}},
				RecordMigrations: &vm.MigrationTarget{UID: "uid", ResourceVersion: "7", Volumes: "root=fast"},
				CreateImage:      apitest.Image("ns/golden").Obj(),
			}
			_, err := (&Reconciler{Client: c, Live: c}).applyChildren(t.Context(), &visit{obj: apitest.VirtualMachine("ns", "vm").Obj()}, d)
			require.ErrorIs(t, err, tt.adoption)
			wantKinds := []string{"DataVolume"}
			if tt.wantRecorded {
				wantKinds = append(wantKinds, "VirtualMachine")
			}
			assert.Equal(t, wantKinds, kinds)
		})
	}
}

// TestFailedAdoptionHoldsUpNoOtherKind: a webhook may fail for one kind alone. It is asked once, as it may answer late.
func TestFailedAdoptionHoldsUpNoOtherKind(t *testing.T) {
	unavailable := apierrors.NewInternalError(errors.New("failed calling webhook"))
	for name, tt := range map[string]struct {
		failing     map[string]error // by kind
		wantPatches []string
		wantOwnerOf string // in the title of the failure
	}{
		"none":                  {nil, []string{"VirtualMachine vm", "DataVolume vm-root", "DataVolume vm-data", "PersistentVolumeClaim vm-root", "PersistentVolumeClaim vm-data"}, ""},
		"the machine's":         {map[string]error{"VirtualMachine": unavailable}, []string{"VirtualMachine vm", "DataVolume vm-root", "DataVolume vm-data", "PersistentVolumeClaim vm-root", "PersistentVolumeClaim vm-data"}, "VirtualMachine vm"},
		"that of DataVolumes":   {map[string]error{"DataVolume": unavailable}, []string{"VirtualMachine vm", "DataVolume vm-root", "PersistentVolumeClaim vm-root", "PersistentVolumeClaim vm-data"}, "DataVolume vm-root"},
		"several":               {map[string]error{"DataVolume": unavailable, "PersistentVolumeClaim": unavailable}, []string{"VirtualMachine vm", "DataVolume vm-root", "PersistentVolumeClaim vm-root"}, "DataVolume vm-root"},
		"a stale decision":      {map[string]error{"VirtualMachine": apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachines"}, "vm", nil)}, []string{"VirtualMachine vm"}, "VirtualMachine vm"},
		"a late stale decision": {map[string]error{"VirtualMachine": unavailable, "DataVolume": apierrors.NewConflict(schema.GroupResource{Resource: "datavolumes"}, "vm", nil)}, []string{"VirtualMachine vm", "DataVolume vm-root"}, "DataVolume vm-root"},
	} {
		t.Run(name, func(t *testing.T) {
			var patches []string
			c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
					kind := o.GetObjectKind().GroupVersionKind().Kind
					patches = append(patches, kind+" "+o.GetName())
					return tt.failing[kind]
				},
			})
			dataVolume, claim := cdiv1.SchemeGroupVersion.WithKind("DataVolume"), corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")
			d := &vm.Decision{Adopt: []vm.AdoptTarget{
				{Kind: kubevirt.VirtualMachineGVK, Name: "vm"},
				{Kind: dataVolume, Name: "vm-root"}, {Kind: dataVolume, Name: "vm-data"}, {Kind: claim, Name: "vm-root"}, {Kind: claim, Name: "vm-data"},
			}}
			child, err := (&Reconciler{Client: c, Live: c}).applyChildren(t.Context(), &visit{obj: apitest.VirtualMachine("ns", "vm").Obj()}, d)
			assert.Equal(t, tt.wantPatches, patches)
			if tt.wantOwnerOf == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.Equal(t, "the owner of "+tt.wantOwnerOf, child.title)
		})
	}
}

// TestMigrationIsRecordedAfterAdoption: the adoption of the KubeVirt VirtualMachine changes its
// resourceVersion, which the record has as its precondition.
func TestMigrationIsRecordedAfterAdoption(t *testing.T) {
	for name, tt := range map[string]struct {
		adopted     types.UID
		adoption    error
		wantVersion string
	}{
		"adopted":        {"uid", nil, "8"},
		"refused":        {"uid", apierrors.NewForbidden(schema.GroupResource{Resource: "virtualmachines"}, "vm", nil), "7"},
		"another object": {"uid-of-claim", nil, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			var last string
			patches := 0
			c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Patch: func(_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
					data, err := patch.Data(o)
					last = string(data)
					if patches++; patches == 1 && err == nil {
						err = tt.adoption
						o.SetResourceVersion("8")
					}
					return err
				},
			})
			d := &vm.Decision{
				Adopt:            []vm.AdoptTarget{{Kind: kubevirt.VirtualMachineGVK, Name: "vm", UID: tt.adopted, ResourceVersion: "7"}},
				RecordMigrations: &vm.MigrationTarget{UID: "uid", ResourceVersion: "7", Volumes: "root=fast"},
			}
			_, err := (&Reconciler{Client: c, Live: c}).applyChildren(t.Context(), &visit{obj: apitest.VirtualMachine("ns", "vm").Obj()}, d)
			require.NoError(t, err)
			require.Equal(t, 2, patches)
			assert.Contains(t, last, `"resourceVersion":"`+tt.wantVersion+`"`)
		})
	}
}

// The cache has no claims without the label, and CDI leaves a DataVolume pending next to one.
func TestCreateRootDiskChecksExistingClaim(t *testing.T) {
	obj := apitest.VirtualMachine("ns", "vm").Obj()
	objectMeta := func(machineUID types.UID) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "ns", Name: "vm-root"}
		if machineUID != "" {
			m.Labels = map[string]string{v1alpha1.LabelMachineUID: string(machineUID)}
		}
		return m
	}
	for name, tt := range map[string]struct {
		claim       *corev1.PersistentVolumeClaim
		disk        *cdiv1.DataVolume
		wantMessage string
		wantErr     error
	}{
		"no claim":  {},
		"of others": {claim: &corev1.PersistentVolumeClaim{ObjectMeta: objectMeta("")}, wantMessage: "PersistentVolumeClaim vm-root exists and was not created for this machine"},
		"of others, with a DataVolume": {
			claim: &corev1.PersistentVolumeClaim{ObjectMeta: objectMeta("")}, disk: &cdiv1.DataVolume{ObjectMeta: objectMeta("")},
			wantMessage: "DataVolume vm-root exists and was not created for this machine",
		},
		"DataVolume of others without a claim": {disk: &cdiv1.DataVolume{ObjectMeta: objectMeta("")}, wantMessage: "DataVolume vm-root exists and was not created for this machine"},
		"of a former machine":                  {claim: &corev1.PersistentVolumeClaim{ObjectMeta: objectMeta("uid-of-former")}, wantErr: errObjectChanged},
		"of this machine":                      {claim: &corev1.PersistentVolumeClaim{ObjectMeta: objectMeta(obj.UID)}, wantErr: errObjectChanged},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			require.NoError(t, corev1.AddToScheme(scheme))
			require.NoError(t, cdiv1.AddToScheme(scheme))
			b := fake.NewClientBuilder().WithScheme(scheme)
			if tt.claim != nil {
				b.WithObjects(tt.claim)
			}
			if tt.disk != nil {
				b.WithObjects(tt.disk)
			}
			c := b.Build()
			r := &Reconciler{Client: c, Live: c}
			dv := &cdiv1.DataVolume{ObjectMeta: objectMeta(obj.UID)}
			err := r.createDisk(t.Context(), &visit{obj: obj}, dv)
			existing := &cdiv1.DataVolume{}
			created := c.Get(t.Context(), client.ObjectKeyFromObject(dv), existing) == nil && existing.Labels[v1alpha1.LabelMachineUID] == string(obj.UID)
			assert.Equal(t, err == nil, created)
			switch {
			case tt.wantMessage != "":
				require.ErrorContains(t, err, tt.wantMessage)
				reason, refused := refusalReason(childDisk(""), err)
				assert.True(t, refused)
				assert.Equal(t, v1alpha1.ReasonNameTaken, reason)
			case tt.wantErr != nil:
				require.ErrorIs(t, err, tt.wantErr)
			default:
				require.NoError(t, err)
			}
		})
	}
}

package image_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestChoosePublisher(t *testing.T) {
	at := func(hour int) metav1.Time { return metav1.NewTime(apitest.Epoch.Add(time.Duration(hour) * time.Hour)) }
	old := image.PublishCandidate{Name: "ubuntu-1", UID: "1", Created: at(1)}
	latest := image.PublishCandidate{Name: "ubuntu-2", UID: "2", Created: at(2)}
	wanted := func(c image.PublishCandidate) image.PublishCandidate { c.Wanted = true; return c }
	current := func(c image.PublishCandidate) image.PublishCandidate { c.Current = true; return c }
	for _, tt := range []struct {
		name        string
		candidates  []image.PublishCandidate
		planUnknown bool
		want        types.UID
	}{
		{"nobody serves", nil, false, ""},
		{"one", []image.PublishCandidate{old}, false, "1"},
		{"the last created", []image.PublishCandidate{old, latest}, false, "2"},
		{"the last created of those wanted", []image.PublishCandidate{wanted(old), wanted(latest)}, false, "2"},
		{"the one that is wanted", []image.PublishCandidate{wanted(old), latest}, false, "1"},
		{"the one that is wanted, not the current one", []image.PublishCandidate{wanted(old), current(latest)}, false, "1"},
		{"the current one while the plan is unknown", []image.PublishCandidate{current(old), latest}, true, "1"},
		{"a successor while the plan is unknown", []image.PublishCandidate{old, latest}, true, "2"},
		{"created in the same second", []image.PublishCandidate{latest, {Name: "ubuntu-1", UID: "3", Created: at(2)}}, false, "3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := image.ChoosePublisher(tt.candidates, tt.planUnknown)
			assert.Equal(t, tt.want, got.UID)
			assert.Equal(t, len(tt.candidates) > 0, ok)
		})
	}
}

// The choice does not depend on the order of the candidates, and those that lose change nothing:
// a pointer that stands still is not moved by what comes and goes behind it.
func TestChoosePublisherIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		candidates := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) image.PublishCandidate {
			return image.PublishCandidate{
				Name: rapid.StringMatching("[ab]").Draw(t, "name"), UID: types.UID(rapid.StringMatching("[a-z]{8}").Draw(t, "uid")),
				Created: metav1.NewTime(apitest.Epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "created")) * time.Hour)),
				Wanted:  rapid.Bool().Draw(t, "wanted"), Current: rapid.Bool().Draw(t, "current"),
			}
		}), 1, 5).Draw(t, "candidates")
		unknown := rapid.Bool().Draw(t, "plan unknown")
		want, _ := image.ChoosePublisher(candidates, unknown)
		shuffled := rapid.Permutation(candidates).Draw(t, "shuffled")
		got, _ := image.ChoosePublisher(shuffled, unknown)
		require.Equal(t, want, got)
		loser := slices.IndexFunc(shuffled, func(c image.PublishCandidate) bool { return c != want })
		if loser >= 0 {
			got, _ = image.ChoosePublisher(slices.Delete(slices.Clone(shuffled), loser, loser+1), unknown)
			require.Equal(t, want, got, "without %v", shuffled[loser])
		}
		if !unknown && !want.Wanted {
			require.False(t, slices.ContainsFunc(candidates, func(c image.PublishCandidate) bool { return c.Wanted }))
		}
	})
}

func TestCloneHolders(t *testing.T) {
	ended := metav1.NewTime(apitest.Epoch.Add(time.Hour))
	img := apitest.Image("images/ubuntu").WithUID("image").Obj()
	img.Status.Publications = []v1alpha1.Publication{
		{DataSource: "ubuntu", Attempt: 1, PersistentVolumeClaim: "claim-1", VolumeSnapshot: "snap-1", Until: &ended},
		{DataSource: "ubuntu", Attempt: 2, PersistentVolumeClaim: "claim-2"},
	}
	alias := cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "images", Name: "alias"}}
	alias.Spec.Source.DataSource = &cdiv1.DataSourceRefSourceDataSource{Namespace: "images", Name: "ubuntu"}
	byRef := func(namespace, name string) func(*cdiv1.DataVolume) {
		return func(dv *cdiv1.DataVolume) {
			dv.Spec.SourceRef = &cdiv1.DataVolumeSourceRef{Kind: cdiv1.DataVolumeDataSource, Name: name}
			if namespace != "" {
				dv.Spec.SourceRef.Namespace = &namespace
			}
		}
	}
	bySource := func(source cdiv1.DataVolumeSource) func(*cdiv1.DataVolume) {
		return func(dv *cdiv1.DataVolume) { dv.Spec.Source = &source }
	}
	createdAt := func(t time.Time) func(*cdiv1.DataVolume) {
		return func(dv *cdiv1.DataVolume) { dv.CreationTimestamp = metav1.NewTime(t) }
	}
	phase := func(p cdiv1.DataVolumePhase) func(*cdiv1.DataVolume) {
		return func(dv *cdiv1.DataVolume) { dv.Status.Phase = p }
	}
	annotated := func(key string) func(*cdiv1.DataVolume) {
		return func(dv *cdiv1.DataVolume) { dv.Annotations = map[string]string{key: ""} }
	}
	inImages := func(dv *cdiv1.DataVolume) { dv.Namespace = "images" }
	type mutate = func(*cdiv1.DataVolume)
	for _, tt := range []struct {
		name string
		dv   []mutate
		want []int32
	}{
		{"sourceRef, before the pointer moved", []mutate{byRef("images", "ubuntu")}, []int32{1, 2}},
		{"sourceRef, just after", []mutate{byRef("images", "ubuntu"), createdAt(ended.Add(59 * time.Second))}, []int32{1, 2}},
		{"sourceRef, well after", []mutate{byRef("images", "ubuntu"), createdAt(ended.Add(2 * time.Minute))}, []int32{2}},
		{"sourceRef of its own namespace", []mutate{byRef("", "ubuntu"), inImages}, []int32{1, 2}},
		{"sourceRef of another namespace", []mutate{byRef("", "ubuntu")}, nil},
		{"sourceRef of another name", []mutate{byRef("images", "fedora")}, nil},
		{"sourceRef by a DataSource that refers to it", []mutate{byRef("images", "alias")}, []int32{1, 2}},
		{"Succeeded", []mutate{byRef("images", "ubuntu"), phase(cdiv1.Succeeded)}, nil},
		{"Failed", []mutate{byRef("images", "ubuntu"), phase(cdiv1.Failed)}, nil},
		{"WaitForFirstConsumer", []mutate{byRef("images", "ubuntu"), phase(cdiv1.WaitForFirstConsumer)}, []int32{1, 2}},
		{"never cloned", []mutate{byRef("images", "ubuntu"), annotated(cdiv1.AnnPrePopulated), phase(cdiv1.Pending)}, nil},
		{"never cloned, resolved", []mutate{bySource(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "claim-2"}}), annotated(cdiv1.AnnPrePopulated)}, nil},
		{"not authorized yet", []mutate{byRef("images", "ubuntu"), annotated(cdiv1.AnnCheckStaticVolume)}, nil},
		{"not authorized, Pending", []mutate{byRef("images", "ubuntu"), annotated(cdiv1.AnnCheckStaticVolume), phase(cdiv1.Pending)}, nil},
		{"authorized without a static volume", []mutate{byRef("images", "ubuntu"), annotated(cdiv1.AnnCheckStaticVolume), phase(cdiv1.CloneScheduled)}, []int32{1, 2}},
		{"being deleted", []mutate{byRef("images", "ubuntu"), func(dv *cdiv1.DataVolume) { dv.DeletionTimestamp = &ended }}, []int32{1, 2}},
		{"resolved by KubeVirt, snapshot", []mutate{bySource(cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{Namespace: "images", Name: "snap-1"}}), createdAt(ended.Add(time.Hour))}, []int32{1}},
		{"resolved by KubeVirt, claim", []mutate{bySource(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "claim-2"}})}, []int32{2}},
		{"a claim of that name of another namespace", []mutate{bySource(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Name: "claim-2"}})}, nil},
		{"an import", []mutate{bySource(cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}})}, nil},
		{"a disk of our VirtualMachine", []mutate{bySource(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "claim-2"}}), func(dv *cdiv1.DataVolume) {
			dv.OwnerReferences = []metav1.OwnerReference{{APIVersion: "pelotech.ot/v1alpha1", Kind: "VirtualMachine", Name: "vm", Controller: ptr.To(true)}}
		}}, nil},
		{"a disk of our VirtualMachine, of the image itself", []mutate{bySource(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "claim-2"}}), func(dv *cdiv1.DataVolume) {
			dv.OwnerReferences = []metav1.OwnerReference{{APIVersion: "pelotech.ot/v1alpha1", Kind: "VirtualMachine", Name: "vm", Controller: ptr.To(true)}}
			dv.Annotations = map[string]string{v1alpha1.AnnotationClonedFrom: "image/r/2/claim-2"}
		}}, nil},
		{"a disk of our VirtualMachine, whose image uses the DataSource", []mutate{bySource(cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Namespace: "images", Name: "claim-2"}}), func(dv *cdiv1.DataVolume) {
			dv.OwnerReferences = []metav1.OwnerReference{{APIVersion: "pelotech.ot/v1alpha1", Kind: "VirtualMachine", Name: "vm", Controller: ptr.To(true)}}
			dv.Annotations = map[string]string{v1alpha1.AnnotationClonedFrom: "other/r/0/claim-2"}
		}}, []int32{2}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dv := cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "disk", CreationTimestamp: metav1.NewTime(apitest.Epoch)}}
			for _, change := range tt.dv {
				change(&dv)
			}
			holders := image.CloneHolders(img, []cdiv1.DataVolume{dv}, []cdiv1.DataSource{alias})
			if tt.want == nil {
				assert.Empty(t, holders)
				return
			}
			require.Len(t, holders, 1)
			assert.Equal(t, dv.Namespace+"/disk (clone)", holders[0].Name)
			var got []int32
			for _, pin := range holders[0].Pins {
				assert.Equal(t, img.UID, pin.UID)
				got = append(got, pin.Attempt)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

// publishingView is a live View of an image that serves attempt 1.
func publishingView(change func(*image.View)) image.View {
	img := apitest.Image("ns/a").WithUID(imageKey.UID).WithFinalizer().Obj()
	img.Spec.Publish = &v1alpha1.Publish{DataSource: true, Name: "ubuntu"}
	rules := policy.Default()
	p := &acquireScenario{imageSpecs: []string{"a"}}
	v := image.View{
		Now: apitest.Epoch.Add(time.Hour), Image: img, Policy: &rules, ObjectsByAttempt: p.buildObjects(storageState{attempts: 1}), Preflight: image.PreflightResult{Known: true},
		Publishing: &image.PublishingView{Served: true, ServerTime: apitest.Epoch.Add(time.Hour), Publishers: map[string]image.PublishCandidate{"ubuntu": {Name: "a", UID: img.UID}}},
		Live:       true,
	}
	claim := v.ObjectsByAttempt[1].Claim.Name
	img.Status = v1alpha1.VMDiskImageStatus{
		LastAttempt: 1, Revision: img.Spec.Revision(), Serving: &v1alpha1.Serving{Revision: img.Spec.Revision(), Attempt: 1, PersistentVolumeClaim: claim},
		Revisions: []v1alpha1.RevisionStatus{{Revision: img.Spec.Revision(), Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded, DataVolume: claim}},
	}
	if change != nil {
		change(&v)
	}
	return v
}

func publishedCondition(d image.Decision) metav1.Condition {
	for _, c := range d.Status.Conditions {
		if c.Type == v1alpha1.ConditionPublished {
			return c
		}
	}
	return metav1.Condition{}
}

func ownDataSource(v *image.View, version string) cdiv1.DataSource {
	return cdiv1.DataSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ubuntu", UID: "ds", ResourceVersion: version, Labels: map[string]string{v1alpha1.LabelImageUID: string(v.Image.UID)}}}
}

// applyDecision carries out what was decided of a DataSource, and stores the status.
func applyDecision(t *testing.T, v *image.View, d image.Decision) {
	t.Helper()
	v.Image.Status = d.Status
	for i, change := range d.DataSources {
		version := fmt.Sprint(change.DataSource.ResourceVersion, "-", i)
		v.Publishing.DataSources = nil
		if change.Operation != image.DeleteDataSource {
			ds := *change.DataSource.DeepCopy()
			ds.UID, ds.ResourceVersion = "ds", version
			v.Publishing.DataSources = []cdiv1.DataSource{ds}
		}
	}
}

func TestPublicationSteps(t *testing.T) {
	v := publishingView(func(v *image.View) {
		v.Image.Spec.Defaults = &v1alpha1.MachineDefaults{Instancetype: "u1.medium", Preference: "fedora", PreferenceKind: "VirtualMachinePreference"}
		v.Image.Spec.Architecture = v1alpha1.ArchitectureARM64
		v.Image.Status.Revision = v.Image.Spec.Revision()
		v.Image.Status.Serving.Revision, v.Image.Status.Revisions[0].Revision = v.Image.Spec.Revision(), v.Image.Spec.Revision()
	})
	d := image.Decide(v)
	require.Len(t, d.DataSources, 1)
	assert.Equal(t, image.CreateDataSource, d.DataSources[0].Operation)
	assert.Equal(t, cdiv1.DataSourceSource{}, d.DataSources[0].DataSource.Spec.Source, "a created DataSource points nowhere")
	assert.Empty(t, d.Status.Publications)
	assert.Equal(t, string(v1alpha1.ReasonPublishing), publishedCondition(d).Reason)
	applyDecision(t, &v, d)

	d = image.Decide(v)
	require.Len(t, d.DataSources, 1)
	applied := d.DataSources[0].DataSource
	assert.Equal(t, image.ApplyDataSource, d.DataSources[0].Operation)
	assert.Equal(t, v.Publishing.DataSources[0].ResourceVersion, applied.ResourceVersion)
	require.Len(t, d.Status.Publications, 1, "stored before the DataSource points there")
	assert.Equal(t, applied.ResourceVersion, d.Status.Publications[0].ResourceVersion)
	assert.Equal(t, v.Image.Status.Serving.PersistentVolumeClaim, applied.Spec.Source.PVC.Name)
	assert.Equal(t, map[string]string{
		v1alpha1.LabelImageUID: string(v.Image.UID), "instancetype.kubevirt.io/default-instancetype": "u1.medium",
		"instancetype.kubevirt.io/default-preference": "fedora", "instancetype.kubevirt.io/default-preference-kind": "VirtualMachinePreference",
		"template.kubevirt.io/architecture": "arm64",
	}, applied.Labels)
	applyDecision(t, &v, d)

	d = image.Decide(v)
	assert.Empty(t, d.DataSources)
	assert.Equal(t, metav1.ConditionTrue, publishedCondition(d).Status)
	assert.Contains(t, publishedCondition(d).Message, "DataSource ubuntu points at PersistentVolumeClaim")
	applyDecision(t, &v, d)

	v.Publishing.DataSources[0].Labels["instancetype.kubevirt.io/default-preference"] = "windows"
	d = image.Decide(v)
	require.Len(t, d.DataSources, 1, "what the agent owns is set right")
	v.Publishing.DataSources[0].Labels["instancetype.kubevirt.io/default-preference"] = "fedora"
	v.Publishing.DataSources[0].Labels["team"] = "blue"
	assert.Empty(t, image.Decide(v).DataSources, "what others own is left alone")

	v.Image.Spec.Publish = nil
	d = image.Decide(v)
	require.Len(t, d.DataSources, 1)
	assert.Equal(t, image.DeleteDataSource, d.DataSources[0].Operation)
	assert.Nil(t, d.Status.Publications[0].Until, "it still points there")
	assert.Empty(t, publishedCondition(d).Type)
	applyDecision(t, &v, d)

	d = image.Decide(v)
	require.NotNil(t, d.Status.Publications[0].Until)
	assert.Equal(t, v.Publishing.ServerTime, d.Status.Publications[0].Until.Time, "by the API server's clock")
}

// CDI copies what a container image says of itself from the claim to the DataSource, over what the
// agent has set. The agent does not set it back: that would never end.
func TestLabelsThatCDICopiesStay(t *testing.T) {
	const label = "instancetype.kubevirt.io/default-instancetype"
	v := publishingView(func(v *image.View) {
		v.Image.Spec.Defaults = &v1alpha1.MachineDefaults{Instancetype: "u1.large", Preference: "fedora"}
		v.ObjectsByAttempt[1].Claim.Labels[label] = "u1.medium"
	})
	for range 2 {
		applyDecision(t, &v, image.Decide(v))
	}
	assert.Equal(t, "fedora", v.Publishing.DataSources[0].Labels["instancetype.kubevirt.io/default-preference"])
	v.Publishing.DataSources[0].Labels[label] = "u1.medium"
	d := image.Decide(v)
	assert.Empty(t, d.DataSources)
	assert.Equal(t, string(v1alpha1.ReasonPublished), publishedCondition(d).Reason)
}

func TestPublicationRefusals(t *testing.T) {
	for _, tt := range []struct {
		name       string
		change     func(*image.View)
		want       v1alpha1.Reason
		wantText   string
		wantChange image.DataSourceOperation
	}{
		{"somebody else's", func(v *image.View) {
			v.Publishing.DataSources = []cdiv1.DataSource{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ubuntu", ResourceVersion: "7"}}}
		}, v1alpha1.ReasonDataSourceForeign, "was made by somebody else and is left alone", ""},
		{"another image's", func(v *image.View) {
			v.Publishing.Publishers["ubuntu"] = image.PublishCandidate{Name: "b", UID: "b"}
		}, v1alpha1.ReasonOtherImagePublished, "points at VMDiskImage b", ""},
		{"taken over by another image", func(v *image.View) {
			v.Publishing.Publishers["ubuntu"] = image.PublishCandidate{Name: "b", UID: "b"}
			v.Publishing.DataSources = []cdiv1.DataSource{ownDataSource(v, "7")}
		}, v1alpha1.ReasonOtherImagePublished, "points at VMDiskImage b", ""},
		{"takes over from another image", func(v *image.View) {
			ds := ownDataSource(v, "7")
			ds.Labels[v1alpha1.LabelImageUID] = "b"
			v.Publishing.DataSources = []cdiv1.DataSource{ds}
		}, v1alpha1.ReasonPublishing, "is being changed", image.ApplyDataSource},
		{"not served", func(v *image.View) { v.Publishing.Served = false }, v1alpha1.ReasonDataSourcesNotServed, "install or upgrade CDI", ""},
		{"nothing serves", func(v *image.View) {
			v.Image.Status.Serving, v.Image.Status.Revisions, v.ObjectsByAttempt = nil, nil, nil
			v.Publishing.Publishers = nil
		}, v1alpha1.ReasonNothingToPublish, "no imported revision is ready", ""},
		{"what others keep serves until the first import is done", func(v *image.View) {
			v.Image.Status.Serving = &v1alpha1.Serving{Revision: v.Image.Spec.Revision(), Namespace: "golden", PersistentVolumeClaim: "fedora"}
			v.Image.Status.Revisions, v.ObjectsByAttempt = nil, nil
			require.False(t, image.CanPublish(v.Image))
			v.Publishing.Publishers = nil
		}, v1alpha1.ReasonNothingToPublish, "no imported revision is ready", ""},
		{"nothing serves any longer", func(v *image.View) {
			v.Image.Status.Serving, v.Image.Status.Revisions, v.ObjectsByAttempt = nil, nil, nil
			v.Publishing.Publishers = nil
			v.Publishing.DataSources = []cdiv1.DataSource{ownDataSource(v, "7")}
		}, v1alpha1.ReasonNothingToPublish, "no imported revision is ready", image.DeleteDataSource},
		{"being deleted", func(v *image.View) {
			v.Image.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch))
			v.Publishing.Publishers = nil
			v.Publishing.DataSources = []cdiv1.DataSource{ownDataSource(v, "7")}
		}, v1alpha1.ReasonNothingToPublish, "is to be deleted", image.DeleteDataSource},
		{"being deleted, with a clone in flight", func(v *image.View) {
			v.Image.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch))
			v.Publishing.Publishers, v.Publishing.InFlight = nil, map[string]bool{"ubuntu": true}
			v.Holders = []image.Holder{{Name: "team/disk (clone)"}}
		}, v1alpha1.ReasonPublishing, "is being created", image.CreateDataSource},
		{"renamed, with a clone in flight", func(v *image.View) {
			ds := ownDataSource(v, "7")
			ds.Name = "former"
			v.Publishing.DataSources = []cdiv1.DataSource{ds}
			v.Publishing.InFlight = map[string]bool{"former": true}
		}, v1alpha1.ReasonPublishing, "DataSource former is removed once", image.CreateDataSource},
		{"turned off, with a clone in flight", func(v *image.View) {
			v.Publishing.DataSources = []cdiv1.DataSource{ownDataSource(v, "7")}
			v.Publishing.InFlight = map[string]bool{"ubuntu": true}
			v.Image.Spec.Publish = nil
		}, v1alpha1.ReasonPublishing, "DataSource ubuntu is removed once", ""},
		{"refused", func(v *image.View) { v.Publishing.Refusal = "no\x1b[31m" }, v1alpha1.ReasonDataSourceRefused, "refuses to change DataSource ubuntu: no", image.CreateDataSource},
		{"too many publications", func(v *image.View) {
			ds := ownDataSource(v, "7")
			v.Publishing.DataSources = []cdiv1.DataSource{ds}
			for range v1alpha1.MaxPublications {
				v.Image.Status.Publications = append(v.Image.Status.Publications, v1alpha1.Publication{DataSource: "other", Attempt: 1, PersistentVolumeClaim: v.Image.Status.Serving.PersistentVolumeClaim, Until: ptr.To(metav1.NewTime(apitest.Epoch))})
			}
		}, v1alpha1.ReasonTooManyPublications, "stays where it is", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := publishingView(tt.change)
			d := image.Decide(v)
			c := publishedCondition(d)
			assert.Equal(t, metav1.ConditionFalse, c.Status)
			assert.Equal(t, string(tt.want), c.Reason)
			assert.Contains(t, c.Message, tt.wantText)
			assert.NotContains(t, c.Message, "\x1b")
			var got image.DataSourceOperation
			if len(d.DataSources) > 0 {
				got = d.DataSources[0].Operation
			}
			assert.Equal(t, tt.wantChange, got)
		})
	}
}

// A publication ends only by a live View, and its storage stays for the grace period.
func TestPublishedStorageStaysUntilNobodyCanFindIt(t *testing.T) {
	deleted := func(v *image.View) {
		v.Image.DeletionTimestamp = ptr.To(metav1.NewTime(apitest.Epoch))
		v.Image.Status.Phase = v1alpha1.PhaseDeleting
		v.Publishing.Publishers = nil
		v.Image.Status.Publications = []v1alpha1.Publication{{DataSource: "ubuntu", Attempt: 1, PersistentVolumeClaim: v.Image.Status.Serving.PersistentVolumeClaim, ResourceVersion: "7"}}
	}
	until := func(ago time.Duration) func(*image.View) {
		return func(v *image.View) {
			deleted(v)
			v.Image.Status.Publications[0].Until = ptr.To(metav1.NewTime(v.Publishing.ServerTime.Add(-ago)))
		}
	}
	for _, tt := range []struct {
		name         string
		change       func(*image.View)
		wantTearDown bool
	}{
		{"not ended", deleted, false},
		{"just ended", until(time.Second), false},
		{"ended", until(time.Minute), true},
		{"ended, the clock is unknown", func(v *image.View) { until(time.Minute)(v); v.Publishing.ServerTime = time.Time{} }, false},
		{"ended, the namespace is terminating", func(v *image.View) { until(time.Second)(v); v.Publishing.NamespaceTerminating = true }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := image.Decide(publishingView(tt.change))
			assert.Equal(t, tt.wantTearDown, d.Status.TearDown)
			if !tt.wantTearDown {
				assert.Empty(t, d.Delete)
				assert.Contains(t, d.Status.Message, "once no clone can find it")
			}
		})
	}
	cached := publishingView(deleted)
	cached.Live = false
	assert.True(t, image.Decide(cached).NeedsLiveRead, "the end of a publication needs a live View")
	pending := publishingView(func(v *image.View) {
		deleted(v)
		ds := ownDataSource(v, "7")
		v.Publishing.DataSources = []cdiv1.DataSource{ds}
	})
	d := image.Decide(pending)
	assert.Nil(t, d.Status.Publications[0].Until, "a paused leader may still change this version")
	require.Len(t, d.DataSources, 1)
	assert.Equal(t, image.DeleteDataSource, d.DataSources[0].Operation)
}

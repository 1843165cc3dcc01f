package capacity_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/capacity"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func newProfile(sets ...cdiv1.ClaimPropertySet) *cdiv1.StorageProfile {
	return &cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: "csi"}, Status: cdiv1.StorageProfileStatus{ClaimPropertySets: sets}}
}

func claimSet(mode corev1.PersistentVolumeMode) cdiv1.ClaimPropertySet {
	return cdiv1.ClaimPropertySet{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: &mode}
}

func newLimitRange(name string, kind corev1.LimitType, least, most string) corev1.LimitRange {
	limit := corev1.LimitRangeItem{Type: kind, Min: corev1.ResourceList{}, Max: corev1.ResourceList{}}
	if least != "" {
		limit.Min[corev1.ResourceStorage] = resource.MustParse(least)
	}
	if most != "" {
		limit.Max[corev1.ResourceStorage] = resource.MustParse(most)
	}
	return corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{limit}}}
}

func TestClaimsThatCannotBeCreated(t *testing.T) {
	const claim = corev1.LimitTypePersistentVolumeClaim
	file, block := newProfile(claimSet(corev1.PersistentVolumeFilesystem)), newProfile(claimSet(corev1.PersistentVolumeBlock))
	noMode := newProfile(cdiv1.ClaimPropertySet{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}})
	for name, tt := range map[string]struct {
		profile     *cdiv1.StorageProfile
		ranges      []corev1.LimitRange
		wantReason  v1alpha1.Reason // empty: no blocker
		wantMessage string
	}{
		"nothing is known":                 {},
		"a profile with access modes":      {profile: file},
		"a profile without any set":        {profile: newProfile(), wantReason: v1alpha1.ReasonStorageProfileIncomplete, wantMessage: "StorageProfile csi"},
		"a first set without access modes": {profile: newProfile(cdiv1.ClaimPropertySet{}, claimSet(corev1.PersistentVolumeBlock)), wantReason: v1alpha1.ReasonStorageProfileIncomplete, wantMessage: "accessModes"},
		"a LimitRange of containers":       {profile: file, ranges: []corev1.LimitRange{newLimitRange("a", corev1.LimitTypeContainer, "", "1Gi")}},
		"a LimitRange with room":           {profile: file, ranges: []corev1.LimitRange{newLimitRange("a", claim, "1Gi", "11Gi")}},
		"above the max":                    {profile: block, ranges: []corev1.LimitRange{newLimitRange("a", claim, "", "9Gi")}, wantReason: v1alpha1.ReasonInsufficientStorage, wantMessage: "a PersistentVolumeClaim of 10Gi, and LimitRange ns/a allows 9Gi"},
		"at the max, as a block device":    {profile: block, ranges: []corev1.LimitRange{newLimitRange("a", claim, "", "10Gi")}},
		"above it with CDI's overhead":     {profile: file, ranges: []corev1.LimitRange{newLimitRange("a", claim, "", "10Gi")}, wantReason: v1alpha1.ReasonInsufficientStorage, wantMessage: "a PersistentVolumeClaim of 10.5Gi"},
		"a file system by default":         {profile: noMode, ranges: []corev1.LimitRange{newLimitRange("a", claim, "", "10Gi")}, wantReason: v1alpha1.ReasonInsufficientStorage, wantMessage: "10.5Gi"},
		"at the max, mode unknown":         {ranges: []corev1.LimitRange{newLimitRange("a", claim, "", "10Gi")}},
		"below the min":                    {profile: file, ranges: []corev1.LimitRange{newLimitRange("a", claim, "20Gi", "")}, wantReason: v1alpha1.ReasonInsufficientStorage, wantMessage: "allows none below 20Gi"},
		"the first by name of two":         {profile: file, ranges: []corev1.LimitRange{newLimitRange("b", claim, "", "2Gi"), newLimitRange("a", claim, "", "1Gi")}, wantReason: v1alpha1.ReasonInsufficientStorage, wantMessage: "ns/a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := capacity.FindBlocker(apitest.Image("ns/a").WithDiskSize("10Gi").Obj(), "csi", capacity.Availability{Profile: tt.profile, LimitRanges: tt.ranges, FilesystemOverhead: 0.055})
			apitest.RequireFinding(t, got, tt.wantReason, tt.wantMessage)
		})
	}
}

// CDI raises what it requests to the least that it knows the driver to take, and to no more.
func TestClaimsAreRaisedToTheMinimumOfTheDriver(t *testing.T) {
	withMinimum := func(minimum string) *cdiv1.StorageProfile {
		profile := newProfile(claimSet(corev1.PersistentVolumeBlock))
		profile.Annotations = map[string]string{"cdi.kubevirt.io/minimumSupportedPvcSize": minimum}
		return profile
	}
	const claim = corev1.LimitTypePersistentVolumeClaim
	limits := func(least, most string) capacity.Availability {
		return capacity.Availability{LimitRanges: []corev1.LimitRange{newLimitRange("a", claim, least, most)}}
	}
	quota := func(hard string) capacity.Availability {
		return capacity.Availability{Quotas: []corev1.ResourceQuota{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
			Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse(hard)}},
			Status:     corev1.ResourceQuotaStatus{Hard: corev1.ResourceList{corev1.ResourceRequestsStorage: resource.MustParse(hard)}},
		}}}
	}
	for name, tt := range map[string]struct {
		minimum     string
		available   capacity.Availability
		wantBlocked bool
	}{
		"a min that CDI reaches by itself":   {"1Gi", limits("1Gi", ""), false},
		"a min above it":                     {"1Gi", limits("2Gi", ""), true},
		"a max below it":                     {"4Gi", limits("", "3Gi"), true},
		"a minimum that is no quantity":      {"much", limits("1Gi", ""), true},
		"a quota without room for it":        {"4Gi", quota("3Gi"), true},
		"a quota with room for it and again": {"4Gi", quota("8Gi"), false},
		"a quota without room for scratch":   {"4Gi", quota("7Gi"), true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.available.Profile = withMinimum(tt.minimum)
			got := capacity.FindBlocker(apitest.Image("ns/a").WithDiskSize("200Mi").Obj(), "csi", tt.available)
			assert.Equal(t, tt.wantBlocked, got != nil)
		})
	}
}

package importcause_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/agent/importcause"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// populated is a DataVolume whose claim CDI 1.65 populates, before its importer runs.
func populated() *apitest.DataVolumeBuilder {
	return apitest.DataVolume("ns/dv").Phase(cdiv1.ImportScheduled).Progress("N/A")
}

func bound(reason, message string) *apitest.DataVolumeBuilder {
	return populated().Condition(cdiv1.DataVolumeBound, corev1.ConditionFalse, reason, message)
}

func event(text string) *apitest.DataVolumeBuilder {
	return bound("Pending", "target PVC dv Pending and [prime-0d4f] : "+text)
}

func running(reason, message string) *apitest.DataVolumeBuilder {
	return bound("Pending", "PVC dv Pending").Condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, reason, message)
}

func podWith(change func(*corev1.PodStatus)) corev1.Pod {
	pod := apitest.Pod("ns/importer-dv").Obj()
	change(&pod.Status)
	return *pod
}

func unscheduled(message string) corev1.Pod {
	return podWith(func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}
	})
}

func waiting(reason, message string) corev1.Pod {
	return *apitest.Pod("ns/importer-dv").Waiting(reason, message).Obj()
}

// withEvent is a Pod that says nothing but in an event, whose volumes name Secret creds and
// ConfigMap ca.
func withEvent(reason, message string) corev1.Pod {
	pod := waiting("ContainerCreating", "")
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "creds"}}},
		{Name: "cdi-cert-vol", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}}},
	}
	event := corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: message, FirstTimestamp: metav1.Unix(0, 0), LastTimestamp: metav1.Unix(60, 0)}
	pod.Status.Conditions = append(pod.Status.Conditions, *importcause.LatestWarning(&pod, []corev1.Event{event}, event.LastTimestamp.Time))
	return pod
}

func TestOfImport(t *testing.T) {
	const (
		cordoned = "0/1 nodes are available: 1 node(s) were unschedulable."
		// The scheduler's words (plugins/volumebinding of Kubernetes 1.36).
		noScratch      = `0/3 nodes are available: persistentvolumeclaim "prime-0d4f-scratch" not found. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.`
		scratchRefused = `persistentvolumeclaims "prime-0d4f-scratch" is forbidden: exceeded quota: q, requested: requests.storage=10Gi, used: requests.storage=20Gi, limited: requests.storage=25Gi`
		starting       = "Error starting pod 'importer-prime-0d4f': For more information, request access to cdi-deploy logs from your sysadmin"
	)
	for name, tt := range map[string]struct {
		dv          *apitest.DataVolumeBuilder
		pods        []corev1.Pod
		claims      []corev1.PersistentVolumeClaim
		wantReason  v1alpha1.Reason // empty: no cause
		wantMessage string
		wantPerson  bool
		wantPassing bool
	}{
		"nothing is known yet":              {dv: apitest.DataVolume("ns/dv")},
		"a populated claim is Pending":      {dv: bound("Pending", "PVC dv Pending")},
		"the importer runs":                 {dv: running("ErrStartingPod", starting), pods: []corev1.Pod{*apitest.Pod("ns/p").Phase(corev1.PodRunning).Running().Obj()}},
		"the importer is created":           {dv: running("ContainerCreating", ""), pods: []corev1.Pod{waiting("ContainerCreating", "")}},
		"the Pod exists by now":             {dv: running("ErrStartingPod", starting), pods: []corev1.Pod{waiting("ContainerCreating", "")}},
		"CDI is asked for scratch space":    {dv: running("Scratch space required", "scratch space required and none found")},
		"the first consumer is CDI's":       {dv: event("waiting for first consumer to be created before binding")},
		"the volume is there":               {dv: event("Successfully provisioned volume pvc-1")},
		"scratch space is on its way":       {dv: bound("CreatingScratchSpace", "Creating scratch space"), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "Creating scratch space", wantPassing: true},
		"no claim yet":                      {dv: bound("NotFound", "No PVC found"), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "No PVC found", wantPassing: true},
		"nodes are cordoned":                {dv: running("Unschedulable", "Importer pod cannot be scheduled"), pods: []corev1.Pod{unscheduled(cordoned)}, wantReason: v1alpha1.ReasonImporterUnschedulable, wantMessage: cordoned},
		"nodes are cordoned, no Pod seen":   {dv: running("Unschedulable", "Importer pod cannot be scheduled"), wantReason: v1alpha1.ReasonImporterUnschedulable, wantMessage: "CDI says: Importer pod cannot be scheduled"},
		"the Pod waits for its volume":      {dv: event(`failed to provision volume with StorageClass "x": rpc error: code = Unavailable desc = try later`), pods: []corev1.Pod{unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")}, wantReason: v1alpha1.ReasonVolumePending, wantMessage: "try later"},
		"the Pod waits, nobody says why":    {dv: bound("Pending", "PVC dv Pending"), pods: []corev1.Pod{unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.")}, wantReason: v1alpha1.ReasonVolumePending, wantMessage: "unbound immediate", wantPassing: true},
		"scratch space beyond a quota":      {dv: event(scratchRefused), pods: []corev1.Pod{unscheduled(noScratch)}, wantReason: v1alpha1.ReasonQuotaExceeded, wantMessage: "exceeded quota: q", wantPerson: true},
		"no scratch space, nobody says why": {dv: bound("Pending", "PVC dv Pending"), pods: []corev1.Pod{unscheduled(noScratch)}, wantReason: v1alpha1.ReasonVolumePending, wantMessage: `prime-0d4f-scratch" not found`, wantPassing: true},
		"scratch space is being deleted":    {dv: bound("Pending", "PVC dv Pending"), pods: []corev1.Pod{unscheduled(`0/3 nodes are available: persistentvolumeclaim "prime-0d4f-scratch" is being deleted.`)}, wantReason: v1alpha1.ReasonVolumePending, wantMessage: "is being deleted", wantPassing: true},
		"the Pod is refused":                {dv: running("ErrStartingPod", starting), wantReason: v1alpha1.ReasonImporterRefused, wantMessage: starting, wantPerson: true},
		"the Pod exceeds a quota":           {dv: running("ErrExceededQuota", "exceeded quota: q"), wantReason: v1alpha1.ReasonQuotaExceeded, wantMessage: "exceeded quota: q", wantPerson: true},
		"an image pull that may heal":       {pods: []corev1.Pod{waiting("ErrImagePull", "dial tcp: refused")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "dial tcp: refused"},
		"an image pull that does not":       {pods: []corev1.Pod{waiting("ImagePullBackOff", `Back-off pulling image "cdi-importer"`)}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: `Back-off pulling image "cdi-importer"`, wantPerson: true},
		"only a container of others runs": {pods: []corev1.Pod{podWith(func(s *corev1.PodStatus) {
			s.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "importer", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "dial tcp: refused"}}},
				{Name: "istio-proxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}
		})}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "dial tcp: refused"},
		"an image pull, by CDI":              {dv: running("ImagePullFailed", "failed to pull image: quay.io/kubevirt/cdi-importer:v1.65.0"), wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "failed to pull image: quay.io/kubevirt/cdi-importer", wantPerson: true},
		"a key is missing":                   {pods: []corev1.Pod{waiting("CreateContainerConfigError", "couldn't find key secretKey in Secret ns/creds")}, wantReason: v1alpha1.ReasonSecretMissing, wantMessage: "couldn't find key secretKey in Secret ns/creds", wantPerson: true},
		"a Secret is missing":                {pods: []corev1.Pod{waiting("CreateContainerConfigError", `secret "creds" not found`)}, wantReason: v1alpha1.ReasonSecretMissing, wantMessage: `secret "creds" not found`, wantPerson: true},
		"a ConfigMap is missing":             {pods: []corev1.Pod{waiting("CreateContainerConfigError", `configmap "ca" not found`)}, wantReason: v1alpha1.ReasonCertConfigMapMissing, wantMessage: `configmap "ca" not found`, wantPerson: true},
		"a container that cannot be created": {pods: []corev1.Pod{waiting("CreateContainerError", "context deadline exceeded")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "context deadline exceeded", wantPerson: true},
		"a waiting reason without a row":     {pods: []corev1.Pod{waiting("NodeIsSulking", "try a cake")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "try a cake"},
		"a Pod condition without a row": {pods: []corev1.Pod{podWith(func(s *corev1.PodStatus) {
			s.Conditions = []corev1.PodCondition{{Type: "Blessed", Status: corev1.ConditionFalse, Reason: "NoPriest", Message: "none in town"}}
		})}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "none in town"},
		"a volume that cannot be attached": {pods: []corev1.Pod{withEvent("FailedAttachVolume", "Multi-Attach error for volume pvc-1")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "Multi-Attach error"},
		"certificates that are not there":  {pods: []corev1.Pod{withEvent("FailedMount", `MountVolume.SetUp failed for volume "cdi-cert-vol" : configmap "ca" not found`)}, wantReason: v1alpha1.ReasonCertConfigMapMissing, wantMessage: `configmap "ca" not found`, wantPerson: true},
		"a Secret that is not there":       {pods: []corev1.Pod{withEvent("FailedMount", `MountVolume.SetUp failed for volume "s" : secret "creds" not found`)}, wantReason: v1alpha1.ReasonSecretMissing, wantMessage: `secret "creds" not found`, wantPerson: true},
		"certificates of any Pod":          {pods: []corev1.Pod{withEvent("FailedMount", `MountVolume.SetUp failed for volume "kube-api-access-x" : configmap "kube-root-ca.crt" not found`)}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "kube-root-ca.crt"},
		"a driver that is not there yet":   {pods: []corev1.Pod{withEvent("FailedMount", "driver name rbd.csi.ceph.com not found in the list of registered CSI drivers")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "rbd.csi.ceph.com not found"},
		"an event of a later version":      {pods: []corev1.Pod{withEvent("NodeIsSulking", "try a cake")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "try a cake"},
		"a Pod that is evicted": {pods: []corev1.Pod{podWith(func(s *corev1.PodStatus) {
			s.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager", Message: "node is gone"}}
		})}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "node is gone"},
		"no access modes":                   {dv: bound("ErrClaimNotValid", "no accessMode specified in StorageProfile x"), wantReason: v1alpha1.ReasonStorageProfileIncomplete, wantMessage: "claimPropertySets", wantPerson: true},
		"a claim that is not valid":         {dv: bound("ErrClaimNotValid", "PVC Spec is not valid - missing storage size"), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "missing storage size", wantPerson: true},
		"a claim of somebody else":          {dv: bound("ErrResourceExists", `Resource "dv" already exists and is not managed by DataVolume`), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "already exists", wantPerson: true},
		"a claim beyond a quota":            {dv: bound("ErrExceededQuota", "exceeded quota: q"), wantReason: v1alpha1.ReasonQuotaExceeded, wantMessage: "exceeded quota: q", wantPerson: true},
		"a provisioner that is slow":        {dv: event("Waiting for a volume to be created either by the external provisioner 'x' or manually by the system administrator."), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "external provisioner 'x'", wantPassing: true},
		"two writers of the claim":          {dv: event(`Error saving claim: Operation cannot be fulfilled on persistentvolumeclaims "prime-0d4f": the object has been modified; please apply your changes to the latest version and try again`), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "Error saving claim", wantPassing: true},
		"a backend that is down":            {dv: event(`failed to provision volume with StorageClass "x": rpc error: code = Unavailable desc = down`), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "desc = down"},
		"a backend that is full":            {dv: event(`failed to provision volume with StorageClass "x": rpc error: code = ResourceExhausted desc = full`), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "desc = full", wantPerson: true},
		"a class that is gone":              {dv: event(`storageclass.storage.k8s.io "x" not found`), wantReason: v1alpha1.ReasonVolumePending, wantMessage: `"x" not found`, wantPerson: true},
		"a claim that admission refuses":    {dv: event(`persistentvolumeclaims "prime-0d4f" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi`), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "maximum storage usage", wantPerson: true},
		"an event without a row":            {dv: event("Volume is on holiday"), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "Volume is on holiday", wantPassing: true},
		"an event of a class without a CSI": {dv: bound("Pending", "target PVC dv Pending and Volume is on holiday"), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "Volume is on holiday", wantPassing: true},
		"a reason of Bound without a row":   {dv: bound("AwaitingVDDK", "waiting for v2v-vmware configmap"), wantReason: v1alpha1.ReasonVolumePending, wantMessage: "v2v-vmware"},
		"a condition without a row":         {dv: populated().Condition("Blessed", corev1.ConditionFalse, "NoPriest", "none in town"), wantReason: v1alpha1.ReasonImporting, wantMessage: "none in town"},
		"a reason without a message":        {dv: running("NoPriest", ""), wantReason: v1alpha1.ReasonImporting, wantMessage: "NoPriest"},
		"a claim that lost its volume":      {claims: []corev1.PersistentVolumeClaim{*apitest.PersistentVolumeClaim("ns/prime-1").Phase(corev1.ClaimLost).Obj()}, wantReason: v1alpha1.ReasonVolumePending, wantMessage: "prime-1", wantPerson: true},
		"the container knows more than CDI": {dv: running("ErrStartingPod", starting), pods: []corev1.Pod{waiting("InvalidImageName", "bad image")}, wantReason: v1alpha1.ReasonImporterNotStarting, wantMessage: "bad image", wantPerson: true},
	} {
		t.Run(name, func(t *testing.T) {
			var dv *cdiv1.DataVolume
			if tt.dv != nil {
				dv = tt.dv.Obj()
			}
			got := importcause.OfImport(dv, tt.claims, tt.pods)
			if apitest.RequireFinding(t, got, tt.wantReason, tt.wantMessage) {
				assert.Equal(t, tt.wantPerson, got.NeedsPerson)
				assert.Equal(t, tt.wantPassing, got.Passing)
			}
		})
	}
}

func TestOfAnswer(t *testing.T) {
	datavolumes := schema.GroupResource{Group: "cdi.kubevirt.io", Resource: "datavolumes"}
	for name, tt := range map[string]struct {
		err        error
		wantReason v1alpha1.Reason // empty: no answer about the image
		wantPerson bool
	}{
		"accepted":                       {},
		"CDI's webhook":                  {apierrors.NewBadRequest(`admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request: Invalid source URL scheme: s3://b/k`), v1alpha1.ReasonDataVolumeRefused, true},
		"CDI's webhook, as it answers":   {&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Message: `admission webhook "datavolume-validate.cdi.kubevirt.io" denied the request:  spec.source Invalid source URL`}}, v1alpha1.ReasonDataVolumeRefused, true},
		"a status code without a reason": {&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Message: "no"}}, v1alpha1.ReasonDataVolumeRefused, true},
		"a policy":                       {apierrors.NewForbidden(datavolumes, "dv", errors.New("ValidatingAdmissionPolicy 'no-imports' denied request")), v1alpha1.ReasonDataVolumeRefused, true},
		"a quota":                        {apierrors.NewForbidden(datavolumes, "dv", errors.New("exceeded quota: q, requested: count/datavolumes.cdi.kubevirt.io=1")), v1alpha1.ReasonQuotaExceeded, true},
		"a right that the agent lacks":   {apierrors.NewForbidden(datavolumes, "", errors.New(`User "a" cannot create resource "datavolumes" in API group "cdi.kubevirt.io"`)), "", false},
		"a webhook that does not answer": {apierrors.NewInternalError(errors.New(`failed calling webhook "datavolume-mutate.cdi.kubevirt.io": connection refused`)), v1alpha1.ReasonCDIUnavailable, false},
		"a broken connection":            {errors.New("EOF"), "", false},
		"a conflict":                     {apierrors.NewConflict(datavolumes, "dv", errors.New("changed")), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := importcause.OfAnswer(tt.err)
			if tt.wantReason == "" {
				assert.Nil(t, got)
				return
			}
			require.NotNil(t, got)
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Equal(t, tt.wantPerson, got.NeedsPerson)
			assert.False(t, got.Reason.NeedsUserAction() && !got.NeedsPerson, "hub and agent agree")
			assert.Contains(t, got.Message, tt.err.Error())
		})
	}
}

func TestOfSnapshot(t *testing.T) {
	failed := func(message string) *snapshotv1.VolumeSnapshot {
		return &snapshotv1.VolumeSnapshot{Status: &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: &message}}}
	}
	assert.Nil(t, importcause.OfSnapshot(nil))
	assert.Nil(t, importcause.OfSnapshot(&snapshotv1.VolumeSnapshot{}))
	assert.Nil(t, importcause.OfSnapshot(failed("\n")))
	assert.Equal(t, &importcause.Cause{Reason: v1alpha1.ReasonSnapshotting, Message: "backend is down"}, importcause.OfSnapshot(failed("backend is down")))
	assert.True(t, importcause.OfSnapshot(failed("snapshots are not supported by driver x")).NeedsPerson)
}

// Whatever a layer says, its text is passed on, on one line and bounded.
func TestUnknownTextsArePassedOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-zA-Z0-9 \n\t:/"']{1,900}`).Filter(func(s string) bool { return v1alpha1.SanitizeText(s, 512) != "" }).Draw(t, "message")
		kind := rapid.SampledFrom([]cdiv1.DataVolumeConditionType{cdiv1.DataVolumeRunning, cdiv1.DataVolumeBound, "Other"}).Draw(t, "condition")
		dv := populated().Condition(kind, corev1.ConditionFalse, "NeverSeenBefore", text).Obj()
		got := importcause.OfImport(dv, nil, nil)
		require.NotNil(t, got)
		require.Contains(t, got.Message, v1alpha1.SanitizeText(text, 512))
		require.NotContains(t, got.Message, "\n")
		require.Less(t, len(got.Message), 1024)
	})
}

// The last row of each layer matches any signal: none is swallowed.
func TestEachLayerEndsWithARowForAnySignal(t *testing.T) {
	last := map[importcause.Layer]importcause.Row{}
	for _, row := range importcause.Rows() {
		if before, ok := last[row.Layer]; ok {
			assert.False(t, len(before.Codes) == 0 && before.Text == nil, "no row of %q is reached behind one that matches any", row.Layer)
		}
		last[row.Layer] = row
		if row.Kind != importcause.Normal {
			assert.NotEmpty(t, row.Reason)
		}
		assert.Equal(t, row.Text != nil, row.TextMeans != "", "TextMeans of the row with text %v", row.Text)
		for _, text := range []string{row.Sentence, row.Advice} {
			assert.False(t, strings.HasSuffix(text, ".") || slices.Contains(strings.Fields(text), "agent"), "%q is part of a sentence", text)
		}
	}
	for layer, row := range last {
		assert.True(t, len(row.Codes) == 0 && row.Text == nil, "%q has no row for signals without a row", layer)
	}
}

// TestRecordedImports reads what the real controllers said of imports that were held up.
func TestRecordedImports(t *testing.T) {
	for file, want := range map[string]importcause.Cause{
		"cdi-1.65-cordoned-nodes": {
			Reason:  v1alpha1.ReasonImporterUnschedulable,
			Message: "the importer Pod cannot be scheduled: 0/1 nodes are available: 1 node(s) were unschedulable.",
		},
		"cdi-1.65-refused-importer": {
			Reason: v1alpha1.ReasonImporterRefused, NeedsPerson: true,
			Message: "CDI cannot create the importer Pod: Error starting pod 'importer-prime-",
		},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata", file+".yaml"))
			require.NoError(t, err)
			var recorded struct {
				DataVolumes []cdiv1.DataVolume             `json:"dataVolumes"`
				Claims      []corev1.PersistentVolumeClaim `json:"claims"`
				Pods        []corev1.Pod                   `json:"pods"`
			}
			require.NoError(t, yaml.Unmarshal(text, &recorded))
			require.Len(t, recorded.DataVolumes, 1)
			got := importcause.OfImport(&recorded.DataVolumes[0], recorded.Claims, recorded.Pods)
			require.NotNil(t, got)
			assert.True(t, strings.HasPrefix(got.Message, want.Message), got.Message)
			want.Message = got.Message
			assert.Equal(t, want, *got)

			// An agent that sees the DataVolume alone has CDI's words.
			alone := importcause.OfImport(&recorded.DataVolumes[0], nil, nil)
			require.NotNil(t, alone)
			assert.Equal(t, want.Reason, alone.Reason)
		})
	}
}

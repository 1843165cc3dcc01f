package image_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// importingDataVolume is a DataVolume whose importer has stopped, as of CDI 1.65: the
// phase stays ImportInProgress.
func importingDataVolume(reason, message string) *apitest.DataVolumeBuilder {
	return apitest.DataVolume("ns/dv").Phase(cdiv1.ImportInProgress).Progress("12.0%").
		Condition(cdiv1.DataVolumeBound, corev1.ConditionTrue, "Bound", "PVC dv Bound").
		Condition(cdiv1.DataVolumeReady, corev1.ConditionFalse, "TransferRunning", "").
		Condition(cdiv1.DataVolumeRunning, corev1.ConditionFalse, reason, message)
}

func TestDetectFailureFromDataVolume(t *testing.T) {
	const connect = "Unable to connect to http data source: "
	for name, tt := range map[string]struct {
		dv         *apitest.DataVolumeBuilder
		wantReason v1alpha1.Reason // empty: not failed
	}{
		"404":                        {importingDataVolume("Error", connect+"expected status code 200, got 404. Status: 404 Not Found"), v1alpha1.ReasonNotFound},
		"410":                        {importingDataVolume("Error", connect+"expected status code 200, got 410. Status: 410 Gone"), v1alpha1.ReasonNotFound},
		"403":                        {importingDataVolume("Error", connect+"expected status code 200, got 403. Status: 403 Forbidden"), v1alpha1.ReasonForbidden},
		"401":                        {importingDataVolume("Error", connect+"expected status code 200, got 401. Status: 401 Unauthorized"), v1alpha1.ReasonForbidden},
		"500":                        {importingDataVolume("Error", connect+"expected status code 200, got 500. Status: 500 Internal Server Error"), v1alpha1.ReasonImportFailed},
		"a number that begins alike": {importingDataVolume("Error", connect+"expected status code 200, got 4040"), v1alpha1.ReasonImportFailed},
		"an image called lab-404":    {importingDataVolume("Error", connect+`Get "https://x/lab-404/got%20404.qcow2": dial tcp: connection refused`), v1alpha1.ReasonImportFailed},
		"no such key in a bucket":    {importingDataVolume("Error", "Unable to connect to s3 data source: could not get s3 object: \"b/a.qcow2\": NoSuchKey: The specified key does not exist.\n\tstatus code: 404, request id: 1, host id: 2"), v1alpha1.ReasonNotFound},
		"no such bucket":             {importingDataVolume("Error", "Unable to connect to s3 data source: could not get s3 object: \"b/a.qcow2\": NoSuchBucket: The specified bucket does not exist\n\tstatus code: 404"), v1alpha1.ReasonNotFound},
		"no access to a bucket":      {importingDataVolume("Error", "Unable to connect to s3 data source: could not get s3 object: \"b/a.qcow2\": AccessDenied: Access Denied\n\tstatus code: 403"), v1alpha1.ReasonForbidden},
		"an object called NotFound":  {importingDataVolume("Error", "Unable to connect to s3 data source: could not get s3 object: \"b/NotFound.qcow2\": RequestError: send request failed\ncaused by: dial tcp: connection refused"), v1alpha1.ReasonImportFailed},
		"an object called AccessDenied, quotes and all": {importingDataVolume("Error", "Unable to connect to s3 data source: could not get s3 object: \"b/x\": AccessDenied.qcow2\": SlowDown: Please reduce your request rate"), v1alpha1.ReasonImportFailed},
		"no such object of Google's":                    {importingDataVolume("Error", "Unable to connect to GCS data source: storage: object doesn't exist: googleapi: Error 404: No such object: b/a.qcow2, notFound"), v1alpha1.ReasonNotFound},
		"no access at Google's":                         {importingDataVolume("Error", "Unable to connect to GCS data source: googleapi: Error 403: Anonymous caller does not have storage.objects.get access, forbidden"), v1alpha1.ReasonForbidden},
		"no access at Google's, XML":                    {importingDataVolume("Error", "Unable to connect to GCS data source: googleapi: got HTTP response code 401 with body: <?xml version='1.0'?>"), v1alpha1.ReasonForbidden},
		"no credentials for Google":                     {importingDataVolume("Error", "Unable to connect to GCS data source: dialing: open /google/credentials.json: no such file or directory"), v1alpha1.ReasonImportFailed},
		"a broken transfer":                             {importingDataVolume("Error", "Unable to process data: unexpected EOF"), v1alpha1.ReasonImportFailed},
		"too small, CDI's own words":                    {importingDataVolume("Error", "DataVolume too small to contain image"), v1alpha1.ReasonDiskTooSmall},
		"an image called like that":                     {importingDataVolume("Error", `Unable to connect to http data source: Get "https://x/DataVolume too small to contain image": EOF`), v1alpha1.ReasonImportFailed},
		"checksum":                                      {importingDataVolume("ChecksumError", "Unable to process data: checksum mismatch").Phase(cdiv1.Failed), v1alpha1.ReasonChecksumMismatch},
		"checksum, before the phase":                    {importingDataVolume("ChecksumError", "Unable to process data: checksum mismatch"), v1alpha1.ReasonChecksumMismatch},
		"quota of claims":                               {apitest.DataVolume("ns/dv").Phase(cdiv1.Pending).Condition(cdiv1.DataVolumeBound, corev1.ConditionUnknown, "ErrExceededQuota", `persistentvolumeclaims "dv" is forbidden: exceeded quota: q`), v1alpha1.ReasonQuotaExceeded},
		"quota of Pods":                                 {importingDataVolume("ErrExceededQuota", `pods "importer-dv" is forbidden: exceeded quota: q`), v1alpha1.ReasonQuotaExceeded},
		"phase Failed without a message":                {apitest.DataVolume("ns/dv").Phase(cdiv1.Failed), v1alpha1.ReasonImportFailed},
		"a restart without a message":                   {importingDataVolume("", "").Restarts(1), v1alpha1.ReasonImportFailed},
		"an importer still to start":                    {importingDataVolume("ErrStartingPod", "Error starting pod 'importer-dv': For more information, request access to cdi-deploy logs from your sysadmin"), ""},
		"a pull that the kubelet delays":                {importingDataVolume("ImagePullFailed", "failed to pull image: r.example.com/disks/a:1"), ""},
		"an importer that is created":                   {importingDataVolume("ContainerCreating", ""), ""},
		"scratch space is on its way":                   {importingDataVolume("Scratch space required", "scratch space required and none found"), ""},
		"not processed by CDI":                          {apitest.DataVolume("ns/dv"), ""},
		"running":                                       {apitest.DataVolume("ns/dv").Phase(cdiv1.ImportInProgress).Condition(cdiv1.DataVolumeRunning, corev1.ConditionTrue, "Pod is running", ""), ""},
		"a claim that CDI cannot create":                {apitest.DataVolume("ns/dv").Condition(cdiv1.DataVolumeBound, corev1.ConditionFalse, "ErrClaimNotValid", "no accessMode specified in StorageProfile"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, failed := image.DetectFailure(&image.AttemptObjects{DataVolume: tt.dv.Obj()})
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Equal(t, tt.wantReason != "", failed)
			if failed {
				assert.NotEmpty(t, got.Message)
			}
		})
	}
}

func TestDetectFailureFromImporterPod(t *testing.T) {
	pod := func() *apitest.PodBuilder { return apitest.Pod("ns/importer-dv").Phase(corev1.PodRunning) }
	for name, tt := range map[string]struct {
		pod         *apitest.PodBuilder
		wantReason  v1alpha1.Reason
		wantMessage string
	}{
		"waits":                               {pod: pod().Phase(corev1.PodPending).Waiting("ContainerCreating", "")},
		"runs":                                {pod: pod().Running()},
		"done":                                {pod: pod().Phase(corev1.PodSucceeded).Terminated(0, "Completed", `{"message":"Import Complete"}`)},
		"asks for scratch space":              {pod: pod().Phase(corev1.PodSucceeded).Terminated(0, "Completed", `{"scratchSpaceRequired":true,"message":"Import Complete"}`)},
		"404, before the DataVolume shows it": {pod().Terminated(1, "Error", "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found"), v1alpha1.ReasonNotFound, "got 404"},
		"restarted already":                   {pod().Running().Restarts(1).LastTerminated(1, "Error", "Unable to process data: unexpected EOF"), v1alpha1.ReasonImportFailed, "unexpected EOF"},
		"killed for memory":                   {pod().Terminated(137, "OOMKilled", ""), v1alpha1.ReasonImportFailed, "importer ran out of memory (OOMKilled): raise podResourceRequirements"},
		"gated, as its predecessor was killed for memory": {pod().Phase(corev1.PodPending).Gate(v1alpha1.GateOneDownload), v1alpha1.ReasonImportFailed, "OOMKilled"},
		"gated by others":               {pod: pod().Phase(corev1.PodPending).Gate("example.com/quota")},
		"evicted":                       {pod().Phase(corev1.PodFailed).Reason("Evicted", "The node was low on resource: ephemeral-storage."), v1alpha1.ReasonImportFailed, "the importer was ended by Kubernetes (Evicted): The node was low"},
		"failed without a message":      {pod().Phase(corev1.PodFailed), v1alpha1.ReasonImportFailed, "importer Pod failed"},
		"virtual size beyond the claim": {pod().Terminated(1, "Error", "Unable to process data: virtual image size 2147483648 is larger than the reported available storage 1073741824. A larger PVC is required"), v1alpha1.ReasonDiskTooSmall, "larger"},
		"the disk is full":              {pod().Terminated(1, "Error", "Unable to process data: unable to write to file: write /data/disk.img: no space left on device"), v1alpha1.ReasonDiskTooSmall, "no space left"},
		"the node's disk is full":       {pod().Terminated(128, "StartError", "failed to create containerd task: failed to create shim task: mkdir /run/containerd/x: no space left on device"), v1alpha1.ReasonImportFailed, "free the disk of the node: the node cannot start the importer (StartError)"},
		"blocks larger than the disk":   {pod().Terminated(1, "Error", "Unable to process data: file largest block is bigger than maxblock"), v1alpha1.ReasonDiskTooSmall, "maxblock"},
		"a registry without the image":  {pod().Terminated(1, "Error", "Unable to process data: Failed to read registry image: Error retrieving image: reading manifest 1 in r.example.com/i: manifest unknown"), v1alpha1.ReasonNotFound, "manifest unknown"},
		"a registry that wants a login": {pod().Terminated(1, "Error", "Unable to process data: Failed to read registry image: Error retrieving image: reading manifest 1 in r.example.com/i: unauthorized: authentication required"), v1alpha1.ReasonForbidden, "unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			got, failed := image.DetectFailure(&image.AttemptObjects{
				DataVolume: apitest.DataVolume("ns/dv").Phase(cdiv1.ImportInProgress).Obj(),
				Pods:       []corev1.Pod{*tt.pod.Obj()},
			})
			assert.Equal(t, tt.wantReason, got.Reason)
			assert.Equal(t, tt.wantReason != "", failed)
			assert.Contains(t, got.Message, tt.wantMessage)
		})
	}
}

// The API server refuses a whole status for one message that is too long.
func TestFailureMessagesFitTheStatus(t *testing.T) {
	for name, text := range map[string]string{
		"long":        strings.Repeat("x", 5000),
		"wide runes":  strings.Repeat("界", 5000),
		"no text":     "",
		"not UTF-8":   "a\xff\xfeb",
		"white space": " \n\t",
	} {
		t.Run(name, func(t *testing.T) {
			got, failed := image.DetectFailure(&image.AttemptObjects{DataVolume: importingDataVolume("Error", text).Obj()})
			require.True(t, failed)
			assert.NotEmpty(t, got.Message)
			assert.LessOrEqual(t, len([]rune(got.Message)), 1024)
			assert.Equal(t, strings.ToValidUTF8(got.Message, ""), got.Message)
		})
	}
}

func TestRecordRefusal(t *testing.T) {
	refused := v1alpha1.Failure{Reason: v1alpha1.ReasonDataVolumeRefused, Message: strings.Repeat("no ", 1000)}
	now := metav1.NewTime(apitest.Epoch)
	for name, tt := range map[string]struct {
		revision v1alpha1.RevisionStatus
		want     bool
	}{
		"not started":       {v1alpha1.RevisionStatus{Revision: "r"}, true},
		"started meanwhile": {v1alpha1.RevisionStatus{Revision: "r", Attempt: 1}, false},
		"ended meanwhile":   {v1alpha1.RevisionStatus{Revision: "r", Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded}, false},
		"another revision":  {v1alpha1.RevisionStatus{Revision: "q"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").WithRevisions(tt.revision).Obj()
			before := img.DeepCopy()
			got := image.RecordRefusal(img, apitest.Slot(img, "r", 1).Obj(), refused, ptr.To(policyWithoutPreflight().Obj()), now)
			assert.Equal(t, tt.want, got)
			if !got {
				assert.Equal(t, before, img)
				return
			}
			e := img.Status.Revisions[0]
			assert.EqualValues(t, 1, e.AttemptEnded)
			assert.EqualValues(t, 1, img.Status.LastAttempt)
			assert.NotNil(t, e.NotBefore, "it is retried")
			assert.LessOrEqual(t, len([]rune(e.Failure.Message)), 1024)
		})
	}
	img := apitest.Image("ns/a").WithRevisions(v1alpha1.RevisionStatus{Revision: "r"}).Obj()
	assert.True(t, image.RecordRefusal(img, apitest.Slot(img, "r", 1).Obj(), refused, nil, now), "by the default policy")
}

// With pullMethod node the kubelet downloads the disk, as the image of a container of the
// importer Pod, and would try without end.
func TestDetectFailureOfPullByNode(t *testing.T) {
	for name, tt := range map[string]struct {
		container, code, message string
		wantReason               v1alpha1.Reason // empty: not failed
	}{
		"no such image":            {"server", "ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack image "r.example.com/a:1": failed to resolve reference "r.example.com/a:1": r.example.com/a:1: not found`, v1alpha1.ReasonNotFound},
		"no access, containerd":    {"server", "ErrImagePull", `failed to pull and unpack image "r.example.com/a:1": failed to resolve reference "r.example.com/a:1": failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://r.example.com/token: 401 Unauthorized`, v1alpha1.ReasonForbidden},
		"no access, CRI-O":         {"server", "ErrImagePull", `reading manifest 1 in r.example.com/a: unauthorized: access to the requested resource is not authorized`, v1alpha1.ReasonForbidden},
		"refused, containerd":      {"server", "ErrImagePull", `failed to pull and unpack image "ghcr.io/a/b:1": failed to resolve reference "ghcr.io/a/b:1": unexpected status from HEAD request to https://ghcr.io/v2/a/b/manifests/1: 403 Forbidden`, v1alpha1.ReasonForbidden},
		"broken, containerd":       {"server", "ErrImagePull", `failed to resolve reference "ghcr.io/a/b:1": unexpected status from HEAD request to https://ghcr.io/v2/a/b/manifests/1: 503 Service Unavailable`, v1alpha1.ReasonImportFailed},
		"delayed by the kubelet":   {"server", "ErrImagePull", "pull QPS exceeded", ""},
		"delayed, and waits":       {"server", "ImagePullBackOff", `Back-off pulling image "a:1": ErrImagePull: pull QPS exceeded`, ""},
		"denied":                   {"server", "ImagePullBackOff", `Back-off pulling image "a:1": ErrImagePull: pull access denied, repository does not exist or may require authorization`, v1alpha1.ReasonForbidden},
		"a name that is none":      {"server", "InvalidImageName", `couldn't parse image name "R/a": invalid reference format`, v1alpha1.ReasonImportFailed},
		"a broken transfer":        {"server", "ErrImagePull", "unexpected EOF", v1alpha1.ReasonImportFailed},
		"no room on the node":      {"server", "ErrImagePull", "failed to pull and unpack image \"r.example.com/a:1\": write /var/lib/containerd/x: no space left on device", v1alpha1.ReasonImportFailed},
		"quota of the node":        {"server", "ImagePullBackOff", "Back-off pulling image \"a:1\": ErrImagePull: write /var/lib/containers/x:\ndisk quota exceeded", v1alpha1.ReasonImportFailed},
		"is being pulled":          {"server", "PodInitializing", "", ""},
		"the importer's own image": {"importer", "ErrImagePull", "unexpected EOF", ""},
		"its own image, and waits": {"importer", "ImagePullBackOff", `Back-off pulling image "quay.io/kubevirt/cdi-importer:v1.65.0": ErrImagePull: unexpected EOF`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := apitest.Pod("ns/importer").Obj()
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "importer", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
				{Name: tt.container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: tt.code, Message: tt.message}}},
			}
			// CDI says the same of all of them within 2 seconds (pkg/controller/util.go).
			pulling := importingDataVolume("ImagePullFailed", "failed to pull image: "+tt.container).Obj()
			for _, dv := range []*cdiv1.DataVolume{nil, pulling} {
				got, failed := image.DetectFailure(&image.AttemptObjects{DataVolume: dv, Pods: []corev1.Pod{*pod}})
				assert.Equal(t, tt.wantReason, got.Reason)
				assert.Equal(t, tt.wantReason != "", failed)
				if failed {
					assert.Contains(t, got.Message, "the node cannot pull the image ("+tt.code+")")
				}
			}
		})
	}
}

package report

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestDescribeSource(t *testing.T) {
	for want, spec := range map[string]v1alpha1.VMDiskImageSpec{
		"http https://a/b":           {SourceType: v1alpha1.SourceHTTP, URL: "https://a/b"},
		"http https://a/b sha256:00": {SourceType: v1alpha1.SourceHTTP, URL: "https://a/b", Checksum: "sha256:00"},
		"s3 s3://bucket/b":           {SourceType: v1alpha1.SourceS3, URL: "s3://bucket/b"},
		"blank":                      {SourceType: v1alpha1.SourceBlank},
		"gcs gs://bucket_a/dir/b":    {SourceType: v1alpha1.SourceGCS, URL: "gs://bucket_a/dir/b"},
		"http https://a/c":           {SourceType: v1alpha1.SourceHTTP, URL: "https://a/c", ExtraHeaders: []string{"X-Key: s3cr3t"}, SecretExtraHeaders: []string{"token"}},

		"http https://a/b?… 964dc3bf700d sha256:00": {SourceType: v1alpha1.SourceHTTP, URL: "https://a/b?sig=1", Checksum: "sha256:00"},
	} {
		assert.Equal(t, want, DescribeSource(&spec))
	}
}

func TestNewReportedImage(t *testing.T) {
	imported, before := metav1.Unix(2000, 0), metav1.Unix(1000, 0)
	img := testImage(1)
	img.Spec.DiskSize = resource.MustParse("2Gi")
	current := img.Spec.Revision()
	img.Status = v1alpha1.VMDiskImageStatus{
		Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady, Message: "ready", Revision: current,
		Attempts: 3, BytesTotal: 700, Serving: &v1alpha1.Serving{Revision: "old"},
		References: v1alpha1.References{Count: 0, UnreferencedSince: &before},
		Revisions: []v1alpha1.RevisionStatus{
			{Revision: current, Attempt: 3, AttemptEnded: 3, Outcome: v1alpha1.OutcomeSucceeded, ImportedAt: &imported},
			{Revision: "old", Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded, ImportedAt: &before},
			{Revision: "older", Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeFailed},
		},
	}
	want := v1alpha1.ReportedImage{
		Namespace: img.Namespace, Name: img.Name, UID: img.UID, Source: "http " + img.Spec.URL,
		Revision: current, ServingRevision: "old", Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady, Message: "ready",
		UnreferencedSince: &before, Bytes: 4 << 30, DownloadBytes: 700, Attempts: 3, SyncedAt: &imported,
	}
	assert.Equal(t, want, NewReportedImage(img))

	img.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
	want.Stalled = true
	assert.Equal(t, want, NewReportedImage(img))
	img.Status.Conditions[0].Status, want.Stalled = metav1.ConditionFalse, false

	img.Status.Revisions[0].Attempt = 4 // its storage was lost and is imported again
	want.Bytes, want.SyncedAt = 2<<30, nil
	assert.Equal(t, want, NewReportedImage(img))
}

func TestImageOrigin(t *testing.T) {
	planned := map[string]string{v1alpha1.LabelPlanned: "true"}
	created := map[string]string{v1alpha1.AnnotationCreatedFor: "lab/vm"}
	for _, tt := range []struct {
		name                string
		labels, annotations map[string]string
		want                v1alpha1.ImageOrigin
	}{
		{"somebody", nil, nil, ""},
		{"a plan", planned, nil, v1alpha1.OriginPlan},
		{"a template", nil, created, v1alpha1.OriginTemplate},
		{"a template, handed over to the plan", planned, created, v1alpha1.OriginPlan},
		{"a plan, taken back by somebody", map[string]string{v1alpha1.LabelPlanned: "false"}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			img := testImage(1)
			img.Labels, img.Annotations = tt.labels, tt.annotations
			assert.Equal(t, tt.want, NewReportedImage(img).Origin)
		})
	}
}

// A page that is read back has the digest of the page that was written.
func TestDigestSurvivesStorageRoundTrip(t *testing.T) {
	img := testImage(1)
	at := metav1.NewTime(time.Unix(3000, 0).In(time.FixedZone("somewhere", 3600)))
	img.Status.References.UnreferencedSince = &at
	img.Status.Message = "<&> \u2028 \xff"
	p := NewPaginator(nil)
	p.SetImage(img)
	page := p.Pages()[0]
	text, err := json.Marshal(v1alpha1.ReportPage{Images: p.PageImages(page.Name)})
	require.NoError(t, err)
	var stored v1alpha1.ReportPage
	require.NoError(t, json.Unmarshal(text, &stored))
	assert.Equal(t, page.Digest, DigestPage(stored.Images))
	stored.Images[0].Name += "x"
	assert.NotEqual(t, page.Digest, DigestPage(stored.Images))
}

package image_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/agent/ledger"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestRevision(t *testing.T) {
	base := func() *apitest.ImageBuilder { return apitest.Image("ns/a") }
	for name, tt := range map[string]struct {
		changed *apitest.ImageBuilder
		want    bool
	}{
		"url":                       {base().WithURL("https://images.example.com/b.qcow2"), true},
		"source type":               {base().WithSource(v1alpha1.SourceS3, "https://images.example.com/a.qcow2"), true},
		"checksum":                  {base().WithChecksum("md5:00000000000000000000000000000000"), true},
		"storage class":             {base().WithStorageClass("fast"), true},
		"disk size":                 {base().WithDiskSize("2Gi"), true},
		"the same size in Mi":       {base().WithDiskSize("1024Mi"), false},
		"the same size in bytes":    {base().WithDiskSize("1073741824"), false},
		"snapshot class":            {base().WithSnapshotClass("snap"), false},
		"secret":                    {base().WithSecretRef("creds"), false},
		"certificate authorities":   {base().WithCertConfigMap("cas"), false},
		"priority":                  {base().WithPriority(5), false},
		"fields that run together":  {base().WithChecksum("x").WithStorageClass(""), true},
		"the other way round":       {base().WithURL("https://images.example.com/a.qcow2x"), true},
		"annotation and generation": {base().WithRetry("1").WithGeneration(7), false},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.changed.Obj().Spec.Revision()
			assert.Equal(t, tt.want, got != base().Obj().Spec.Revision())
			assert.NotEmpty(t, got)
			assert.LessOrEqual(t, len(got), 16, "it is part of labels and names")
		})
	}
	assert.NotEqual(t,
		base().WithChecksum("ab").WithStorageClass("c").Obj().Spec.Revision(),
		base().WithChecksum("a").WithStorageClass("bc").Obj().Spec.Revision())
}

func TestPreflightURL(t *testing.T) {
	const url = "https://images.example.com/a.qcow2"
	for name, tt := range map[string]struct {
		img  *apitest.ImageBuilder
		want string
	}{
		"http":                    {apitest.Image("ns/a").WithURL(url), url},
		"with a Secret":           {apitest.Image("ns/a").WithURL(url).WithSecretRef("creds"), ""},
		"with authorities":        {apitest.Image("ns/a").WithURL(url).WithCertConfigMap("cas"), ""},
		"with headers":            {apitest.Image("ns/a").WithURL(url).WithExtraHeaders("X-Tenant: blue").WithSecretExtraHeaders("token"), url},
		"gcs":                     {apitest.Image("ns/a").WithSource(v1alpha1.SourceGCS, "gs://bucket/a"), ""},
		"signed for GET":          {apitest.Image("ns/a").WithURL(url + "?X-Amz-Signature=00"), ""},
		"with a password":         {apitest.Image("ns/a").WithURL("https://u:p@images.example.com/a.qcow2"), ""},
		"without a host":          {apitest.Image("ns/a").WithURL("https:///a.qcow2"), ""},
		"not a URL":               {apitest.Image("ns/a").WithURL("https://[::1/a"), ""},
		"s3":                      {apitest.Image("ns/a").WithSource(v1alpha1.SourceS3, url), ""},
		"registry":                {apitest.Image("ns/a").WithSource(v1alpha1.SourceRegistry, "docker://r.example.com/a"), ""},
		"blank":                   {apitest.Image("ns/a").WithSource(v1alpha1.SourceBlank, ""), ""},
		"a port and escaped text": {apitest.Image("ns/a").WithURL("http://h:8080/a%20b.qcow2"), "http://h:8080/a%20b.qcow2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := image.PreflightURL(tt.img.Obj().Spec)
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.want != "", ok)
		})
	}
}

func TestQueueStateOf(t *testing.T) {
	at := metav1.NewTime(apitest.Epoch)
	current := apitest.Image("ns/a").Obj().Spec.Revision()
	// waiting returns an image whose current revision waits for a reason.
	waiting := func(e v1alpha1.RevisionStatus, reason v1alpha1.Reason) *apitest.ImageBuilder {
		e.Revision = current
		return apitest.Image("ns/a").WithFinalizer().WithRevisions(e).WithCondition(v1alpha1.ConditionImported, metav1.ConditionFalse, reason)
	}
	fresh := v1alpha1.RevisionStatus{}
	failed := v1alpha1.RevisionStatus{Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeFailed, NotBefore: &at}
	phase := func(b *apitest.ImageBuilder, p v1alpha1.Phase) *apitest.ImageBuilder {
		st := b.Obj().Status
		st.Phase = p
		return b.WithStatus(st)
	}
	withoutFinalizer := func(b *apitest.ImageBuilder) *apitest.ImageBuilder {
		return apitest.Image("ns/a").WithStatus(b.Obj().Status)
	}
	for name, tt := range map[string]struct {
		img  *apitest.ImageBuilder
		want ledger.QueueState
	}{
		"without a status":           {apitest.Image("ns/a"), ledger.Pending},
		"waits for a slot":           {waiting(fresh, v1alpha1.ReasonWaitingForSlot), ledger.Admissible},
		"without its finalizer":      {withoutFinalizer(waiting(fresh, v1alpha1.ReasonWaitingForSlot)), ledger.Pending},
		"paused":                     {waiting(fresh, v1alpha1.ReasonPaused), ledger.Admissible},
		"waits for a window":         {waiting(fresh, v1alpha1.ReasonWaitingForWindow), ledger.Admissible},
		"no policy":                  {waiting(fresh, v1alpha1.ReasonPolicyMissing), ledger.Admissible},
		"being probed":               {waiting(fresh, v1alpha1.ReasonChecking), ledger.Pending},
		"waits for the fleet":        {waiting(fresh, v1alpha1.ReasonWaitingForFleet), ledger.Admissible},
		"waits for its source":       {waiting(fresh, v1alpha1.ReasonWaitingForSource), ledger.Admissible},
		"backing off":                {waiting(failed, v1alpha1.ReasonBackingOff), ledger.Skipped},
		"a Secret is missing":        {waiting(fresh, v1alpha1.ReasonSecretMissing), ledger.Skipped},
		"after its backoff":          {waiting(failed, v1alpha1.ReasonWaitingForSlot), ledger.Admissible},
		"edited since":               {waiting(fresh, v1alpha1.ReasonWaitingForSlot).WithURL("https://images.example.com/b"), ledger.Pending},
		"other fields edited since":  {waiting(fresh, v1alpha1.ReasonWaitingForSlot).WithGeneration(2), ledger.Pending},
		"being imported":             {waiting(v1alpha1.RevisionStatus{Attempt: 1}, v1alpha1.ReasonImporting), ledger.NotQueued},
		"a retry is being imported":  {waiting(v1alpha1.RevisionStatus{Attempt: 2, AttemptEnded: 1, Outcome: v1alpha1.OutcomeFailed}, v1alpha1.ReasonImporting), ledger.NotQueued},
		"imported":                   {waiting(v1alpha1.RevisionStatus{Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeSucceeded}, v1alpha1.ReasonReady), ledger.NotQueued},
		"failed":                     {waiting(v1alpha1.RevisionStatus{Attempt: 1, AttemptEnded: 1, Outcome: v1alpha1.OutcomeFailed}, v1alpha1.ReasonNotFound), ledger.NotQueued},
		"deleted, not decided yet":   {waiting(fresh, v1alpha1.ReasonWaitingForSlot).Deleted(apitest.Epoch), ledger.NotQueued},
		"terminating and released":   {phase(withoutFinalizer(waiting(fresh, v1alpha1.ReasonWaitingForSlot)).Deleted(apitest.Epoch), v1alpha1.PhaseTerminating), ledger.NotQueued},
		"deleting":                   {phase(waiting(fresh, v1alpha1.ReasonWaitingForSlot).Deleted(apitest.Epoch), v1alpha1.PhaseDeleting), ledger.NotQueued},
		"terminating, still awaited": {phase(waiting(fresh, v1alpha1.ReasonWaitingForSlot).Deleted(apitest.Epoch), v1alpha1.PhaseTerminating), ledger.Admissible},
	} {
		t.Run(name, func(t *testing.T) {
			img := tt.img.Obj()
			img.Status.LastAttempt, img.Status.ObservedGeneration = 4, 1
			assert.Equal(t, tt.want, image.QueueStateOf(img))

			got, may := image.CandidateOf(img, nil)
			assert.Equal(t, tt.want == ledger.Admissible, may)
			if may {
				assert.Equal(t, ledger.Candidate{Image: image.KeyOf(img), Revision: current, Attempt: 5, Host: "images.example.com"}, got, "attempt numbers grow across revisions")
			}
		})
	}
}

func TestOutcomeOf(t *testing.T) {
	img := apitest.Image("ns/a").WithStatus(v1alpha1.VMDiskImageStatus{LastAttempt: 5}).WithRevisions(
		v1alpha1.RevisionStatus{Revision: "r", Attempt: 4, AttemptEnded: 3, Outcome: v1alpha1.OutcomeSucceeded},
		v1alpha1.RevisionStatus{Revision: "back", AttemptsBefore: 5},
	).Obj()
	for name, tt := range map[string]struct {
		revision    string
		attempt     int32
		wantOutcome v1alpha1.Outcome
		wantStarted bool
	}{
		"an unknown revision":     {"q", 6, "", false},
		"a forgotten revision":    {"q", 2, v1alpha1.OutcomeFailed, true},
		"a revision that is back": {"back", 2, v1alpha1.OutcomeFailed, true},
		"an earlier attempt":      {"r", 2, v1alpha1.OutcomeFailed, true},
		"the ended attempt":       {"r", 3, v1alpha1.OutcomeSucceeded, true},
		"the running attempt":     {"r", 4, "", true},
		"an unknown attempt":      {"r", 6, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			outcome, started := image.OutcomeOf(img, apitest.Slot(img, tt.revision, tt.attempt).Started(apitest.Epoch.Add(time.Hour)).Obj())
			assert.Equal(t, tt.wantOutcome, outcome)
			assert.Equal(t, tt.wantStarted, started)
		})
	}
}

func TestIsAdoptable(t *testing.T) {
	img := apitest.Image("ns/a").WithStatus(v1alpha1.VMDiskImageStatus{LastAttempt: 4}).WithRevisions(
		v1alpha1.RevisionStatus{Revision: "r", Attempt: 4, AttemptEnded: 3, Outcome: v1alpha1.OutcomeFailed},
	).Obj()
	for name, tt := range map[string]struct {
		revision string
		attempt  int32
		want     bool
	}{
		"ended":                            {"r", 3, false},
		"started":                          {"r", 4, true},
		"not started":                      {"r", 5, true},
		"one of a forgotten revision":      {"q", 2, false},
		"one of a revision not stored yet": {"q", 5, true},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, image.IsAdoptable(img, apitest.Slot(img, tt.revision, tt.attempt).Obj()))
		})
	}
}

func TestSourceHost(t *testing.T) {
	for name, tt := range map[string]struct {
		kind v1alpha1.SourceType
		url  string
		want string
	}{
		"HTTP":           {v1alpha1.SourceHTTP, "https://CDN.example.com.:8443/a.qcow2?x=y", "cdn.example.com"},
		"S3":             {v1alpha1.SourceS3, "https://s3.example.com/bucket/a", "s3.example.com"},
		"a registry":     {v1alpha1.SourceRegistry, "docker://registry.example.com/a:1", "registry.example.com"},
		"an address":     {v1alpha1.SourceHTTP, "http://[fd00::1]:80/a", "fd00::1"},
		"blank":          {v1alpha1.SourceBlank, "https://cdn.example.com/a", ""},
		"no URL":         {v1alpha1.SourceHTTP, "://", ""},
		"no name at all": {v1alpha1.SourceHTTP, "https://" + strings.Repeat("a", 254) + "/a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			img := apitest.Image("ns/a").Obj()
			img.Spec.SourceType, img.Spec.URL = tt.kind, tt.url
			assert.Equal(t, tt.want, img.Spec.SourceHost())
			dv := image.NewDataVolume(img, v1alpha1.Slot{Image: image.KeyOf(img), Attempt: 1})
			assert.Equal(t, tt.want, image.DataVolumeHost(dv))
		})
	}
}
